// The deciding thread's end of the exchange. In each turn it takes a few questions, checks each caller's rights, and answers.
#pragma once

#include "daemon/admin/admin.h"
#include "daemon/config/config.h"
#include "daemon/hosting/survey.h"
#include "daemon/http/exchange.h"

namespace maru::daemon::http {

class Desk {
 public:
  // One turn answers this many questions. Each costs as much as the same command of marudctl.
  static constexpr uint32_t kQuestionsPerTurn = 4;
  // Questions that may wait for a pool at the same time, perhaps for a disk that does not answer. Questions with an immediate
  // answer, such as health, use the other slots.
  static constexpr uint32_t kWaitingMax = Exchange::kSlots * 3 / 4;

  Desk(Exchange& exchange, const Config& config) : exchange_(exchange), config_(config) {}

  int questions_fd() const { return exchange_.questions_fd(); }
  void wake() { exchange_.clear_questions_fd(); }
  // The configuration was read again: the HTTP thread is to read the token files again.
  void read_again() { exchange_.read_again(); }
  // Returns true when more work can be done right away.
  bool turn(const AdminView& view);
  // Why a configured HTTP socket is closed; empty: each is open.
  const std::string& trouble() const { return trouble_; }
  uint64_t sockets_lost() const { return sockets_lost_; }
  void set_trouble(std::string text) { trouble_ = std::move(text); }

 private:
  // Questions that wait for one census. It began after the last question came.
  struct Asked {
    std::vector<uint32_t> slots;
    Survey survey;
  };

  bool may_ask(const AdminView& view, const Question& question) const;
  Answer answer(const AdminView& view, const Question& question);
  // False: the answer comes in a later turn.
  bool answer_now(AdminView view, uint32_t slot, uint64_t& removal);
  bool step_survey(const AdminView& view);
  void finish_survey(AdminView view);

  Exchange& exchange_;
  const Config& config_;
  // A question that waits until blocks are removed, and the ticket of this removal.
  struct Removal {
    uint32_t slot;
    uint64_t ticket;
  };

  std::vector<Removal> removals_;
  std::vector<uint32_t> waiting_;  // for the next survey
  std::optional<Asked> survey_;
  std::string trouble_;
  uint64_t sockets_lost_ = 0;
};

// {"status": "healthy" | "degraded" | "unhealthy", "reasons": [...], "pools": [{name, condition}]}. Unhealthy: a pool is
// fenced, the last audit of a pool found violations, or no pool is usable. Degraded: a configured socket of HTTP is closed, or
// a pool is unavailable beside a usable pool. A pool that waits for its memory is in order: the first client to attach ends the
// wait. A load balancer keeps clients away from an unhealthy marud, so the word "unhealthy" would prolong the wait.
std::string health_text(const AdminView& view);

}  // namespace maru::daemon::http
