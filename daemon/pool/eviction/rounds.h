// Rounds over the words that readers leave. A round of touches reads each ring once and applies its touches; a pass
// looks at each held block once. A work that needs an exact order asks for the number of the next round, and waits
// until both have ended.
#pragma once

#include <cstdint>

namespace maru::daemon {

struct Rounds {
  uint64_t begun = 0, done = 0;  // of touches
  uint64_t wanted = 0;           // the last one for which a work waits
  // Passes over held blocks have the number of the last round of touches that had begun by then.
  uint64_t pass_wanted = 0;  // the lowest number for which a work waits, or lower than that, if one does
  uint64_t held_seen = 0;    // of the last pass that came to its end
};

}  // namespace maru::daemon
