#include "daemon/pool/inspect/names.h"

#include "maru/format/control_region.h"

namespace maru::daemon {

using shm::PageState;

const char* page_state_name(PageState state) {
  constexpr const char* kNames[] = {"out",   "free",     "reserved", "sealed",  "tail",
                                    "ready", "retiring", "retired",  "poisoned"};
  return uint32_t(state) < format::kPageStateCount ? kNames[uint32_t(state)] : "unknown";
}

}  // namespace maru::daemon
