// Bad memory in a pool. An administrator, a client that met it, or the kernel says that a page is bad. A page of payload
// becomes POISONED, by one CAS and for ever, and its block a miss; docs/format.md, "Poison", has the steps. The block's
// remaining holdings are let go when it has no pin and no block below it. This is checked in turns, with growing pauses, since
// a pin may last. No part of the control region can be taken away: the host of the pool fences it.
//
//   (1) A POISONED page never holds a block again.
//   (2) Each POISONED page of this host's regions is held here or was let go (LaneTable::let_go).
//   (3) Nothing can come below a POISONED page, so a walk begun after it was POISONED finds all blocks below it.
//
// Cost: a walk over the pool when a page went bad, then a walk after each pause while a block still holds something.
//
// Thread safety: one thread. If marud dies here: the page words say which pages are POISONED; the next marud takes all of them
// for not let go yet.
#pragma once

#include "daemon/pool/findings.h"
#include "daemon/pool/removal/trees.h"
#include "libmaru/shm/recovery/poison.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

class Poison {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    PoolFeed& feed;
    Findings& findings;
    Queues& queues;
    Trees& trees;
  };
  explicit Poison(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        feed_(below.feed),
        findings_(below.findings),
        queues_(below.queues),
        trees_(below.trees) {}
  Poison(const Poison&) = delete;
  Poison& operator=(const Poison&) = delete;
  void set_up() { known_.resize(core_.pages()); }

  shm::PoisonStatus poison(uint32_t page);
  // Returns true when there is more to do right away.
  bool step();
  // A page that the marud before left POISONED, or a block with one in its run.
  void adopt(uint32_t page);
  // Of a region that another host had before, or that no host has: perhaps no marud is left that lets it go.
  void know(uint32_t page);
  // A client met bad memory in this page. Returns a line for the log, or nothing.
  std::string report_bad_page(uint64_t page);

  // Bad pages that were being published at the report.
  const std::vector<uint32_t>& waiting() const { return waiting_; }
  struct Report {
    uint32_t page;
    uint64_t at_ms;
  };
  // By clients, and marud read these pages.
  const std::vector<Report>& reports() const { return reports_; }

 private:
  struct PoisonedPage {
    PageRef ref;
    std::optional<LaneId> filler;  // that may still write to pages behind it
    uint64_t filled_before;        // so may clients that arrived before this number
    enum class Others : uint8_t { kNone, kUnknown, kNoted } others = Others::kNone;  // so may clients of other hosts
  };

  void keep_poisoned(const PoisonedPage& poisoned);
  bool look_at_poison_heads();
  bool let_poison_go(const std::vector<bool>& has_below, uint64_t& budget);
  bool is_over(LaneId lane) const;
  void note_others();
  bool are_others_gone();

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  PoolFeed& feed_;
  Findings& findings_;
  Queues& queues_;
  Trees& trees_;
  std::vector<PoisonedPage> held_;  // their blocks still hold something
  PageBits known_;                  // in held_
  std::vector<uint32_t> others_;    // the clients that kNoted pages wait for: generations by lane, 0: none
  std::vector<PageRef> heads_;      // of runs with a bad page that were being filled
  size_t head_next_ = 0;            // of heads_
  std::vector<uint32_t> waiting_;
  std::vector<Report> reports_;
  uint64_t pause_ms_ = 0, again_ms_ = 0;
  std::optional<TreeWalk> walk_;  // the blocks below held_, as held_ was at the beginning
  // Letting go: the pages of held_ from here on are to be looked at. Its first part are the pages that were looked at and stay.
  size_t go_next_ = 0, go_kept_ = 0;
};

}  // namespace maru::daemon
