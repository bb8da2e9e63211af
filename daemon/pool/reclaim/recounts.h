// Counts the children of suspect parents again, so many parents in each pass over the pages. A death can leave a count too
// high, never too low, and then the parent would never go.
//
//   (1) While a parent's flag is set no process retires it.
//   (2) Until its pass is over a parent is out of the order, as if marud had read no use of it; then it gets its place.
//   (3) A count that a live client is about to change is put off until the client's next step.
//
// Cost: a pass over the pages for up to kRecountsAtOnce parents, in steps.
//
// Thread safety: one thread. If marud dies here: the flags stand in the page words, and the next marud counts again.
#pragma once

#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/findings.h"
#include "daemon/pool/lanes/lane_table.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class Recounts {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    RegionTable& regions;
    Findings& findings;
    Queues& queues;
  };
  explicit Recounts(const Below& below)
      : core_(below.core),
        lanes_(below.lanes),
        regions_(below.regions),
        findings_(below.findings),
        queues_(below.queues) {}
  Recounts(const Recounts&) = delete;
  Recounts& operator=(const Recounts&) = delete;

  // A step at a time, or a whole pass at once. Returns true when there is more to do right away.
  bool step(bool in_turns);
  bool is_under_way() const { return !recounts_.empty(); }
  // Without the pause for parents that were put off.
  void resume() { again_ms_ = 0; }

 private:
  enum class Part : uint8_t { kBegin, kPages, kCommit, kPlaces };
  bool begin(size_t most, size_t a_step);
  bool commit(size_t a_step);

  PoolCore& core_;
  LaneTable& lanes_;
  RegionTable& regions_;
  Findings& findings_;
  Queues& queues_;
  std::vector<shm::Recount> recounts_;  // the pass that is under way
  Part part_ = Part::kBegin;            // of it
  uint64_t next_ = 0;                   // page
  size_t settled_ = 0;                  // recounts whose counts are in; later, recounts whose parents have their places
  uint64_t again_ms_ = 0;
};

}  // namespace maru::daemon
