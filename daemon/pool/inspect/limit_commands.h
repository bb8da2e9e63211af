// "quota.set" and the other commands about limits of tenants. Changes are made one after the other, in the order in which they
// came: each starts from the settings after the change before.
//
//   (1) A change is answered when it is written down. A thread of LimitSettings writes.
//
// Thread safety: one thread. If marud dies here: limits that were answered are written down.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/inspect/late_answers.h"
#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>
#include <deque>
#include <functional>
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
  using Json = nlohmann::json;
  // The reply to a change, once it is written down and applies.
  using Reply = std::function<Json()>;
  struct QuotaCommand {
    uint64_t ticket;
    std::string command;
    Json request;
  };

  // `aside`: a thread writes the change down. Then nothing is returned, and step() gives the reply.
  Json answer(const std::string& command, const Json& request, bool aside);
  Json get(const Json& request);
  Json set(const Json& request, bool aside);
  Json remove(const Json& request, bool aside);
  Json set_default(const Json& request, bool aside);
  Json set_mode(const Json& request, bool aside);
  Json change(const TenantSettings& at_run_time, bool aside, Reply reply);

  PoolCore& core_;
  PoolTenants& tenants_;
  LateAnswers& late_;
  std::deque<QuotaCommand> waiting_;  // the first one is being written down
  Reply reply_;                       // of the first
};

}  // namespace maru::daemon
