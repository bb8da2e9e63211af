#include "daemon/dax/fault_guard.h"

#include "maru/format/limits.h"

#include <atomic>
#include <csignal>
#include <sys/mman.h>

namespace maru::daemon {
namespace {

// One place per pool and as many again, because a pool is mapped twice for a moment while it grows.
constexpr int kPlaces = int(limits::kPoolsMax) * 2;

struct Place {
  std::atomic<uintptr_t> address{0};  // 0: free
  std::atomic<size_t> bytes{0};
  std::atomic<bool> fired{false};
};
Place places[kPlaces];
static_assert(std::atomic<uintptr_t>::is_always_lock_free, "the table is read in a signal handler");

void on_bus_error(int, siginfo_t* info, void*) {
  const auto fault = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Place& place : places) {
    const uintptr_t address = place.address.load(std::memory_order_acquire);
    const size_t bytes = place.bytes.load(std::memory_order_relaxed);
    if (address == 0 || fault < address || fault - address >= bytes) continue;
    void* replaced = ::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (replaced == MAP_FAILED) break;
    place.fired.store(true, std::memory_order_relaxed);
    return;
  }
  // Not ours: the instruction is repeated and meets the default action.
  ::signal(SIGBUS, SIG_DFL);
}

}  // namespace

bool FaultGuard::install() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  return installed;
}

bool FaultGuard::begin(std::byte* address, size_t bytes) {
  end();
  if (!install()) return false;
  for (int i = 0; i < kPlaces; ++i) {
    if (places[i].address.load(std::memory_order_relaxed) != 0) continue;
    places[i].fired.store(false, std::memory_order_relaxed);
    places[i].bytes.store(bytes, std::memory_order_relaxed);
    places[i].address.store(reinterpret_cast<uintptr_t>(address), std::memory_order_release);
    place_ = i;
    return true;
  }
  return false;
}

void FaultGuard::end() {
  if (place_ < 0) return;
  fired_ = fired_ || places[place_].fired.load(std::memory_order_relaxed);
  places[place_].address.store(0, std::memory_order_release);
  place_ = -1;
}

bool FaultGuard::has_fired() const {
  return fired_ || (place_ >= 0 && places[place_].fired.load(std::memory_order_relaxed));
}

}  // namespace maru::daemon
