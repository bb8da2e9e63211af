// What a marud knows about the hosts of a shared pool, for the pool*.cc files alone.
#pragma once

#include "daemon/base/log_budget.h"
#include "daemon/pool/core.h"
#include "daemon/pool/hosts/fencing.h"
#include "daemon/pool/hosts/heartbeat.h"
#include "libmaru/shm/region/host_claim.h"
#include "libmaru/shm/region/page_word.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  // As it called itself when its heart was first seen to beat in the life `named_in`. What stands there later may be anybody's.
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

struct HostReclaim {
  uint32_t host = kNoHost;
  shm::HostClaim claim;        // DEAD, as it must stay: whoever changes it takes the rest back, or has done so
  uint32_t next_unpinned = 0;  // lane, counted from the host's first one
  uint64_t next_page = 0;
  uint64_t next_bucket = 0;
  uint64_t next_compared = 0;  // page whose count of children is compared next
  size_t next_inherited = 0;   // of `inherited`
  uint64_t next_overflow = 0;  // overflow bucket
  uint32_t next_cleared = 0;   // lane
  uint32_t repaired_entries = 0;
  std::vector<uint32_t> children;     // by page, as the children say
  std::vector<uint32_t> inherited;    // regions
  std::vector<shm::PageRef> parents;  // whose counts may be too high
};

struct PoolHosts {
  uint64_t machine_id = 0;
  std::string boot_text, machine_text;  // for people and the fencing command
  std::string lost_because;
  std::vector<HostWatch> watches;
  uint32_t wish_next = 0;  // region that is looked at next for who asks
  uint64_t wish_bits = 0;  // the wish that is being answered
  HostReclaim reclaim;
  std::vector<uint32_t> waiting;  // dead, ours to take back, not begun
  uint64_t reclaimed = 0;         // hosts
  uint64_t now_ms = 0;            // monotonic, of the look that is under way
  uint64_t last_look_ms = 0;
  std::unique_ptr<Heartbeat> heartbeat;
  // What the words of hosts say, which any client can write as often as it likes.
  LogBudget comings{LogLevel::kInfo, "comings and goings of hosts", 32, 32};
  LogBudget alarms{LogLevel::kWarning, "alarms about hosts", 16, 16};
  std::unique_ptr<Fencing> fencing;
  uint32_t fenced_host = kNoHost;
  uint32_t fenced_generation = 0;
  std::string fenced_name;
  struct Fenced {
    uint32_t host;
    std::string name;
    uint64_t rests_until_ms;
  };
  std::vector<Fenced> fenced;  // with success, a while ago at most

  // When a host of this slot or this name may be fenced; 0: now.
  uint64_t rests_until_ms(uint32_t host, const std::string& name) {
    std::erase_if(fenced, [&](const Fenced& one) { return one.rests_until_ms <= now_ms; });
    uint64_t until_ms = 0;
    for (const Fenced& one : fenced)
      if (one.host == host || one.name == name) until_ms = std::max(until_ms, one.rests_until_ms);
    return until_ms;
  }
};

}  // namespace maru::daemon
