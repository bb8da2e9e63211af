#include "libmaru/shm/region/control_region.h"

#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/format_claim.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace maru::shm {
namespace {

using namespace maru::format;

// Each host needs a lane for its marud and one for a client.
const char* check_sharing(const Parameters& p) {
  return p.lanes / p.hosts >= 2 ? nullptr : "there are fewer than two lanes for each host";
}

}  // namespace

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
  // A reader that attaches half-way must not find a valid header, so the old header's first word goes first, and the new
  // header's comes last. Between them it says that the memory is being formatted.
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
  if ((header.incompat_flags & kIncompatFlushed) != 0)
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
