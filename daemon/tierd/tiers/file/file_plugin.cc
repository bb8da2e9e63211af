// The file tier behind maru/tier.h.
#include "daemon/tierd/tiers/built_in.h"
#include "daemon/tierd/tiers/file/file_tier.h"
#include "daemon/tierd/tiers/options.h"

#include <cerrno>
#include <cstdio>
#include <new>

namespace maru::tierd {
namespace {

constexpr const char* kOptions =
    "path, capacity, region_bytes, direct, readers, write_bytes, write_bytes_beside_reads, io_uring, reinsert_percent "
    "or force";

FileTier& of(maru_tier* tier) { return *reinterpret_cast<FileTier*>(tier); }

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

int open_file(const maru_tier_option* options, size_t n, maru_tier** ret_tier, char* problem, size_t problem_bytes) {
  OptionReader reader(options, n);
  FileTierWish wish;
  if (const std::string mistake = read_wish(reader, wish); !mistake.empty()) {
    std::snprintf(problem, problem_bytes, "%s", mistake.c_str());
    return -EINVAL;
  }
  try {
    auto tier = FileTier::open(wish);
    if (tier) {
      *ret_tier = reinterpret_cast<maru_tier*>(tier->release());
      return 0;
    }
    std::snprintf(problem, problem_bytes, "%s", tier.error().text().c_str());
    return -tier.error().code;
  } catch (const std::bad_alloc&) {
    std::snprintf(problem, problem_bytes, "no memory is left for the index of %s", wish.file.path.c_str());
    return -ENOMEM;
  }
}

std::string_view text_of(const void* data, uint32_t bytes) { return {static_cast<const char*>(data), bytes}; }

}  // namespace

const maru_tier_calls kFileTier = {
    .size = sizeof(maru_tier_calls),
    .abi = MARU_TIER_ABI,
    .reserved0 = 0,
    .name = "file",
    .open = open_file,
    .close = [](maru_tier* tier) { delete &of(tier); },
    .event_descriptor = [](maru_tier* tier) { return of(tier).completions().descriptor(); },
    .submit = [](maru_tier* tier, const maru_tier_request* requests, size_t n) { return of(tier).submit(requests, n); },
    .complete = [](maru_tier* tier, maru_tier_completion* done,
                   size_t n) { return of(tier).completions().take(done, n); },
    .get_properties = [](maru_tier* tier, maru_tier_properties* properties) { of(tier).get_properties(*properties); },
    .get_usage = [](maru_tier* tier, maru_tier_usage* usage) { of(tier).get_usage(*usage); },
    .get_health = [](maru_tier* tier, maru_tier_health* health) { of(tier).get_health(*health); },
    .list = [](maru_tier* tier, uint64_t* cursor, maru_tier_entry* entries,
               size_t n) { return of(tier).list(cursor, entries, n); },
    .get_group = [](maru_tier* tier, const void* name, uint32_t name_bytes,
                    maru_tier_group* group) { of(tier).get_group(text_of(name, name_bytes), *group); },
    .list_groups = [](maru_tier* tier, const maru_tier_group* after, maru_tier_group* groups,
                      size_t n) { return of(tier).list_groups(after, groups, n); },
    .list_oldest = [](maru_tier* tier, const void* name, uint32_t name_bytes, maru_tier_entry* entries,
                      size_t n) { return of(tier).list_oldest(text_of(name, name_bytes), entries, n); },
};

}  // namespace maru::tierd
