// Reclaim of a whole host, after the proof of its death (hosts.h) and with the claim that names this marud. The numbers are the
// step numbers of docs/format.md. In turns of bounded size; clients of this host store and read meanwhile.
//
//   (1) One host is taken back at a time; the others wait.
//   (2) The claim says DEAD and names this life of this host until the end. If it changes, the rest is another host's to do.
//
// Cost: a pass over the pages, the registry and the host's lanes.
//
// Thread safety: one thread. If marud dies here: the claim still says DEAD and names this host, so the next marud begins again.
#pragma once

#include "daemon/pool/eviction/recency.h"
#include "daemon/pool/memory/grants.h"
#include "libmaru/shm/region/host_claim.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

struct HostReclaim {
  uint32_t host = kNoHost;
  shm::HostClaim claim;        // DEAD, as it must stay: a host that changes it takes the rest back, or has done so
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
  std::vector<shm::PageRef> parents;  // parents whose counts may be too high
};

class HostReclaims {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolTenants& tenants;
    Findings& findings;
    Queues& queues;
    Recency& recency;
    Grants& grants;
  };
  explicit HostReclaims(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        tenants_(below.tenants),
        findings_(below.findings),
        queues_(below.queues),
        recency_(below.recency),
        grants_(below.grants) {}
  HostReclaims(const HostReclaims&) = delete;
  HostReclaims& operator=(const HostReclaims&) = delete;

  void begin(uint32_t host);
  void add(uint32_t host) { waiting_.push_back(host); }
  bool is_known(uint32_t host) const;
  // Begins with the next waiting host when no host is being taken back.
  void begin_next();
  // Returns true when there is more to do right away.
  bool step(uint64_t count);

  bool is_busy() const { return now_.host != kNoHost || !waiting_.empty(); }
  uint32_t host() const { return now_.host; }  // that is being taken back
  uint64_t reclaimed() const { return reclaimed_; }

 private:
  template <typename Take>
  bool take_dead_lanes(uint32_t& next, uint64_t count, Take&& take);
  bool compare_children(uint64_t count);
  bool settle_inherited(uint64_t count);
  bool release_overflow(uint64_t count);
  bool drop();
  void finish();

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolTenants& tenants_;
  Findings& findings_;
  Queues& queues_;
  Recency& recency_;
  Grants& grants_;
  HostReclaim now_;
  std::vector<uint32_t> waiting_;  // dead, ours to take back, not begun
  uint64_t reclaimed_ = 0;         // hosts
};

}  // namespace maru::daemon
