#include "daemon/memory/fault_guard.h"

#include "maru/format/limits.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <mutex>
#include <sys/mman.h>
#include <sys/prctl.h>

namespace maru::daemon {
namespace {

// Two per pool, because a pool is mapped twice for a moment while it grows, and one per pool for other ranges.
constexpr int kPlaces = int(limits::kPoolsMax) * 3;
// The smallest and the largest page that a memory error can take away.
constexpr unsigned kPageBitsMin = 12, kPageBitsMax = 30;

struct Place {
  std::atomic<uintptr_t> address{0};  // 0: free
  std::atomic<size_t> bytes{0};
  std::atomic<size_t> alignment{0};
  std::atomic<bool> fired{false};
  std::atomic<int> bad_count{0};
  std::atomic<uint64_t> bad[FaultGuard::kBadMax] = {};  // offset | bits of the size; 0: not noted yet
};
Place places[kPlaces];
std::mutex choosing;  // of a free place; the handler takes no lock
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free,
              "the table is read in a signal handler");

bool replace(uintptr_t address, size_t bytes) {
  return ::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

void note(Place& place, uint64_t offset, unsigned bits) {
  const uint64_t entry = offset | bits;
  const int count = std::min(place.bad_count.load(std::memory_order_acquire), FaultGuard::kBadMax);
  for (int i = 0; i < count; ++i)
    if (place.bad[i].load(std::memory_order_relaxed) == entry) return;
  const int index = place.bad_count.fetch_add(1, std::memory_order_acq_rel);
  if (index < FaultGuard::kBadMax)
    place.bad[index].store(entry, std::memory_order_release);
  else
    place.fired.store(true, std::memory_order_relaxed);
}

// Handles a memory error in this place. False: the bad memory could not be replaced.
bool take_bad_memory(Place& place, uintptr_t address, size_t bytes, uintptr_t fault, unsigned bits, bool is_touched) {
  bits = std::clamp(bits, kPageBitsMin, kPageBitsMax);
  while ((size_t(1) << bits) < place.alignment.load(std::memory_order_relaxed) && bits < kPageBitsMax) ++bits;
  const size_t size = size_t(1) << bits;
  // A page may reach beyond the mapping: then the mapping has a part of it.
  const uintptr_t start = std::max(address, fault / size * size);
  const uintptr_t end = std::min(address + bytes, fault / size * size + size);
  if (is_touched && !replace(start, end - start)) return false;
  note(place, start - address, bits);
  return true;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const auto fault = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool is_early = info->si_code == BUS_MCEERR_AO;
  for (Place& place : places) {
    const uintptr_t address = place.address.load(std::memory_order_acquire);
    const size_t bytes = place.bytes.load(std::memory_order_acquire);
    if (address == 0 || fault < address || fault - address >= bytes) continue;
    if (place.address.load(std::memory_order_acquire) != address)
      continue;  // another thread's new guard: not these bytes
    if (is_early || info->si_code == BUS_MCEERR_AR) {
      if (take_bad_memory(place, address, bytes, fault, unsigned(info->si_addr_lsb), !is_early)) return;
      break;
    }
    if (!replace(address, bytes)) break;
    place.fired.store(true, std::memory_order_relaxed);
    return;
  }
  if (is_early) return;  // memory of no pool; the process that touches it gets its own signal
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
    // An early notice, so that a pool is fenced before any thread reads zeros. A wish: kernels without it tell later.
    ::prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0);
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  return installed;
}

bool FaultGuard::begin(std::byte* address, size_t bytes, size_t alignment) {
  end();
  if (!install()) return false;
  const std::lock_guard one_at_a_time(choosing);
  for (int i = 0; i < kPlaces; ++i) {
    Place& place = places[i];
    if (place.address.load(std::memory_order_relaxed) != 0) continue;
    place.fired.store(false, std::memory_order_relaxed);
    for (auto& bad : place.bad) bad.store(0, std::memory_order_relaxed);
    place.bad_count.store(0, std::memory_order_relaxed);
    place.alignment.store(alignment, std::memory_order_relaxed);
    place.bytes.store(bytes, std::memory_order_release);  // a reader of it also sees that the place was given up before
    place.address.store(reinterpret_cast<uintptr_t>(address), std::memory_order_release);
    place_ = i;
    return true;
  }
  return false;
}

void FaultGuard::end() {
  if (place_ < 0) return;
  const std::lock_guard one_at_a_time(choosing);
  bad_ = bad_memory();
  fired_ = fired_ || places[place_].fired.load(std::memory_order_relaxed);
  places[place_].address.store(0, std::memory_order_release);
  place_ = -1;
}

bool FaultGuard::has_fired() const {
  return fired_ || (place_ >= 0 && places[place_].fired.load(std::memory_order_relaxed));
}

std::vector<BadMemory> FaultGuard::bad_memory() const {
  std::vector<BadMemory> all = bad_;
  if (place_ < 0) return all;
  const Place& place = places[place_];
  const int count = std::min(place.bad_count.load(std::memory_order_acquire), kBadMax);
  for (int i = 0; i < count; ++i) {
    const uint64_t entry = place.bad[i].load(std::memory_order_acquire);
    if (entry == 0) continue;  // being noted by another thread
    const BadMemory bad = {entry & ~uint64_t{0xFFF}, uint64_t{1} << (entry & 0xFFF)};
    if (std::find(all.begin(), all.end(), bad) == all.end()) all.push_back(bad);
  }
  return all;
}

}  // namespace maru::daemon
