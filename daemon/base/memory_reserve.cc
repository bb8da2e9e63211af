#include "daemon/base/memory_reserve.h"

#include <atomic>
#include <new>
#include <sys/mman.h>

namespace maru::daemon {
namespace {

std::atomic<void*> reserve = nullptr;
std::atomic<bool> is_used = false;

// Address space under a limit on it, and untouched. It costs no memory. So under a limit on memory alone (a control group) it
// does not help, and the kernel ends marud there.
void* take() {
  void* const memory = ::mmap(nullptr, MemoryReserve::kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void give() {
  void* const memory = reserve.exchange(nullptr);
  if (!memory) throw std::bad_alloc();
  is_used = true;
  ::munmap(memory, MemoryReserve::kBytes);
}

}  // namespace

void MemoryReserve::set_aside() {
  reserve = take();
  if (reserve) std::set_new_handler(give);
}

bool MemoryReserve::is_whole() {
  if (!is_used) return true;
  void* const memory = take();
  if (!memory) return false;
  reserve = memory;
  is_used = false;
  return true;
}

}  // namespace maru::daemon
