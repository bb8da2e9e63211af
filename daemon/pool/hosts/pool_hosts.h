// A marud's view of another host of a shared pool, and the waits before each of its steps.
#pragma once

#include "daemon/pool/hosts/heartbeat.h"
#include "libmaru/shm/region/host_claim.h"

#include <cstdint>
#include <string>

namespace maru::daemon {

inline constexpr uint64_t kHostLookPauseMs = 200;
// Looks that find a heartbeat unchanged before the host counts as silent: a marud that did not look does not know.
inline constexpr uint32_t kSilentLooks = 3;
// A fencing command that failed is run again after this, while its host stays suspect.
inline constexpr uint64_t kFencePauseMs = 60'000;
// A machine that was fenced with success is not fenced again for so long. Any client can write a heartbeat that stands still.
inline constexpr uint64_t kFencedRestMs = 600'000;
// Another host with this machine id shows its heartbeat at least once in this time.
inline constexpr uint64_t kTwinWatchMs = 2500;

// Page words that a look for a region to give up reads. Any client can write a wish, whenever the last one was answered.
inline constexpr uint64_t kWishLinesPerLook = 1u << 16;

// Times are monotonic_ms() of this host.
struct HostWatch {
  shm::HostClaim claim;      // as last seen
  uint64_t heartbeat = 0;    // and so
  uint64_t changed_ms = 0;   // when one of the two was last found changed
  uint32_t looks = 0;        // since then
  uint64_t fence_at_ms = 0;  // of a suspect host: not before; 0: not decided yet
  // The host's name when its heart was first seen to beat in the life `named_in`. Any client may write a later name there.
  std::string name;
  uint32_t named_in = 0;

  bool beats(shm::HostClaim found, uint64_t beat) const {
    return found.is_in_use() && found.generation() == claim.generation() && beat != heartbeat;
  }
  bool is_met() const { return named_in == claim.generation(); }
  void look(shm::HostClaim found, uint64_t beat, uint64_t now_ms) {
    if (found != claim || beat != heartbeat) {
      changed_ms = now_ms;
      looks = 0;
    } else {
      ++looks;
    }
    if (!found.is(shm::HostState::kSuspect)) fence_at_ms = 0;
    claim = found;
    heartbeat = beat;
  }
  bool is_silent(uint64_t now_ms, uint64_t for_ms) const {
    return looks >= kSilentLooks && now_ms - changed_ms > for_ms;
  }
};

}  // namespace maru::daemon
