// A control region in mapped memory: how it is formatted, checked and addressed. The only place that does arithmetic on
// offsets; everything else gets references and spans from here. layout.h says where its sections lie, pool_sizing.h how
// many pages a new pool gets.
#pragma once

#include "libmaru/shm/region/layout.h"
#include "libmaru/shm/region/page_word.h"
#include "maru/format/control_region.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace maru::shm {

using format::Header;

struct FormatIdentity {
  uint8_t uuid[16];
  uint64_t secret[16];
  uint64_t created_unix_ms;
  bool checksums;
  bool shared = false;   // several hosts
  bool durable = false;  // published blocks outlive the machine's power
};

// One lane's part of the region.
struct LaneView {
  format::LaneHeader* header = nullptr;
  std::span<AtomicU64> pins;  // sets of limits::kPinSetSlots
  std::span<AtomicU64> pin_overflow;
  std::span<AtomicU64> touches;
};

class ControlRegion {
 public:
  ControlRegion() = default;

  // Writes an empty control region over `memory` (at least the layout's control_bytes, page-aligned). Every page is OUT.
  // `memory_is_zero` skips clearing it. Returns nullptr, or the reason why this is impossible.
  static const char* format(std::span<std::byte> memory, const Parameters& parameters, const FormatIdentity& identity,
                            bool memory_is_zero, ControlRegion* ret_region);

  // Checks everything the header says against `device_bytes` and against the layout that its parameters demand. The header is
  // copied first; later changes of it in shared memory have no effect. Returns nullptr, or the fault.
  static const char* attach(std::span<std::byte> memory, uint64_t device_bytes, ControlRegion* ret_region);

  // The same for the header alone, before anything is mapped: tells how many bytes to map.
  static const char* check_header(const Header& header, uint64_t device_bytes, Layout* ret_layout);

  const Header& header() const { return header_; }
  const Parameters& parameters() const { return header_.parameters; }
  const Layout& layout() const { return layout_; }
  uint64_t pages() const { return header_.parameters.pages; }
  uint64_t page_bytes() const { return header_.parameters.page_bytes; }
  uint32_t regions() const { return uint32_t(pages() >> region_shift_); }
  uint32_t region_of(uint32_t page) const { return page >> region_shift_; }
  uint32_t region_pages() const { return uint32_t(header_.parameters.region_pages); }
  uint32_t lanes() const { return header_.parameters.lanes; }
  uint32_t pins_max() const { return header_.parameters.pins_max; }
  uint64_t buckets() const { return layout_.buckets; }
  uint64_t overflow_buckets() const { return layout_.overflow_buckets; }
  bool has_checksums() const { return (header_.compat_flags & format::kCompatChecksums) != 0; }
  bool has_bound_checksums() const { return (header_.incompat_flags & format::kIncompatBoundChecksums) != 0; }
  bool has_metadata() const { return (header_.incompat_flags & format::kIncompatMetadata) != 0; }
  bool is_shared() const { return (header_.incompat_flags & format::kIncompatShared) != 0; }
  // Whether a block's words must be in memory before it is visible: flush.h.
  bool is_durable() const { return (header_.incompat_flags & format::kIncompatFlushed) != 0; }
  // Hosts, and the lanes that belong to each: docs/format.md, "Hosts".
  uint32_t hosts() const { return is_shared() ? header_.parameters.hosts : 1; }
  uint32_t lanes_per_host() const { return lanes() / hosts(); }
  uint32_t daemon_lane_of(uint32_t host) const { return host * lanes_per_host(); }
  uint32_t host_of_lane(uint32_t lane) const { return lane / lanes_per_host(); }  // hosts() or more: no host
  const uint64_t* secret() const { return header_.secret; }
  uint64_t page_offset(uint32_t page) const { return layout_.control_bytes + page * page_bytes(); }

  // A reference that comes from shared memory names a page only if this returns true.
  bool is_page(PageRef ref) const { return !ref.is_none() && ref.page() < pages(); }
  // Pages of the run whose head is `page`, from its block line: at least 1 and never beyond the page's region.
  uint32_t run_pages(uint32_t page) const;

  format::HostRecord& host(uint32_t i) const { return at<format::HostRecord>(format::kSectionHosts, i); }
  format::RegionRecord& region(uint32_t i) const { return at<format::RegionRecord>(format::kSectionRegions, i); }
  format::LaneBitmap& lane_bitmap() const {
    return *reinterpret_cast<format::LaneBitmap*>(section(format::kSectionLaneIdentities));
  }
  format::LaneIdentity& identity(uint32_t lane) const {
    return reinterpret_cast<format::LaneIdentity*>(section(format::kSectionLaneIdentities) +
                                                   sizeof(format::LaneBitmap))[lane];
  }
  format::PolicyEntry& policy(uint32_t page) const { return at<format::PolicyEntry>(format::kSectionPolicy, page); }
  std::span<format::PolicyEntry> policy_table() const { return {&policy(0), size_t(pages())}; }
  format::TenantRules& tenant_rules() const { return at<format::TenantRules>(format::kSectionTenants, 0); }
  format::TenantRecord& tenant(uint32_t i) const {
    return reinterpret_cast<format::TenantRecord*>(&tenant_rules() + 1)[i];
  }
  // The credit granted to an account.
  AtomicU64& credit(uint32_t lane, uint32_t account) const {
    return reinterpret_cast<AtomicU64*>(&tenant(parameters().tenants))[uint64_t(lane) * account_slots() + account];
  }
  format::BlockLine& block(uint32_t page) const { return blocks_[page]; }
  format::DetailLine& detail(uint32_t page) const { return at<format::DetailLine>(format::kSectionDetails, page); }
  format::Bucket& bucket(uint64_t i) const { return buckets_[i]; }
  format::Bucket& overflow(uint64_t i) const { return at<format::Bucket>(format::kSectionOverflow, i); }
  std::span<AtomicU64> key_cell(uint32_t page) const;
  AtomicU64& key_extent_owner(uint64_t extent) const { return at<AtomicU64>(format::kSectionKeyExtents, extent); }
  std::span<AtomicU64> key_extent(uint64_t extent) const;
  LaneView lane(uint32_t lane) const;
  // Parts of a lane, for a walk over many lanes.
  format::LaneHeader& lane_header(uint32_t lane) const {
    return *reinterpret_cast<format::LaneHeader*>(section(format::kSectionLanes) + lane * layout_.lane_bytes);
  }
  AtomicU64* lane_pins(uint32_t lane) const { return reinterpret_cast<AtomicU64*>(&lane_header(lane) + 1); }
  uint32_t account_slots() const { return layout_.account_slots; }
  format::LaneAccount& account(uint32_t lane, uint32_t i) const {
    std::byte* start = section(format::kSectionLanes) + lane * layout_.lane_bytes;
    return reinterpret_cast<format::LaneAccount*>(start + layout_.accounts_offset)[i];
  }

 private:
  std::byte* section(format::Section which) const { return base_ + layout_.sections[which].offset; }
  template <typename T>
  T& at(format::Section which, uint64_t index) const {
    return reinterpret_cast<T*>(section(which))[index];
  }
  void set(std::byte* base, const Header& header, const Layout& layout);

  std::byte* base_ = nullptr;
  format::BlockLine* blocks_ = nullptr;
  format::Bucket* buckets_ = nullptr;
  uint32_t region_shift_ = 0;
  Header header_{};
  Layout layout_{};
};

// FNV-1a, 64 bits: detects a torn or foreign header, nothing more.
uint64_t header_checksum(const Header& header);

}  // namespace maru::shm
