// The table of answers that come in a later turn, as administrators get them. It is the only place where such an answer waits.
//
//   (1) A request with a ticket gets its answer once, or hears that the pool went away before.
//
// Cost: memory of marud's own. Thread safety: one thread.
#pragma once

#include "daemon/pool/answers.h"
#include "daemon/pool/core.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/memory/evictions.h"
#include "daemon/pool/removal/deletions.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace maru::daemon {

class LateAnswers {
 public:
  struct Below {
    PoolCore& core;
    Queues& queues;
    Deletions& deletions;
    Evictions& evictions;
  };
  explicit LateAnswers(const Below& below)
      : core_(below.core), queues_(below.queues), deletions_(below.deletions), evictions_(below.evictions) {}
  LateAnswers(const LateAnswers&) = delete;
  LateAnswers& operator=(const LateAnswers&) = delete;

  // The finished works of the parts become the answers of their tickets.
  void collect();
  // Nothing during the work; otherwise the answer, and the ticket is 0.
  nlohmann::json answer(uint64_t* ret_ticket);
  // The answer of this ticket comes later.
  nlohmann::json wait_for(uint64_t ticket, uint64_t* ret_ticket);
  void give(uint64_t ticket, nlohmann::json answer) { answers_.give(ticket, std::move(answer)); }
  // Nothing came of it.
  void drop(uint64_t ticket) { answers_.drop(ticket); }
  // The reply, now or when the queues are built.
  nlohmann::json when_ordered(nlohmann::json reply, uint64_t* ret_ticket);

 private:
  PoolCore& core_;
  Queues& queues_;
  Deletions& deletions_;
  Evictions& evictions_;
  Answers<nlohmann::json> answers_;
  std::vector<Answered<nlohmann::json>> ordered_;  // that wait for the end of a new order
};

}  // namespace maru::daemon
