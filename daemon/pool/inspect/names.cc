#include "daemon/pool/inspect/names.h"

#include "daemon/base/json_text.h"
#include "maru/format/control_region.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace maru::daemon {

using shm::PageState;

const char* page_state_name(PageState state) {
  constexpr const char* kNames[] = {"out",   "free",     "reserved", "sealed",  "tail",
                                    "ready", "retiring", "retired",  "poisoned"};
  return uint32_t(state) < format::kPageStateCount ? kNames[uint32_t(state)] : "unknown";
}

std::string quoted_key(const shm::KeyBytes& key, size_t bytes_max) {
  return json_text(std::string(reinterpret_cast<const char*>(key.data), std::min<size_t>(key.size, bytes_max)));
}

}  // namespace maru::daemon
