// A marud of one of several hosts on a pool, through the functions of libmaru/shm alone: eviction, counting again, the watch
// over the other hosts, and taking back what a dead one held. As daemon/pool/hosts/hosts.cc and host_reclaims.cc do.
#pragma once

#include "cast.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/region/host_claim.h"

#include <array>
#include <cstdint>

namespace maru::sim::hosts {

inline constexpr uint32_t kHosts = kWorldHosts;
// The slot that another machine may have later, and that one with its processes.
inline constexpr uint32_t kRejoined = 1;
inline constexpr unsigned kLateMachine = kHosts, kLateMarud = 8, kLateClient = 9;

// What a schedule knows of its hosts.
struct HostPlay {
  uint32_t life = 1;  // generation of the claim of the marud that is at work in the slot
  unsigned taken_back_by = kHosts;
  bool is_declared_by_suspicion = false;
  uint16_t attempts = 0;
  std::array<shm::TouchReader, kHosts> readers;
};
extern std::array<HostPlay, kHosts> plays;
extern uint32_t late_life;                   // the one in which the late machine has its slot; 0: not yet
extern std::array<bool, kWorldKeys> may_go;  // keys that somebody deletes or evicts
extern std::array<uint32_t, kWorldPages>
    evictors;        // who are about to evict what is in a page, whatever that is by then;
                     // the dead count, too
void begin_hosts();  // a new schedule

uint32_t marud_lane(uint32_t host);
uint32_t client_lane(uint32_t host);
Client& marud_of(uint32_t host);
shm::LaneSet lanes_of(uint32_t host);
bool is_lost(uint32_t host);  // nobody is in the slot any more, since the machine is lost that had it
inline uint32_t number_of(void* argument) { return uint32_t(reinterpret_cast<uintptr_t>(argument)); }
inline void* argument_for(uint32_t number) { return reinterpret_cast<void*>(uintptr_t(number)); }

// What a look at the pages or at a dead lane finds, in arrays: the marud may die, and then nobody frees anything.
struct Findings final : shm::ReclaimSink {
  std::array<shm::Recount, 4 * kWorldPages> suspects;
  size_t suspect_count = 0;
  std::array<uint32_t, kWorldPages> orphans;
  size_t orphan_count = 0;

  void parent_suspect(PageRef parent) override {
    for (size_t i = 0; i < suspect_count; ++i)
      if (suspects[i].parent == parent) return;
    if (suspect_count < suspects.size()) suspects[suspect_count++].parent = parent;
  }
  void retired_taken(PageRef) override {}  // free_own_retired finds it
  void unregistered(PageRef ref) override { orphans[orphan_count++] = ref.page(); }
  void pages_freed(uint32_t) override {}
};

// The block that is in this page, by its line, may be gone at the end.
void note_going(uint32_t page);
void evict_as(uint32_t host, uint32_t page);
void evict_some(uint32_t host);
void free_own_retired(uint32_t host);
bool holds_retired(uint32_t host);
// Only parents in regions of this host; the others are asked for with a touch in marud's own lane.
void recount(uint32_t host, Findings& findings);
void serve_recounts(uint32_t host);

// A part of a turn: suspects the silent, and takes back what the dead held, of whose death there is proof.
void watch_others(uint32_t self);
bool has_work(uint32_t self);    // some of that is to be done
bool is_settled(uint32_t host);  // its client has ended, or its slot is free again

}  // namespace maru::sim::hosts
