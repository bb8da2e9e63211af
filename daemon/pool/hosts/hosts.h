// The watch over the other hosts of a pool, and the reaction when a host falls silent. docs/format.md, "Hosts", has the words
// and the steps.
//
// A heartbeat that stands still makes a host suspect and nothing more, for a host that is slow or cut off goes on writing into
// pages that it holds. Only proof takes anything from it: the fencing command, an administrator, or its own next boot.
//
//   (1) A fencing command gets the name by which the host was met in this life, and only a name of the configuration.
//   (2) A machine that was fenced with success is not fenced again for kFencedRestMs.
//
// Cost: a look at each host and each region's word, kHostLookPauseMs apart.
//
// Thread safety: one thread.
#pragma once

#include "daemon/base/log_budget.h"
#include "daemon/pool/hosts/fencing.h"
#include "daemon/pool/hosts/host_reclaims.h"
#include "daemon/pool/hosts/own_slot.h"
#include "daemon/pool/hosts/pool_hosts.h"
#include "daemon/pool/hosts/wishes.h"
#include "daemon/pool/memory/drain.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace maru::daemon {

class Hosts {
 public:
  struct Below {
    PoolCore& core;
    RegionTable& regions;
    Queues& queues;
    Drain& drain;
    OwnSlot& slot;
    HostReclaims& reclaims;
    Wishes& wishes;
  };
  explicit Hosts(const Below& below)
      : core_(below.core),
        regions_(below.regions),
        queues_(below.queues),
        drain_(below.drain),
        slot_(below.slot),
        reclaims_(below.reclaims),
        wishes_(below.wishes) {}
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  void set_up() { watches_.assign(core_.region.hosts(), {}); }

  // A turn of a shared pool.
  void watch();
  // Looks at the other hosts' regions, rented and given up. marud writes the words of its own regions. A word that says
  // otherwise was inherited by a host that took this host for dead, or scribbled on, and is left to that host.
  void look_at_regions();
  // After proof of the death of this generation of the host. False if that generation is not in use any more, or another marud
  // was faster: a proof takes its time, in which the machine may have come back.
  bool declare_dead(uint32_t host, uint32_t generation, const std::string& proof);

 private:
  void watch_host(uint32_t host);
  void log_change(uint32_t host, shm::HostClaim from, shm::HostClaim to);
  void suspect_if_silent(uint32_t host);
  void fence_if_suspect(uint32_t host);
  void take_over_reclaim(uint32_t host);
  std::string why_not_fenced(uint32_t host, const std::string& name) const;
  uint64_t rests_until_ms(uint32_t host, const std::string& name);
  void start_fencing(uint32_t host);
  void watch_fencing();

  PoolCore& core_;
  RegionTable& regions_;
  Queues& queues_;
  Drain& drain_;
  OwnSlot& slot_;
  HostReclaims& reclaims_;
  Wishes& wishes_;
  std::vector<HostWatch> watches_;
  uint64_t now_ms_ = 0;  // monotonic, of the look that is under way
  uint64_t last_look_ms_ = 0;
  LogBudget comings_{LogLevel::kInfo, "comings and goings of hosts", 32, 32};
  std::unique_ptr<Fencing> fencing_;
  // The host that fencing_ is about.
  uint32_t fenced_host_ = kNoHost;
  uint32_t fenced_generation_ = 0;
  std::string fenced_name_;
  struct Fenced {
    uint32_t host;
    std::string name;
    uint64_t rests_until_ms;
  };
  std::vector<Fenced> fenced_;  // with success, a while ago at most
};

}  // namespace maru::daemon
