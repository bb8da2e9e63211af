// The pages of a pool, mapped to be read, all at once; and region by region to be written, once this client has pages there.
// So finding a block never enters the kernel, and a page's address never changes.
//
// A device may allow mappings only in multiples of an alignment, in its bytes as in addresses, while regions begin anywhere.
// So a mapping covers every *chunk* of that alignment that a region touches, and so does the right to write; neighbours share a
// chunk. A chunk only ever gains the right to be written.
//
// Thread safety: any. writable() enters the kernel the first time that a region is written.
#pragma once

#include "libmaru/base/mapping.h"
#include "libmaru/shm/region/control_region.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace maru::client {

class Payload {
 public:
  // `fd` stays the caller's, and is not used afterwards; page 0 lies at `pages_offset` of it. `alignment`: a power of two;
  // mappings start and end on a multiple of it.
  static Result<std::unique_ptr<Payload>> map(int fd, uint64_t pages_offset, const shm::ControlRegion& region,
                                              uint64_t alignment);

  // The address of page 0.
  std::byte* base() const { return base_; }
  // All that is mapped of the pool, which begins and ends on a multiple of the alignment.
  std::span<std::byte> mapped() const { return {chunk_base_, chunks_ * alignment_}; }
  // Lets the memory of the pool go: from here on there is private, zeroed memory at every address.
  bool let_go();

  // The address of a page, to be read.
  std::byte* at(uint32_t page) const { return base_ + page * page_bytes_; }
  // The same, to be written; or nullptr if the kernel refused.
  std::byte* writable(uint32_t page) {
    const uint32_t index = region_->region_of(page);
    if (is_writable_[index].load_acquire() == 0 && !make_writable(index)) return nullptr;  // [pairs payload.writable]
    return at(page);
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
  Payload() = default;
  bool make_writable(uint32_t region);
  bool make_chunks_writable(uint64_t first, uint64_t end);
  void collapse(uint32_t page);

  const shm::ControlRegion* region_ = nullptr;
  uint64_t page_bytes_ = 0;
  uint64_t alignment_ = 0;
  uint64_t chunks_ = 0;
  Mapping reserved_;
  std::byte* base_ = nullptr;                 // of page 0
  std::byte* chunk_base_ = nullptr;           // of the chunk that holds its first byte
  std::unique_ptr<AtomicU32[]> is_writable_;  // by region
  std::vector<bool> writable_chunks_;         // under mapping_; empty when every region is made of whole chunks
  std::atomic<bool> collapses_{false};
  std::unique_ptr<AtomicU64[]> backed_;  // a bit for each page that was collapsed
  std::mutex mapping_;
};

}  // namespace maru::client
