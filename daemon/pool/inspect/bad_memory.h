// Bad memory as administrators say it and see it.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/inspect/block_lists.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/removal/poison.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace maru::daemon {

class BadMemoryCommands {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    Poison& poison;
    BlockLists& blocks;
  };
  explicit BadMemoryCommands(const Below& below)
      : core_(below.core), lanes_(below.lanes), poison_(below.poison), blocks_(below.blocks) {}
  BadMemoryCommands(const BadMemoryCommands&) = delete;
  BadMemoryCommands& operator=(const BadMemoryCommands&) = delete;

  nlohmann::json poison_page(const nlohmann::json& request);
  nlohmann::json list(const nlohmann::json& request);

 private:
  PoolCore& core_;
  LaneTable& lanes_;
  Poison& poison_;
  BlockLists& blocks_;
};

}  // namespace maru::daemon
