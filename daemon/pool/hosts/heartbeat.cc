#include "daemon/pool/hosts/heartbeat.h"

#include "libmaru/shm/region/host_claim.h"

#include <chrono>

namespace maru::daemon {

uint64_t monotonic_ms() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return uint64_t(std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

Heartbeat::Heartbeat(const shm::ControlRegion& region, uint32_t host, uint32_t generation, uint64_t loop_hangs_ms)
    : region_(region), host_(host), generation_(generation), loop_hangs_ms_(loop_hangs_ms) {
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_one();
  thread_.join();
}

void Heartbeat::loop_turns() { turned_ms_.store(monotonic_ms(), std::memory_order_relaxed); }

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!ends_ && beat())
    wakes_.wait_for(lock, std::chrono::milliseconds(kHeartbeatPauseMs), [this] { return ends_; });
}

// False: never again.
bool Heartbeat::beat() {
  const shm::HostClaim claim = shm::read_claim(region_, host_);
  if (!claim.is_in_use() || claim.generation() != generation_) return false;
  const uint64_t turned_ms = turned_ms_.load(std::memory_order_relaxed);  // a late answer is one beat more
  if (turned_ms != 0 && monotonic_ms() - turned_ms > loop_hangs_ms_) return true;
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  region_.host(host_).heartbeat_ms.store_release(
      uint64_t(std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count()));
  return true;
}

}  // namespace maru::daemon
