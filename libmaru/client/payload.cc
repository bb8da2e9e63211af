#include "libmaru/client/payload.h"

#include <cerrno>

namespace maru::client {
namespace {
constexpr uint64_t kHugePage = 2ull << 20;
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; not yet in the C library's header
#endif
}  // namespace

Result<std::unique_ptr<Payload>> Payload::reserve(int fd, const shm::ControlRegion& region, uint64_t alignment) {
  if (region.region_pages() * region.page_bytes() % alignment != 0)
    return failure(EINVAL, "map regions that are not a multiple of the device's alignment");
  auto payload = std::unique_ptr<Payload>(new Payload);
  const uint64_t bytes = region.pages() * region.page_bytes();
  const uint64_t reserve_bytes = bytes + kHugePage;
  void* address = ::mmap(nullptr, reserve_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return failure(errno, "reserve " + std::to_string(reserve_bytes) + " bytes of addresses");
  payload->reserved_ = Mapping(static_cast<std::byte*>(address), reserve_bytes);
  // The file offset and the address agree modulo a huge page, or the kernel cannot map one.
  const uint64_t wanted = region.page_offset(0) % kHugePage;
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  const uint64_t shift = (wanted + kHugePage - start % kHugePage) % kHugePage;
  payload->base_ = payload->reserved_.data() + shift;
  ::madvise(address, reserve_bytes, MADV_DONTFORK);
  payload->region_ = &region;
  payload->page_bytes_ = region.page_bytes();
  payload->fd_ = fd;
  payload->states_ = std::make_unique<AtomicU32[]>(region.regions());
  // Memory that has its own page size needs none of this.
  if (region.page_bytes() % kHugePage == 0 && region.page_offset(0) % kHugePage == 0 && alignment < kHugePage) {
    payload->backed_ = std::make_unique<AtomicU64[]>((region.pages() + 63) / 64);
    payload->collapses_ = true;
  }
  return payload;
}

bool Payload::map_region(uint32_t index, bool writable) {
  const std::lock_guard lock(mapping_);
  const uint32_t wanted = writable ? kWritable : kReadable;
  if (states_[index].load_relaxed() >= wanted) return true;  // under the lock
  const uint64_t bytes = region_->region_pages() * page_bytes_;
  const uint32_t first = index * region_->region_pages();
  std::byte* address = base_ + first * page_bytes_;
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  if (states_[index].load_relaxed() == kUnmapped) {  // under the lock
    if (::mmap(address, bytes, protection, MAP_SHARED | MAP_FIXED, fd_, off_t(region_->page_offset(first))) ==
        MAP_FAILED)
      return false;
    ::madvise(address, bytes, MADV_DONTFORK);
    ::madvise(address, bytes, MADV_HUGEPAGE);  // a wish; refused where the memory has its own page size
  } else if (::mprotect(address, bytes, protection) != 0) {
    return false;
  }
  states_[index].store_release(wanted);  // [pairs payload.state]
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
