// Regions between hosts. A host that rents less than its share asks the host that rents the most (Grants::ask_other_hosts).
// That host's marud empties a region and makes it unused. Like a takeover (memory/takeovers.h) this goes on over turns, and
// each reads a bounded number of lines.
//
//   (1) A wish is answered once: with a region, or with the word that there is none to give.
//   (2) A region that is half emptied is emptied to its end, even if the wish ends.
//
// Cost: kWishLinesPerLook a look. Any client can write a wish, whenever the last wish was answered.
//
// Thread safety: one thread. If marud dies here: the wish stays, and the next marud begins again. It settles a half-emptied
// region by its pages.
#pragma once

#include "daemon/pool/memory/takeovers.h"

#include <cstdint>
#include <optional>

namespace maru::daemon {

class Wishes {
 public:
  Wishes(PoolCore& core, RegionTable& regions, Grants& grants, Takeovers& takeovers)
      : core_(core), regions_(regions), grants_(grants), takeovers_(takeovers) {}
  Wishes(const Wishes&) = delete;
  Wishes& operator=(const Wishes&) = delete;

  // Looks for a wish, or goes on with one.
  void answer();

 private:
  void begin_giving();
  bool step_giving();

  PoolCore& core_;
  RegionTable& regions_;
  Grants& grants_;
  Takeovers& takeovers_;
  uint32_t next_ = 0;  // region that is looked at next
  uint64_t bits_ = 0;  // the wish that is being answered
  std::optional<Takeover> giving_;
};

}  // namespace maru::daemon
