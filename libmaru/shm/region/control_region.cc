#include "libmaru/shm/region/control_region.h"

#include "libmaru/shm/mutants.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/format_claim.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace maru::shm {
namespace {

using namespace maru::format;

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }
constexpr bool in_power_of_two_range(uint64_t value, uint64_t low, uint64_t high) {
  return std::has_single_bit(value) && value >= low && value <= high;
}

// Slots for every page twice over: see limits::kBucketSlots.
constexpr uint64_t buckets_for(uint64_t pages) {
  return std::max<uint64_t>(1, (2 * pages + limits::kBucketSlots - 1) / limits::kBucketSlots);
}
// A full pool uses half of the slots: of freshly filled buckets 2.8 % overflow, but after its blocks were replaced a few
// times 10 %, since an entry stays in the overflow bucket when its home has room again (tests/unit/registry_test.cc). Seven
// standard deviations above that, which from 4,096 pages on is less than a sixth.
constexpr uint64_t overflow_buckets_for(uint64_t buckets) {
  const uint64_t expected = buckets / 10;
  uint64_t deviation = 0;
  while (deviation < 64 && deviation * deviation < expected) ++deviation;
  return std::max({uint64_t{8}, buckets / 6, expected + 7 * deviation});
}

// Each host needs a lane for its marud and one for a client.
const char* check_sharing(const Parameters& p) {
  return p.lanes / p.hosts >= 2 ? nullptr : "there are fewer than two lanes for each host";
}

// How a lane is divided.
void plan_lane(const Parameters& p, Layout* layout) {
  layout->pin_slots = 2 * p.pins_max;
  layout->pin_overflow_slots = std::max<uint32_t>(limits::kPinSetSlots, layout->pin_slots / 8);
  layout->account_slots = account_slots(p.tenants);
  layout->accounts_offset = uint32_t(
      align_up(sizeof(LaneHeader) + 8ull * (layout->pin_slots + layout->pin_overflow_slots + p.touch_entries), 64));
  layout->lane_bytes = layout->accounts_offset + layout->account_slots * sizeof(LaneAccount);
}

// Lanes for a large pool would take most of a small one. What is not wished for is halved until they take a small share of
// `size`: the pins, then lanes and pins in turns, and neither below what a few clients need.
void choose_lanes(const FormatWishes& wishes, uint64_t size, Parameters* p) {
  p->lanes = wishes.lanes ? wishes.lanes : limits::kLanesDefault;
  p->pins_max = wishes.pins_max ? wishes.pins_max : limits::kPinsMaxDefault;
  p->touch_entries =
      wishes.touch_entries
          ? wishes.touch_entries
          : uint32_t(std::clamp<uint64_t>(std::bit_floor(size / limits::kTouchPoolBytes),
                                          limits::kTouchEntriesMinDefault, limits::kTouchEntriesDefault));
  const uint32_t lanes_min = std::max(limits::kLanesMinDefault, limits::kLanesMinOfHostDefault * p->hosts);
  const auto pins_min = uint32_t(
      std::clamp<uint64_t>(std::bit_floor(size / p->page_bytes), limits::kPinsMinDefault, limits::kPinsEnoughDefault));
  Layout layout;
  for (;;) {
    plan_lane(*p, &layout);
    if (p->lanes * layout.lane_bytes <= size / limits::kLanesShareDefault) return;
    const bool fewer_lanes = wishes.lanes == 0 && p->lanes > lanes_min;
    const bool fewer_pins = wishes.pins_max == 0 && p->pins_max > pins_min;
    if (fewer_pins && (p->pins_max > limits::kPinsPerLaneDefault * p->lanes || !fewer_lanes))
      p->pins_max /= 2;
    else if (fewer_lanes)
      p->lanes = std::max(lanes_min, p->lanes / 2);
    else
      return;
  }
}

const char* check_size(const FormatWishes& wishes) {
  if (wishes.pool_bytes == 0) return "the pool has no size";
  return wishes.pool_bytes > limits::kPoolBytesMax ? "the pool is larger than 64 TiB" : nullptr;
}

constexpr const char* kTooSmall = "the pool is too small for its control region and a single region of pages";
constexpr const char* kTooManyPages =
    "page_bytes is too small for this size: there would be more than 2^32 - 2 pages, and the rest would stay unused; "
    "choose a larger page_bytes";

// Of the bytes of the pages, what cells for long keys take, and inline keys that are longer than the usual default.
constexpr uint64_t kKeyBytesShare = 64;
constexpr uint64_t kKeyInlineDefaultMax = 1024;

// A pool whose users have long keys must hold as many blocks as any other. Where a page is large enough for its share to hold a
// cell, there is one for each page; below that the inline key takes a share as large.
uint32_t default_key_inline(uint64_t page_bytes) {
  const uint64_t share = page_bytes / kKeyBytesShare;
  if (share >= limits::kKeyExtentBytes) return limits::kKeyInlineDefault;
  return uint32_t(std::clamp<uint64_t>(share, limits::kKeyInlineDefault, kKeyInlineDefaultMax));
}

// All but the pages, with the defaults of a pool of `size` bytes, of which `cut_bytes` are cut into regions. A smaller one's
// are nowhere larger, so that whoever tries them in turns never refuses a pool that is larger than one which was possible.
const char* choose_shape(const FormatWishes& wishes, uint64_t size, uint64_t cut_bytes, Parameters* ret_parameters) {
  const bool small = size < limits::kSmallPoolBytes;
  Parameters p{};
  p.pool_bytes = wishes.pool_bytes;
  p.page_bytes = small ? limits::kPageBytesSmallPool : limits::kPageBytesDefault;
  if (wishes.region_bytes >= limits::kPageBytesMin)
    p.page_bytes = std::min(p.page_bytes, std::bit_floor(wishes.region_bytes));
  if (wishes.page_bytes) p.page_bytes = wishes.page_bytes;
  if (!in_power_of_two_range(p.page_bytes, limits::kPageBytesMin, limits::kPageBytesMax))
    return "page_bytes is not a power of two from 4 KiB to 4 MiB";
  uint64_t region_bytes = wishes.region_bytes;
  if (region_bytes == 0)
    region_bytes = std::max<uint64_t>(
        p.page_bytes, std::bit_floor(std::min(limits::kRegionBytesDefault, cut_bytes / limits::kRegionsMinDefault)));
  if (!std::has_single_bit(region_bytes) || region_bytes < p.page_bytes)
    return "region_bytes is not a power of two of at least one page";
  p.region_pages = region_bytes / p.page_bytes;
  p.hosts = wishes.hosts ? wishes.hosts : 1;
  p.tenants = wishes.tenants ? wishes.tenants
                             : uint32_t(std::clamp<uint64_t>(size / limits::kTenantPoolBytes,
                                                             limits::kTenantsMinDefault, limits::kTenantsDefault));
  choose_lanes(wishes, size, &p);
  p.key_inline_bytes = wishes.key_inline_bytes ? wishes.key_inline_bytes : default_key_inline(p.page_bytes);
  p.section_align = small ? 4096 : 2ull << 20;
  *ret_parameters = p;
  return nullptr;
}

uint64_t pages_bytes_of(const Parameters& p) { return p.pages * p.page_bytes; }

// Of parameters that are possible, or with more pages than a reference can name: nullptr if there is room for them.
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

// As many regions of pages as `room_bytes` and the control region have room for; `fits` says of a layout whether the latter
// has. The control region grows with them, so the largest count is found by bisection. Refused when there is room for a region
// more than references can name: whoever gives memory to a pool wants all of it used.
template <typename Fits>
const char* choose_pages(const FormatWishes& wishes, uint64_t room_bytes, const Fits& fits, Parameters* shape,
                         Layout* ret_layout) {
  Parameters p = *shape;
  const uint64_t region_bytes = p.region_pages * p.page_bytes;
  const uint64_t most = limits::kPagesMax / p.region_pages;
  uint64_t enough = 0, too_many = std::min(room_bytes / region_bytes, most + 1) + 1;
  const char* problem = kTooSmall;
  while (too_many - enough > 1) {
    const uint64_t middle = enough + (too_many - enough) / 2;
    p.pages = middle * p.region_pages;
    // One cell for each page while that is at most 1/64 of the pages' bytes: 4 KiB for 2 MiB costs 0.2 %.
    p.key_extents = wishes.key_extents
                        ? wishes.key_extents
                        : std::clamp<uint64_t>(pages_bytes_of(p) / kKeyBytesShare / limits::kKeyExtentBytes, 8,
                                               std::max<uint64_t>(8, p.pages));
    Layout layout{};
    const char* refusal = middle > most ? lay_out(p, &layout) : plan_layout(p, &layout);
    if (refusal == nullptr) refusal = fits(p, layout);
    if (refusal == nullptr) {
      enough = middle;
      *shape = p;
      *ret_layout = layout;
    } else {
      problem = refusal;
      too_many = middle;
    }
  }
  if (enough > most) return kTooManyPages;
  return enough ? nullptr : problem;
}

// A pool of the same pages in one piece: its control region takes less than an eighth of it.
constexpr uint64_t whole_for(uint64_t pages_bytes) { return pages_bytes / 7 * 8; }

// As many pages as both pieces have room for. Where a small control region leaves pages unused, lanes that are nobody's wish
// give way to them, if an eighth more is gained.
const char* fill_pieces(const FormatWishes& wishes, const Pieces& pieces, Parameters* ret_parameters,
                        Layout* ret_layout) {
  const auto fits = [&](const Parameters&, const Layout& layout) {
    return layout.control_bytes <= pieces.control_room
               ? nullptr
               : "the piece of the control region is too small for a single region of the other one's pages";
  };
  uint64_t most = 0;
  for (uint64_t size = wishes.pool_bytes;; size /= 2) {
    Parameters p;
    Layout layout{};
    if (const char* problem = choose_shape(wishes, size, std::min(size, whole_for(pieces.pages_room)), &p))
      return problem;
    const char* problem = choose_pages(wishes, pieces.pages_room, fits, &p, &layout);
    if (const uint64_t found = problem ? 0 : pages_bytes_of(p); found > most + most / 8) {
      most = found;
      *ret_parameters = p;
      *ret_layout = layout;
    }
    const bool is_full = most != 0 && most >= pieces.pages_room - pieces.pages_room / 8;
    if (is_full || size == 0) return most != 0 ? nullptr : problem;
  }
}

}  // namespace

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

const char* choose_parameters(const FormatWishes& wishes, Parameters* ret_parameters) {
  if (const char* problem = check_size(wishes)) return problem;
  const auto fits = [](const Parameters&, const Layout&) -> const char* { return nullptr; };
  for (uint64_t size = wishes.pool_bytes;; size /= 2) {
    Parameters p;
    Layout layout{};
    if (const char* problem = choose_shape(wishes, size, size, &p)) return problem;
    const char* problem = choose_pages(wishes, wishes.pool_bytes, fits, &p, &layout);
    if (problem == nullptr) *ret_parameters = p;
    if (problem == nullptr || size == 0) return problem;
  }
}

const char* choose_parameters_in_two(const FormatWishes& wishes, const Pieces& pieces, Parameters* ret_parameters,
                                     Layout* ret_layout) {
  if (const char* problem = check_size(wishes)) return problem;
  Parameters whole;
  if (const char* problem = choose_shape(wishes, wishes.pool_bytes, wishes.pool_bytes, &whole)) return problem;
  FormatWishes kept = wishes;
  kept.page_bytes = whole.page_bytes;  // smaller pages would need a larger control region
  const char* problem = fill_pieces(kept, pieces, ret_parameters, ret_layout);
  return problem == nullptr ? nullptr : fill_pieces(wishes, pieces, ret_parameters, ret_layout);
}

const char* divide_pool(const FormatWishes& wishes, uint64_t unit, uint64_t label_bytes, Pieces* ret_pieces) {
  FormatWishes whole = wishes;
  whole.pool_bytes = align_up(wishes.pool_bytes, unit);
  if (const char* problem = check_size(whole)) return problem;
  if (whole.pool_bytes <= label_bytes) return kTooSmall;
  const uint64_t room = whole.pool_bytes - label_bytes;  // of both
  const auto fits = [&](const Parameters& p, const Layout& layout) {
    return align_up(layout.control_bytes, unit) + pages_bytes_of(p) <= room ? nullptr : kTooSmall;
  };
  for (uint64_t size = whole.pool_bytes;; size /= 2) {
    Parameters p;
    Layout layout{};
    if (const char* problem = choose_shape(whole, size, std::min(size, whole_for(room)), &p)) return problem;
    const char* problem = choose_pages(whole, room, fits, &p, &layout);
    if (problem == nullptr) {
      // Where a region more would find room beside this control region and none in it, the piece of the pages ends before.
      const uint64_t used = label_bytes + pages_bytes_of(p), next = used + p.region_pages * p.page_bytes;
      const uint64_t pages_piece = std::min(whole.pool_bytes - align_up(layout.control_bytes, unit),
                                            std::max(align_up(used, unit), (next - 1) / unit * unit));
      *ret_pieces = {whole.pool_bytes - pages_piece, pages_piece - label_bytes};
    }
    if (problem == nullptr || size == 0) return problem;
  }
}

uint64_t header_checksum(const Header& header) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  for (size_t i = 0; i < offsetof(Header, checksum); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

void ControlRegion::set(std::byte* base, const Header& header, const Layout& layout) {
  base_ = base;
  header_ = header;
  layout_ = layout;
  region_shift_ = uint32_t(std::countr_zero(header.parameters.region_pages));
  blocks_ = reinterpret_cast<BlockLine*>(section(kSectionBlocks));
  buckets_ = reinterpret_cast<Bucket*>(section(kSectionRegistry));
}

const char* ControlRegion::format(std::span<std::byte> memory, const Parameters& parameters,
                                  const FormatIdentity& identity, bool memory_is_zero, ControlRegion* ret_region) {
  Layout layout;
  if (const char* problem = plan_layout(parameters, &layout)) return problem;
  if (memory.size() < layout.control_bytes) return "the memory is smaller than the control region";
  // A reader that attaches half-way must not find a valid header, so the old one's first word goes first, and the new one's
  // comes last. Between them it says that somebody is at work.
  auto& first = *reinterpret_cast<AtomicU64*>(memory.data());
  FormatClaim claim = claim_in(memory);
  if (!claim.is_one()) {
    claim = FormatClaim::of(0);
    first.store_release(claim.bits);
  }
  // The uuid beside the claim stays: pages may have been labelled with it.
  constexpr size_t kUuidAt = offsetof(Header, uuid), kUuidEnd = kUuidAt + sizeof(Header::uuid);
  std::memset(memory.data() + sizeof(first), 0, kUuidAt - sizeof(first));
  std::memset(memory.data() + kUuidEnd, 0, sizeof(Header) - kUuidEnd);
  if (!memory_is_zero) std::memset(memory.data() + sizeof(Header), 0, layout.control_bytes - sizeof(Header));

  Header header{};
  header.magic = kMagic;
  header.version_major = kVersionMajor;
  header.version_minor = kVersionMinor;
  header.header_bytes = sizeof(Header);
  header.compat_flags = identity.checksums ? kCompatChecksums : 0;
  header.incompat_flags = (identity.shared ? kIncompatShared : 0) | (identity.durable ? kIncompatDurable : 0) |
                          (identity.checksums ? kIncompatBoundChecksums : 0) | kIncompatMetadata;
  header.hash_algorithm = kHashFeistel3Siphash24;
  std::memcpy(header.uuid, identity.uuid, sizeof(header.uuid));
  header.created_unix_ms = identity.created_unix_ms;
  header.parameters = parameters;
  header.control_bytes = layout.control_bytes;
  header.buckets = layout.buckets;
  header.overflow_buckets = layout.overflow_buckets;
  std::memcpy(header.sections, layout.sections, sizeof(header.sections));
  std::memcpy(header.secret, identity.secret, sizeof(header.secret));
  header.checksum = header_checksum(header);
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  std::memcpy(memory.data() + sizeof(first), bytes + sizeof(first), sizeof(header) - sizeof(first));
  if ((header.incompat_flags & kIncompatFlushed) != 0 && !MARU_MUTANT(kMutantFormatUnflushed))
    flush_lines(memory.data(), layout.control_bytes);  // all of it before the word that counts
  uint64_t expected = claim.bits;
  if (!first.cas_seq_cst(expected, header.magic)) return "another host has begun to format the same memory meanwhile";
  ret_region->set(memory.data(), header, layout);
  return nullptr;
}

const char* ControlRegion::check_header(const Header& header, uint64_t device_bytes, Layout* ret_layout) {
  if (header.magic != kMagic) return "there is no control region here (wrong magic number)";
  if (header.version_major != kVersionMajor) return "the control region has another major version";
  if (header.header_bytes != sizeof(Header)) return "the header has another size";
  if (header.checksum != header_checksum(header)) return "the header's checksum does not match";
  if ((header.incompat_flags & ~kIncompatKnown) != 0)
    return "the control region uses a feature that this version does not know";
  if (header.hash_algorithm != kHashFeistel3Siphash24)
    return "the control region has the hash of another marud: one that knows it can serve it, or format it anew";
  if (header.parameters.pool_bytes > device_bytes) return "the pool is larger than the device it lies on";
  Layout layout;
  if (const char* problem = plan_layout(header.parameters, &layout)) return problem;
  if (header.incompat_flags & kIncompatShared)
    if (const char* problem = check_sharing(header.parameters)) return problem;
  if (header.control_bytes != layout.control_bytes || header.buckets != layout.buckets ||
      header.overflow_buckets != layout.overflow_buckets ||
      std::memcmp(header.sections, layout.sections, sizeof(header.sections)) != 0)
    return "the sections are not where the parameters put them";
  *ret_layout = layout;
  return nullptr;
}

const char* ControlRegion::attach(std::span<std::byte> memory, uint64_t device_bytes, ControlRegion* ret_region) {
  if (memory.size() < sizeof(Header)) return "the memory is smaller than a header";
  Header header;
  std::memcpy(&header, memory.data(), sizeof(header));
  Layout layout;
  if (const char* problem = check_header(header, device_bytes, &layout)) return problem;
  if (memory.size() < layout.control_bytes) return "the memory is smaller than the control region";
  ret_region->set(memory.data(), header, layout);
  return nullptr;
}

uint32_t ControlRegion::run_pages(uint32_t page) const {
  const uint32_t said = uint32_t(block(page).shape.load_relaxed());  // under the caller's hold of the page
  const uint32_t room = region_pages() - (page & (region_pages() - 1));
  return std::clamp<uint32_t>(said, 1, room);
}

std::span<AtomicU64> ControlRegion::key_cell(uint32_t page) const {
  const uint64_t words = header_.parameters.key_inline_bytes / 8;
  return {reinterpret_cast<AtomicU64*>(section(kSectionKeyBytes)) + page * words, words};
}

std::span<AtomicU64> ControlRegion::key_extent(uint64_t extent) const {
  const uint64_t owners = align_up(header_.parameters.key_extents * sizeof(uint64_t), 64);
  std::byte* cell = section(kSectionKeyExtents) + owners + extent * limits::kKeyExtentBytes;
  return {reinterpret_cast<AtomicU64*>(cell), limits::kKeyExtentBytes / 8};
}

LaneView ControlRegion::lane(uint32_t lane) const {
  std::byte* start = section(kSectionLanes) + lane * layout_.lane_bytes;
  auto* words = reinterpret_cast<AtomicU64*>(start + sizeof(LaneHeader));
  LaneView view;
  view.header = reinterpret_cast<LaneHeader*>(start);
  view.pins = {words, layout_.pin_slots};
  view.pin_overflow = {words + layout_.pin_slots, layout_.pin_overflow_slots};
  view.touches = {words + layout_.pin_slots + layout_.pin_overflow_slots, header_.parameters.touch_entries};
  return view;
}

}  // namespace maru::shm
