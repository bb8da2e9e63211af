// The pages of a pool, mapped region by region on first use: for reading, or for writing once this client has pages there.
// One stretch of addresses is reserved for the whole pool, so a page's address never changes.
//
// A device may allow mappings only in multiples of an alignment, in its bytes as in addresses, while regions begin anywhere.
// So what is mapped for a region is every *chunk* of that alignment that it touches; neighbours share one. A chunk that was
// mapped stays so, and only ever gains the right to be written.
//
// Thread safety: any. map() enters the kernel the first time a region is used, and once more when it is first written.
#pragma once

#include "libmaru/base/mapping.h"
#include "libmaru/shm/control_region.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace maru::client {

class Payload {
 public:
  // `fd` stays the caller's and must outlive this; page 0 lies at `pages_offset` of it. `alignment`: a power of two; mappings
  // start and end on a multiple of it.
  static Result<std::unique_ptr<Payload>> reserve(int fd, uint64_t pages_offset, const shm::ControlRegion& region,
                                                  uint64_t alignment);

  // In a child of fork(), where these addresses are somebody else's by now.
  void abandon() { reserved_.forget(); }

  // The address of page 0.
  std::byte* base() const { return base_; }
  // Lets the memory of the pool go: from here on there is private, zeroed memory at every address, and the descriptor is not
  // used any more.
  bool let_go();

  // The address of a page whose region is mapped for reading (or writing), or nullptr if the kernel refused.
  std::byte* map(uint32_t page, bool writable) {
    const uint32_t state = states_[region_->region_of(page)].load_acquire();  // [pairs payload.state]
    if (state < (writable ? kWritable : kReadable) && !map_region(region_->region_of(page), writable)) return nullptr;
    return base_ + page * page_bytes_;
  }

  // Before a run of pages is filled for the first time by this process: has the kernel put huge pages behind it, where
  // pages are large enough for that. One call instead of 512 page faults for each 2 MiB, and copies run faster ever after.
  // A wish: where the kernel refuses once it is not asked again.
  void back_with_huge_pages(uint32_t page, uint32_t run_pages) {
    if (!collapses_.load(std::memory_order_relaxed)) return;  // a hint
    for (uint32_t i = 0; i < run_pages; ++i)
      if ((backed_[(page + i) / 64].load_relaxed() >> (page + i) % 64 & 1) == 0) collapse(page + i);  // a hint
  }

 private:
  enum State : uint32_t { kUnmapped, kReadable, kWritable };
  Payload() = default;
  bool map_region(uint32_t region, bool writable);
  bool map_chunks(uint64_t first, uint64_t end, State before, State wanted);
  void collapse(uint32_t page);

  const shm::ControlRegion* region_ = nullptr;
  uint64_t page_bytes_ = 0;
  uint64_t alignment_ = 0;
  uint64_t first_chunk_ = 0;  // of the device, that holds the first byte of page 0
  int fd_ = -1;
  int map_flags_ = 0;
  Mapping reserved_;
  std::byte* base_ = nullptr;        // of page 0
  std::byte* chunk_base_ = nullptr;  // where first_chunk_ is mapped
  std::unique_ptr<AtomicU32[]> states_;
  std::vector<State> chunks_;  // under mapping_; empty when every region is made of whole chunks
  std::atomic<bool> collapses_{false};
  std::unique_ptr<AtomicU64[]> backed_;  // a bit for each page that was collapsed
  std::mutex mapping_;
};

}  // namespace maru::client
