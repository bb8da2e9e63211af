// The file tier behind maru/tier.h.
#include "daemon/tierd/tiers/built_in.h"
#include "daemon/tierd/tiers/calls_of.h"
#include "daemon/tierd/tiers/file/file_tier.h"

namespace maru::tierd {
namespace {

constexpr const char* kOptions =
    "path, capacity, region_bytes, direct, readers, write_bytes, write_bytes_beside_reads, io_uring, reinsert_percent "
    "or force";

std::string read_wish(OptionReader& reader, FileTierWish& wish) {
  wish.file.path = reader.text("path", "");
  if (wish.file.path.empty()) return "option \"path\" is missing: name a file, a directory or a block device";
  if (!reader.has("capacity"))
    return "option \"capacity\" is missing: say how many bytes the tier may take, such as \"100GiB\"";
  wish.file.capacity_bytes = reader.number("capacity", 0, 1, UINT64_MAX >> 1);
  wish.file.region_bytes = reader.number("region_bytes", 64u << 20, kLogRegionBytesMin, kLogRegionBytesMax);
  const std::string direct = reader.text("direct", "auto");
  if (direct != "auto" && direct != "yes" && direct != "no")
    return "direct: found \"" + direct + "\", expected \"auto\", \"yes\" or \"no\"";
  wish.file.direct = direct == "yes" ? DirectWish::kYes : direct == "no" ? DirectWish::kNo : DirectWish::kIfPossible;
  wish.file.force = reader.flag("force", false);
  wish.transfers.readers = uint32_t(reader.number("readers", 16, 1, 256));
  wish.transfers.write_bytes = reader.number("write_bytes", 64u << 20, 4096, 1ull << 40);
  wish.transfers.write_bytes_beside_reads = reader.number("write_bytes_beside_reads", 2u << 20, 4096, 1ull << 40);
  wish.transfers.use_ring = reader.flag("io_uring", true);
  wish.reinsert_percent = reader.number("reinsert_percent", 25, 0, 75);
  if (wish.file.region_bytes % kLogBlock != 0)
    return "region_bytes: found " + std::to_string(wish.file.region_bytes) + ", expected a multiple of 4096";
  return reader.mistake(kOptions);
}

struct FilePlugin {
  using Tier = FileTier;
  using Wish = FileTierWish;
  static constexpr const char* kName = "file";
  static constexpr auto read = read_wish;
  static std::string problem(const Error& error) { return error.text(); }
};

}  // namespace

const maru_tier_calls kFileTier = calls_of<FilePlugin>();

}  // namespace maru::tierd
