// The metadata of one block, as marudctl shows it. marud copies the beginning from the pages without a pin. It believes the
// copy only if the page word names the block before and after.
#include "daemon/pool/inspect/block_lists.h"

#include "daemon/base/request_fields.h"
#include "daemon/memory/probe.h"

#include <algorithm>
#include <vector>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kShownBytes = 1024;  // a person reads no more; a program uses libmaru

}  // namespace

// Adds "metadata": text, or 0x and hexadecimal digits; "metadata_shown_bytes" where that is a part of it alone. Null where it
// cannot be read, and "metadata_error" says why.
void BlockLists::put_metadata(PageRef ref, json& row) const {
  const shm::MetadataPlace place = shm::metadata_of(core_.region, ref.page());
  if (place.bytes == 0 && place.fits) return;
  row["metadata"] = nullptr;
  if (!place.fits) {
    row["metadata_error"] = "the block's line is damaged: found metadata beyond the end of its pages (marudctl check)";
    return;
  }
  std::vector<std::byte> bytes(std::min(place.bytes, kShownBytes));
  bool is_of_block = false;
  const auto looked = read_memory(*core_.device, core_.device_byte(ref.page()) + place.offset, bytes.size(),
                                  [&](std::span<const AtomicU64> words) {
                                    is_of_block = shm::read_metadata(core_.region, ref, place, words, bytes);
                                  });
  if (!looked || !is_of_block) {
    row["metadata_error"] = looked ? "the block went away meanwhile" : looked.error().text();
    return;
  }
  row["metadata"] = text_or_hex(bytes, bytes.size() < place.bytes);
  if (bytes.size() < place.bytes) row["metadata_shown_bytes"] = bytes.size();
}

}  // namespace maru::daemon
