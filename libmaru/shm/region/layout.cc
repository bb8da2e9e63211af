#include "libmaru/shm/region/layout.h"

#include <algorithm>

namespace maru::shm {
namespace {

using namespace maru::format;

// Slots for every page twice over: see limits::kBucketSlots.
constexpr uint64_t buckets_for(uint64_t pages) {
  return std::max<uint64_t>(1, (2 * pages + limits::kBucketSlots - 1) / limits::kBucketSlots);
}
// A full pool uses half of the slots. 2.8 % of freshly filled buckets overflow. After its blocks were replaced a few times it
// is 10 %, since an entry stays in the overflow bucket when its home has room again (tests/unit/registry_test.cc). Seven
// standard deviations above that, which from 4,096 pages on is less than a sixth.
constexpr uint64_t overflow_buckets_for(uint64_t buckets) {
  const uint64_t expected = buckets / 10;
  uint64_t deviation = 0;
  while (deviation < 64 && deviation * deviation < expected) ++deviation;
  return std::max({uint64_t{8}, buckets / 6, expected + 7 * deviation});
}

}  // namespace

void plan_lane(const Parameters& p, Layout* ret_layout) {
  ret_layout->pin_slots = 2 * p.pins_max;
  ret_layout->pin_overflow_slots = std::max<uint32_t>(limits::kPinSetSlots, ret_layout->pin_slots / 8);
  ret_layout->account_slots = account_slots(p.tenants);
  ret_layout->accounts_offset = uint32_t(align_up(
      sizeof(LaneHeader) + 8ull * (ret_layout->pin_slots + ret_layout->pin_overflow_slots + p.touch_entries), 64));
  ret_layout->lane_bytes = ret_layout->accounts_offset + ret_layout->account_slots * sizeof(LaneAccount);
}

const char* lay_out(const Parameters& p, Layout* ret_layout) {
  Layout layout{};
  layout.buckets = buckets_for(p.pages);
  layout.overflow_buckets = overflow_buckets_for(layout.buckets);
  plan_lane(p, &layout);

  const uint64_t bytes[kSectionCount] = {
      p.hosts * sizeof(HostRecord),
      p.pages / p.region_pages * sizeof(RegionRecord),
      sizeof(LaneBitmap) + p.lanes * sizeof(LaneIdentity),
      p.pages * sizeof(PolicyEntry),
      sizeof(TenantRules) + p.tenants * sizeof(TenantRecord) + 8ull * p.lanes * layout.account_slots,
      p.pages * sizeof(BlockLine),
      p.pages * sizeof(DetailLine),
      p.pages * p.key_inline_bytes,
      align_up(p.key_extents * sizeof(uint64_t), 64) + p.key_extents * limits::kKeyExtentBytes,
      layout.buckets * sizeof(Bucket),
      layout.overflow_buckets * sizeof(Bucket),
      p.lanes * layout.lane_bytes,
  };
  uint64_t offset = align_up(sizeof(Header), p.section_align);
  for (uint32_t i = 0; i < kSectionCount; ++i) {
    layout.sections[i] = {offset, bytes[i]};
    offset = align_up(offset + bytes[i], p.section_align);
  }
  layout.control_bytes = align_up(offset, std::max(p.section_align, p.page_bytes));
  if (layout.control_bytes > p.pool_bytes || (p.pool_bytes - layout.control_bytes) / p.page_bytes < p.pages)
    return kTooSmall;
  *ret_layout = layout;
  return nullptr;
}

const char* plan_layout(const Parameters& p, Layout* ret_layout) {
  if (!in_power_of_two_range(p.page_bytes, limits::kPageBytesMin, limits::kPageBytesMax))
    return "page_bytes is not a power of two from 4 KiB to 4 MiB";
  if (p.pages == 0 || p.pages > limits::kPagesMax)
    return "the pool has no page, or more than 2^32 - 2: use larger pages";
  if (!std::has_single_bit(p.region_pages) || p.region_pages > limits::kRunPagesMax)
    return "region_pages is not a power of two below 2^28";
  if (p.pages % p.region_pages != 0) return "pages is not a multiple of region_pages";
  if (p.lanes < 2 || p.lanes > limits::kLanesMax) return "lanes is not from 2 to 4096";
  if (p.hosts < 1 || p.hosts > limits::kHostsMax) return "hosts is not from 1 to 64";
  if (p.tenants < 1 || p.tenants > limits::kTenantsMax) return "tenants is not from 1 to 65536";
  if (!in_power_of_two_range(p.pins_max, limits::kPinSetSlots, limits::kPinsMaxLimit))
    return "pins_max is not a power of two from 8 to 2^20";
  if (!in_power_of_two_range(p.touch_entries, 8, limits::kTouchEntriesLimit))
    return "touch_entries is not a power of two from 8 to 2^20";
  if (p.key_inline_bytes < limits::kKeyInlineMin || p.key_inline_bytes > limits::kKeyInlineMax ||
      p.key_inline_bytes % 8 != 0)
    return "key_inline_bytes is not a multiple of 8 from 32 to 4096";
  if (p.key_extents == 0 || p.key_extents > limits::kPagesMax) return "key_extents is not from 1 to 2^32 - 2";
  if (!in_power_of_two_range(p.section_align, 4096, 1ull << 30))
    return "section_align is not a power of two from 4 KiB";
  if (p.pool_bytes > limits::kPoolBytesMax) return "the pool is larger than 64 TiB";

  return lay_out(p, ret_layout);
}

}  // namespace maru::shm
