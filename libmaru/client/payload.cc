#include "libmaru/client/payload.h"

#include "libmaru/base/map_sync.h"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>

namespace maru::client {
namespace {
constexpr uint64_t kHugePage = 2ull << 20;
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; not yet in the C library's header
#endif
}  // namespace

Result<std::unique_ptr<Payload>> Payload::map(int fd, uint64_t pages_offset, const shm::ControlRegion& region,
                                              uint64_t alignment) {
  auto payload = std::unique_ptr<Payload>(new Payload);
  const uint64_t bytes = region.pages() * region.page_bytes();
  const uint64_t begin = pages_offset, end = begin + bytes;
  // A read-only client still writes the header. A store beyond the end of a file is SIGBUS for its thread.
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return failure(errno, "inspect the memory of the pages");
  if (S_ISREG(status.st_mode) && end > uint64_t(status.st_size))
    return failure(EBADMSG, "map the pages: found " + std::to_string(status.st_size) + " bytes, expected " +
                                std::to_string(end) + ", as the control region says");
  payload->alignment_ = alignment;
  const uint64_t first_chunk = begin / alignment;  // of the device, that holds the first byte of page 0
  const uint64_t before = begin % alignment;       // of page 0 in its chunk
  const uint64_t chunks = (end + alignment - 1) / alignment - first_chunk;
  payload->chunks_ = chunks;
  // The offset in the device and the address agree modulo a huge page, or the kernel cannot map one.
  const uint64_t step = std::max(alignment, kHugePage);
  const uint64_t reserve_bytes = chunks * alignment + step;
  void* address = ::mmap(nullptr, reserve_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    return mapping_failure(errno, "reserve " + std::to_string(reserve_bytes) + " bytes of addresses");
  payload->reserved_ = Mapping(static_cast<std::byte*>(address), reserve_bytes);
  const uint64_t wanted = first_chunk * alignment % step;
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  payload->chunk_base_ = payload->reserved_.data() + (wanted + step - start % step) % step;
  payload->base_ = payload->chunk_base_ + before;
  const int flags = shared_map_flags(fd, alignment) | MAP_FIXED;
  if (map_untouched(payload->chunk_base_, chunks * alignment, PROT_READ, flags, fd, off_t(first_chunk * alignment)) ==
      MAP_FAILED) {
    const int code = errno;
    payload->reserved_.forget();  // the kernel may have unmapped the place, and given it to another thread
    return mapping_failure(code, "map " + std::to_string(chunks * alignment) + " bytes of pages");
  }
  leave_out_of_dumps(payload->chunk_base_, chunks * alignment);
  ::madvise(address, reserve_bytes, MADV_DONTFORK);
  ::madvise(payload->chunk_base_, chunks * alignment, MADV_HUGEPAGE);  // a wish; refused where memory has its page size
  payload->region_ = &region;
  payload->page_bytes_ = region.page_bytes();
  payload->is_writable_ = std::make_unique<AtomicU32[]>(region.regions());
  if (before != 0 || region.region_pages() * region.page_bytes() % alignment != 0)
    payload->writable_chunks_.assign(chunks, false);
  // Memory that has its own page size needs none of this.
  if (region.page_bytes() % kHugePage == 0 && pages_offset % kHugePage == 0 && alignment < kHugePage) {
    payload->backed_ = std::make_unique<AtomicU64[]>((region.pages() + 63) / 64);
    payload->collapses_ = true;
  }
  return payload;
}

// Under the lock.
bool Payload::make_chunks_writable(uint64_t first, uint64_t end) {
  return ::mprotect(chunk_base_ + first * alignment_, (end - first) * alignment_, PROT_READ | PROT_WRITE) == 0;
}

bool Payload::make_writable(uint32_t index) {
  const std::lock_guard lock(mapping_);
  if (is_writable_[index].load_relaxed() != 0) return true;  // under the lock
  const uint64_t bytes = region_->region_pages() * page_bytes_;
  const uint64_t begin = uint64_t(base_ - chunk_base_) + index * bytes;
  const uint64_t first = begin / alignment_, end = (begin + bytes + alignment_ - 1) / alignment_;
  if (writable_chunks_.empty()) {
    if (!make_chunks_writable(first, end)) return false;
  } else {
    for (uint64_t chunk = first; chunk < end; ++chunk) {
      if (writable_chunks_[chunk]) continue;
      if (!make_chunks_writable(chunk, chunk + 1)) return false;
      writable_chunks_[chunk] = true;
    }
  }
  is_writable_[index].store_release(1);  // [pairs payload.writable]
  return true;
}

bool Payload::let_go() {
  const std::lock_guard lock(mapping_);
  if (!map_zeros_over(reserved_.data(), reserved_.size())) return false;
  ::madvise(reserved_.data(), reserved_.size(), MADV_DONTFORK);
  for (uint32_t i = 0; i < region_->regions(); ++i) is_writable_[i].store_release(1);  // [pairs payload.writable]
  collapses_.store(false);
  return true;
}

void Payload::collapse(uint32_t page) {
  AtomicU64& bits = backed_[page / 64];
  uint64_t before = bits.load_relaxed();  // the CAS decides
  while (!bits.cas_relaxed(before, before | 1ull << page % 64)) {
  }
  std::byte* address = base_ + page * page_bytes_;
  const uint64_t os_page = 4096;
  for (uint64_t at = 0; at < page_bytes_; at += kHugePage)
    if (::madvise(address + at, os_page, MADV_POPULATE_WRITE) != 0) return collapses_.store(false);  // a hole stays one
  if (::madvise(address, page_bytes_, MADV_COLLAPSE) != 0 && errno != EAGAIN && errno != ENOMEM)
    collapses_.store(false);
}

}  // namespace maru::client
