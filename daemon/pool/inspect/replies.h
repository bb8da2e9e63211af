// The results of administrators' commands, as replies.
#pragma once

#include "daemon/pool/memory/evictions.h"
#include "daemon/pool/removal/deletions.h"

#include <nlohmann/json.hpp>

namespace maru::daemon {

inline nlohmann::json removed_json(const Removal& removal) {
  if (!removal.is_whole) return {{"deleted_blocks", removal.deleted}, {"left_blocks", removal.left}};
  return {{"deleted_blocks", removal.deleted},
          {"deleted_when_unpinned", removal.retired},
          {"left_blocks", removal.left - removal.retired}};
}

inline nlohmann::json evicted_json(const Evicted& evicted) {
  return {{"evicted_blocks", evicted.blocks}, {"evicted_pages", evicted.pages}};
}

}  // namespace maru::daemon
