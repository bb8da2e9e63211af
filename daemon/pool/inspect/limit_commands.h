// Limits of tenants that administrators set, one after the other, in the order in which they came: the next one changes what
// the one before has left.
//
//   (1) A limit is answered when it is written down. A thread of PoolTenants writes.
//
// Thread safety: one thread. If marud dies here: limits that were answered are written down.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/inspect/late_answers.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

namespace maru::daemon {

class LimitCommands {
 public:
  struct Below {
    PoolCore& core;
    PoolTenants& tenants;
    LateAnswers& late;
  };
  explicit LimitCommands(const Below& below) : core_(below.core), tenants_(below.tenants), late_(below.late) {}
  LimitCommands(const LimitCommands&) = delete;
  LimitCommands& operator=(const LimitCommands&) = delete;

  nlohmann::json run(const std::string& command, const nlohmann::json& request, uint64_t* ret_ticket);
  void step();
  bool is_busy() const { return !waiting_.empty(); }

 private:
  struct QuotaCommand {
    uint64_t ticket;
    std::string command;
    nlohmann::json request;
  };

  PoolCore& core_;
  PoolTenants& tenants_;
  LateAnswers& late_;
  std::deque<QuotaCommand> waiting_;  // the first one is being written down
};

}  // namespace maru::daemon
