// The commands of administrators that are about one pool. `request` is a JSON object, and so is the reply; errors are
// {"error": text}. Pool::admin() lists the commands.
//
//   (1) A command that changes something waits while a check at rest looks at the pool.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/inspect/audits.h"
#include "daemon/pool/inspect/bad_memory.h"
#include "daemon/pool/inspect/block_lists.h"
#include "daemon/pool/inspect/host_lists.h"
#include "daemon/pool/inspect/late_answers.h"
#include "daemon/pool/inspect/limit_commands.h"
#include "daemon/pool/inspect/pin_watch.h"
#include "daemon/pool/inspect/pool_status.h"
#include "daemon/pool/inspect/region_heat.h"
#include "daemon/pool/memory/evictions.h"
#include "daemon/pool/removal/deletions.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace maru::daemon {

class Administration {
 public:
  struct Below {
    PoolCore& core;
    PoolTenants& tenants;
    Deletions& deletions;
    Evictions& evictions;
    LateAnswers& late;
    Audits& audits;
    BlockLists& blocks;
    PinWatch& pin_watch;
    RegionHeat& heat;
    HostLists& host_lists;
    BadMemoryCommands& bad_memory;
    LimitCommands& limit_commands;
    PoolStatus& status;
  };
  explicit Administration(const Below& below)
      : core_(below.core),
        tenants_(below.tenants),
        deletions_(below.deletions),
        evictions_(below.evictions),
        late_(below.late),
        audits_(below.audits),
        blocks_(below.blocks),
        pin_watch_(below.pin_watch),
        heat_(below.heat),
        host_lists_(below.host_lists),
        bad_memory_(below.bad_memory),
        limit_commands_(below.limit_commands),
        status_(below.status) {}
  Administration(const Administration&) = delete;
  Administration& operator=(const Administration&) = delete;

  nlohmann::json run(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);

 private:
  nlohmann::json remove(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);
  nlohmann::json make_room(const nlohmann::json& request, uint64_t* ret_ticket);

  PoolCore& core_;
  PoolTenants& tenants_;
  Deletions& deletions_;
  Evictions& evictions_;
  LateAnswers& late_;
  Audits& audits_;
  BlockLists& blocks_;
  PinWatch& pin_watch_;
  RegionHeat& heat_;
  HostLists& host_lists_;
  BadMemoryCommands& bad_memory_;
  LimitCommands& limit_commands_;
  PoolStatus& status_;
};

}  // namespace maru::daemon
