// A control region of four pages and four lanes for the plays under relacy: lane 0 is marud's, the others are clients'.
#pragma once

#include "libmaru/base/check.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/region/page_run.h"
#include "tests/sim/relacy_memory.h"

#include <cstddef>
#include <cstring>

namespace maru::relacy {

using format::PageRef;
using format::PageState;
using shm::Digest;
using shm::LaneId;
using shm::PageWord;

class Pool {
 public:
  static constexpr uint32_t kPages = 4, kLanes = 4;
  static constexpr uint32_t kGeneration = 1;  // of every page at first

  // As it was formatted, with fresh private memory of every client.
  void begin() {
    if (!is_formatted_) format();
    std::memcpy(memory_, pristine_, region.layout().control_bytes);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      for (AtomicU32& count : counts_[lane]) count.raw = 0;
      pins[lane] = shm::PinTable(region, lane, counts_[lane]);
      contexts[lane].region = &region;
      contexts[lane].id = id_of(lane);
      contexts[lane].pins = &pins[lane];
      contexts[lane].intents_in_use.raw = 0;
    }
  }

  static LaneId id_of(uint32_t lane) { return {lane, 1}; }
  static PageRef ref_of(uint32_t page) { return PageRef::of(page, kGeneration); }
  void set_word(uint32_t page, PageWord word) { region.block(page).word.raw = word.bits; }

  shm::ControlRegion region;
  shm::PinTable pins[kLanes];
  shm::LaneContext contexts[kLanes];

 private:
  void format() {
    format::Parameters parameters{};
    parameters.pool_bytes = 1u << 20;
    parameters.page_bytes = limits::kPageBytesMin;
    parameters.region_pages = parameters.pages = kPages;
    parameters.lanes = kLanes;
    parameters.hosts = parameters.tenants = 1;
    parameters.pins_max = 8;
    parameters.touch_entries = 8;
    parameters.key_inline_bytes = limits::kKeyInlineMin;
    parameters.key_extents = 2;
    parameters.section_align = 4096;
    shm::FormatIdentity identity{};
    for (uint64_t& word : identity.secret) word = 0x0123456789abcdef * uint64_t(&word - identity.secret + 1);
    const char* problem = shm::ControlRegion::format(memory_, parameters, identity, false, &region);
    MARU_CHECK(problem == nullptr, "the region of the plays must be a valid one");
    for (uint32_t page = 0; page < kPages; ++page) set_word(page, PageWord::free(kGeneration));
    region.host(0).epoch.raw = 1;
    for (uint32_t lane = 0; lane < kLanes; ++lane) region.lane_bitmap().words[0].raw |= uint64_t{1} << lane;
    std::memcpy(pristine_, memory_, region.layout().control_bytes);
    is_formatted_ = true;
  }

  static constexpr size_t kMemoryBytes = 128u << 10;
  alignas(4096) std::byte memory_[kMemoryBytes];
  alignas(4096) std::byte pristine_[kMemoryBytes];
  AtomicU32 counts_[kLanes][24];
  bool is_formatted_ = false;
};

}  // namespace maru::relacy
