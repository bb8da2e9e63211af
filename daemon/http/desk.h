// The deciding thread's end of the exchange: looks at questions, a few a turn, checks who asks, and answers.
#pragma once

#include "daemon/admin/admin.h"
#include "daemon/config/config.h"
#include "daemon/hosting/survey.h"
#include "daemon/http/exchange.h"

namespace maru::daemon::http {

class Desk {
 public:
  // Questions that one turn answers: each costs what the same command of marudctl does.
  static constexpr uint32_t kQuestionsPerTurn = 4;
  // Questions that may wait for a pool at the same time, perhaps for a disk that does not answer. The other places are for
  // what is answered at once, such as health.
  static constexpr uint32_t kWaitingMax = Exchange::kSlots * 3 / 4;

  Desk(Exchange& exchange, const Config& config) : exchange_(exchange), config_(config) {}

  int questions_fd() const { return exchange_.questions_fd(); }
  void wake() { exchange_.clear_questions_fd(); }
  // The configuration was read again; the HTTP thread goes on with the tokens of now.
  void read_again() { exchange_.read_again(); }
  // Returns true when there is more to do right away.
  bool turn(const AdminView& view);
  // Why HTTP is not answered everywhere; empty: it is.
  const std::string& trouble() const { return trouble_; }
  uint64_t sockets_lost() const { return sockets_lost_; }
  void set_trouble(std::string text) { trouble_ = std::move(text); }

 private:
  // Questions that wait for one census, which began after the last of them came.
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
  // A question that waits until blocks are removed, and the ticket of that.
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

// {"status": "healthy" | "degraded" | "unhealthy", "reasons": [...], "pools": [{name, condition}]}: unhealthy when a pool is
// fenced, the last audit of one found something, or none can be used; degraded when something else is missing: a socket of
// HTTP, or a pool that is unavailable beside one that is not. A pool that waits for its memory is in order: the first client to
// attach ends the wait, and whoever keeps clients away from what is unhealthy would keep it waiting.
std::string health_text(const AdminView& view);

}  // namespace maru::daemon::http
