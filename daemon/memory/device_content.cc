#include "daemon/memory/device_content.h"

#include "daemon/base/size_text.h"
#include "daemon/base/uuid.h"
#include "daemon/memory/memory_trouble.h"
#include "libmaru/base/mapping.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/data_label.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/format_claim.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace maru::daemon {
namespace {

constexpr uint64_t kPartBytes = 2ull << 20;
constexpr uint64_t kWindowBytes = 256ull << 20;
constexpr unsigned kThreadsMax = 8;         // a few saturate the memory of one node
constexpr size_t kLabelBytes = 128u << 10;  // the farthest signature below begins at 64 KiB

// The beginnings of other formats. Only for the message: any byte that is not zero is refused, known or not.
struct Signature {
  size_t offset;
  std::string_view bytes;
  const char* what;
};
using namespace std::string_view_literals;
constexpr Signature kSignatures[] = {
    {0x438, "\x53\xEF"sv, "an ext2, ext3 or ext4 file system"},
    {0, "XFSB"sv, "an XFS file system"},
    {0x10040, "_BHRfS_M"sv, "a btrfs file system"},
    {0x400, "\x10\x20\xF5\xF2"sv, "an F2FS file system"},
    {0, "\xff\xb2\x82\x87"sv, "a famfs file system"},
    {0, "LUKS\xba\xbe"sv, "an encrypted volume (LUKS)"},
    {0x218, "LVM2 001"sv, "a physical volume of LVM"},
    {0x1000, "\xfc\x4e\x2b\xa9"sv, "a member of a RAID (md)"},
    {0, "\xfc\x4e\x2b\xa9"sv, "a member of a RAID (md)"},
    {0xff6, "SWAPSPACE2"sv, "swap space"},
    {0xff6, "SWAP-SPACE"sv, "swap space"},
    {0x200, "EFI PART"sv, "a partition table (GPT)"},
    {0x1000, "EFI PART"sv, "a partition table (GPT)"},
    {0, "PMEMPOOL"sv, "a pool of the PMDK"},
    {0, "PMEMOBJ"sv, "an object pool of the PMDK"},
    {0, "PMEMBLK"sv, "a block pool of the PMDK"},
    {0, "PMEMLOG"sv, "a log pool of the PMDK"},
    {0x1fe, "\x55\xAA"sv, "a partition table or boot sector"},
};

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

Uuid uuid_of(const uint8_t (&bytes)[16]) {
  Uuid uuid;
  std::memcpy(uuid.data(), bytes, uuid.size());
  return uuid;
}

void read_pool_header(std::span<const std::byte> begin, uint64_t device_bytes, DeviceLabel& label) {
  std::memcpy(&label.header, begin.data(), sizeof(label.header));
  const format::Header& header = label.header;
  // Of garbage that memory without power left, every other one has the flag.
  label.is_shared =
      header.checksum == shm::header_checksum(header) && (header.incompat_flags & format::kIncompatShared) != 0;
  shm::Layout layout;
  // A split pool is larger than the device of its control region; the opener compares that with both.
  const uint64_t bytes = std::max(device_bytes, header.parameters.pool_bytes);
  if (header.checksum == shm::header_checksum(header) && header.version_major != format::kVersionMajor) {
    label.kind = DeviceLabel::Kind::kDamaged;
    label.found = "a pool of marud with version " + std::to_string(header.version_major) + "." +
                  std::to_string(header.version_minor) + " of the format";
  } else if (const char* problem = shm::ControlRegion::check_header(header, bytes, &layout)) {
    label.kind = DeviceLabel::Kind::kDamaged;
    label.found = std::string("what was a pool of marud: ") + problem;
  } else {
    label.kind = DeviceLabel::Kind::kPool;
    label.uuid = uuid_of(header.uuid);
    label.found = "a pool of marud, uuid " + uuid_text(header.uuid) + ", " + size_text(header.parameters.pool_bytes) +
                  " in pages of " + size_text(header.parameters.page_bytes);
  }
}

void read_data_label(DeviceLabel& label) {
  const bool is_intact = label.data.checksum == shm::data_label_checksum(label.data) &&
                         (label.data.hosts == 0 || label.data.hosts == format::kDataLabelHosts);
  label.is_shared = is_intact && label.data.hosts != 0;
  if (is_intact && label.data.pages_offset != format::kDataLabelRoom) {
    label.kind = DeviceLabel::Kind::kDamaged;
    label.found = "the pages of a pool of marud, uuid " + uuid_text(label.data.uuid) + ", from byte " +
                  std::to_string(label.data.pages_offset) + " on, where this version does not look for them";
  } else if (is_intact) {
    label.kind = DeviceLabel::Kind::kData;
    label.uuid = uuid_of(label.data.uuid);
    label.found = "the pages of a pool of marud, uuid " + uuid_text(label.data.uuid) +
                  (label.is_shared ? ", which several hosts share" : "");
  } else {
    label.kind = DeviceLabel::Kind::kDamaged;
    label.found = "what were pages of a pool of marud, with a damaged label";
  }
}

bool is_zero(std::span<const std::byte> bytes) {
  // The first byte is zero and each byte equals the next one.
  return bytes.empty() ||
         (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace

bool is_whole(const Uuid& uuid) {
  uint64_t words[2];
  std::memcpy(words, uuid.data(), sizeof(words));
  return words[0] != 0 && words[1] != 0;
}

Result<DeviceLabel> read_label(const DeviceBytes& device) {
  DeviceLabel label;
  const uint64_t map_bytes = round_up(std::min<uint64_t>(kLabelBytes, device.bytes), device.alignment);
  auto mapped = Mapping::map_shared(device.fd, 0, map_bytes, PROT_READ);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + device.name);
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size(), device.alignment)) return failure(ENFILE, "guard " + device.name);
  std::vector<std::byte> begin(size_t(std::min<uint64_t>(kLabelBytes, device.bytes)));
  std::memcpy(begin.data(), mapped->data(), begin.size());
  // Zeros that stand in for bad memory say nothing of the device's content.
  if (const std::string why = memory_trouble(guard); !why.empty())
    return failure(memory_trouble_code(guard),
                   "read the beginning of " + device.name + ": it cannot be read (" + why + ")");
  if (begin.size() < sizeof(format::Header)) return label;

  std::memcpy(&label.data, begin.data(), sizeof(label.data));
  uint64_t magic = 0;
  std::memcpy(&magic, begin.data(), sizeof(magic));
  if (magic == format::kMagic) {
    read_pool_header(begin, device.bytes, label);
    return label;
  }
  if (magic == format::kDataLabelMagic) {
    read_data_label(label);
    return label;
  }
  if (is_zero(begin)) return label;
  if (const shm::FormatClaim claim = shm::claim_in(begin); claim.is_one()) {
    label.kind = DeviceLabel::Kind::kClaimed;
    label.claimed_by = claim.machine();
    label.uuid = shm::claimed_uuid(begin);
    label.found = label.claimed_by != 0 ? "that another host formats it at this moment, or died over it"
                                        : "the formatting of a pool of marud, which was cut off";
    return label;
  }
  if (const shm::ClearingMark mark = shm::clearing_mark_in(begin); mark.is_one()) {
    label.kind = DeviceLabel::Kind::kGivenUp;
    label.is_of_pages = mark.is_of_pages();
    label.is_shared = mark.is_shared();
    if (mark.has_uuid()) label.uuid = shm::claimed_uuid(begin);
    label.found = label.is_shared ? "memory of several hosts that one of them clears at this moment, or died over it"
                                  : "what marud gave up and was clearing when it was cut off";
    return label;
  }
  label.kind = DeviceLabel::Kind::kForeign;
  label.found = "content that is not marud's";
  for (const Signature& signature : kSignatures)
    if (signature.offset + signature.bytes.size() <= begin.size() &&
        std::memcmp(begin.data() + signature.offset, signature.bytes.data(), signature.bytes.size()) == 0) {
      label.found = signature.what;
      break;
    }
  return label;
}

bool are_claimed(const DeviceLabel& pages, uint64_t pages_bytes, const DeviceLabel& control) {
  if (control.kind != DeviceLabel::Kind::kClaimed || control.uuid == Uuid{}) return false;
  if (pages.kind == DeviceLabel::Kind::kData) return pages.uuid == control.uuid;
  return are_labelled_in_part(pages, pages_bytes, control.uuid);
}

bool are_labelled_in_part(const DeviceLabel& pages, uint64_t pages_bytes, const Uuid& uuid) {
  uint8_t bytes[16];
  std::memcpy(bytes, uuid.data(), sizeof(bytes));
  const bool is_shared = pages.data.hosts == format::kDataLabelHosts;
  return shm::is_part_of(pages.data, shm::make_data_label(bytes, pages_bytes, format::kDataLabelRoom, is_shared));
}

void in_parallel(uint64_t count, uint64_t step, const std::function<void(uint64_t)>& work) {
  const unsigned threads_max = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
  std::atomic<uint64_t> next{0};  // the first number that no thread has taken yet
  const auto take = [&] {
    for (uint64_t first; (first = next.fetch_add(step, std::memory_order_relaxed)) < count;)
      for (uint64_t i = first; i < std::min(count, first + step); ++i) work(i);
  };
  std::vector<std::thread> threads;
  try {
    for (uint64_t i = 1; i < std::min<uint64_t>(threads_max, (count + step - 1) / step); ++i)
      threads.emplace_back(take);
  } catch (const std::system_error&) {
    // The threads that started do it, and this thread.
  }
  take();
  for (std::thread& thread : threads) thread.join();
}

Result<void> look_at_all(const DeviceBytes& device, int protection, const Look& look, const Progress& progress) {
  const uint64_t step = round_up(kWindowBytes, device.alignment);
  for (uint64_t offset = 0; offset < device.bytes; offset += step) {
    if (progress && !progress(offset, device.bytes)) return failure(ECANCELED, "look at " + device.name);
    const uint64_t bytes = std::min(step, device.bytes - offset);
    auto mapped = Mapping::map_shared(device.fd, offset, round_up(bytes, device.alignment), protection);
    if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + device.name);
    FaultGuard guard;
    if (!guard.begin(mapped->data(), mapped->size(), device.alignment)) return failure(ENFILE, "guard " + device.name);
    in_parallel((bytes + kPartBytes - 1) / kPartBytes, 1, [&](uint64_t part) {
      const uint64_t at = part * kPartBytes;
      look(mapped->bytes().subspan(at, std::min(kPartBytes, bytes - at)), offset + at);
    });
    if (const std::string why = memory_trouble(guard, offset); !why.empty())
      return failure(memory_trouble_code(guard), "use " + device.name + ": its memory cannot be read between " +
                                                     size_text(offset) + " and " + size_text(offset + bytes) + " (" +
                                                     why + ")");
  }
  if (progress) progress(device.bytes, device.bytes);
  return {};
}

Result<std::optional<uint64_t>> find_content(const DeviceBytes& device, const Progress& progress) {
  std::atomic<uint64_t> first{~uint64_t{0}};
  const auto look = [&](std::span<std::byte> part, uint64_t offset) {
    if (first.load(std::memory_order_relaxed) < offset || is_zero(part)) return;
    const auto found = std::find_if(part.begin(), part.end(), [](std::byte b) { return b != std::byte{0}; });
    const uint64_t at = offset + uint64_t(found - part.begin());
    uint64_t least = first.load(std::memory_order_relaxed);
    while (at < least && !first.compare_exchange_weak(least, at, std::memory_order_relaxed)) {
    }
  };
  const auto go_on = [&](uint64_t done, uint64_t of) {
    // One found byte is enough: no thread has to look at the rest.
    return first.load(std::memory_order_relaxed) == ~uint64_t{0} && (!progress || progress(done, of));
  };
  auto looked = look_at_all(device, PROT_READ, look, go_on);
  const uint64_t at = first.load(std::memory_order_relaxed);
  if (at != ~uint64_t{0}) return std::optional<uint64_t>(at);
  if (!looked) return tl::unexpected(looked.error());
  return std::optional<uint64_t>();
}

namespace {

// Of the mark: its beginning, to be written.
Result<void> change_beginning(const DeviceBytes& device, const std::function<void(std::span<std::byte>)>& change) {
  auto mapped =
      Mapping::map_shared(device.fd, 0, round_up(shm::kMarkedBytes, device.alignment), PROT_READ | PROT_WRITE);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + device.name);
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size(), device.alignment)) return failure(ENFILE, "guard " + device.name);
  change(mapped->bytes());
  if (const std::string why = memory_trouble(guard); !why.empty())
    return failure(memory_trouble_code(guard),
                   "write the beginning of " + device.name + ": it cannot be written (" + why + ")");
  return {};
}

}  // namespace

Result<void> give_up_content(const DeviceBytes& device, bool is_of_pages, const Uuid& uuid, bool is_shared) {
  uint8_t bytes[16];
  std::memcpy(bytes, uuid.data(), sizeof(bytes));
  return change_beginning(
      device, [&](std::span<std::byte> begin) { shm::begin_clearing(begin, is_of_pages, bytes, is_shared); });
}

Result<void> clear_content(const DeviceBytes& device, const Progress& progress) {
  const auto clear = [](std::span<std::byte> part, uint64_t offset) {
    const std::span<std::byte> rest = part.subspan(offset == 0 ? std::min(shm::kMarkedBytes, part.size()) : 0);
    std::memset(rest.data(), 0, rest.size());
    shm::flush_lines(rest.data(), rest.size());  // before there is no mark any more
  };
  if (auto cleared = look_at_all(device, PROT_READ | PROT_WRITE, clear, progress); !cleared) return cleared;
  return change_beginning(device, [](std::span<std::byte> begin) { shm::end_clearing(begin); });
}

}  // namespace maru::daemon
