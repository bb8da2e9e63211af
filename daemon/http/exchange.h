// Where the HTTP thread asks and the deciding thread answers. A fixed number of slots, each of them in the hands of one of the
// two threads at a time, and an event descriptor in each direction. Neither thread ever waits for the other here: there is no
// lock, a full exchange refuses, and what nobody has looked at can be taken back.
//
//   free --ask()--> asked --next()--> begun --answer()--> answered --take()--> free
//    ^                |
//    `---withdraw()---'
//
// Thread safety: the methods say which thread they are for. The word of a slot says whose its contents are.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"
#include "maru/format/atomic_word.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace maru::daemon {
struct Peer;
namespace metrics {
struct Snapshot;
}
}  // namespace maru::daemon

namespace maru::daemon::http {

struct Question {
  // kTrouble: of the HTTP thread itself; `command` says why a socket is not open, or nothing, and `sockets_lost` how often the
  // file of its Unix socket was taken away.
  enum class Kind : uint8_t { kAdmin, kStatus, kHealth, kConfiguration, kMetrics, kTrouble };
  Kind kind = Kind::kAdmin;
  std::string command;               // kAdmin, kStatus: the JSON object, as marudctl sends it
  uint64_t sockets_lost = 0;         // kTrouble
  std::string who;                   // for the log
  std::shared_ptr<const Peer> peer;  // nothing: the caller has shown the token
};

struct Answer {
  int code = 0;                                      // errno
  std::string text;                                  // JSON, or what is wrong
  std::shared_ptr<const metrics::Snapshot> metrics;  // kMetrics
};

class Exchange {
 public:
  // As many questions as can be under way; each connection has one at most.
  static constexpr uint32_t kSlots = 32;

  static Result<std::unique_ptr<Exchange>> create();

  // -- the HTTP thread ------------------------------------------------------------------------------------------------
  // Nothing: every slot is in use.
  std::optional<uint32_t> ask(Question question);
  // The question is taken back, and nobody will look at it. False: it was begun already.
  bool withdraw(uint32_t slot);
  // The answer, if there is one; the slot is free then.
  std::optional<Answer> take(uint32_t slot);
  // Nobody waits for the answer any more, which will come.
  void abandon(uint32_t slot) { abandoned_[slot] = true; }
  int answers_fd() const { return answers_.get(); }
  void clear_answers_fd();
  // Whether the deciding thread has called read_again() since this was asked last.
  bool take_read_again();

  // -- the deciding thread --------------------------------------------------------------------------------------------
  // The oldest question, which is begun from here on.
  std::optional<uint32_t> next();
  const Question& question(uint32_t slot) const { return slots_[slot].question; }
  void answer(uint32_t slot, Answer answer);
  // The configuration was read again: the HTTP thread is to do so with the files that it knows.
  void read_again();
  int questions_fd() const { return questions_.get(); }
  void clear_questions_fd();

 private:
  enum State : uint32_t { kFree, kAsked, kBegun, kAnswered };
  struct Slot {
    AtomicU32 state = {kFree};
    AtomicU64 number = {0};  // of the question, counted from 1; another one may be there a moment later
    Question question;
    Answer answer;
  };

  std::array<Slot, kSlots> slots_;
  std::array<bool, kSlots> abandoned_ = {};  // the HTTP thread's
  uint64_t asked_ = 0;                       // the HTTP thread's
  AtomicU64 read_again_ = {0};               // how often that was wanted; the deciding thread writes it
  uint64_t read_again_taken_ = 0;            // the HTTP thread's
  FileDescriptor questions_, answers_;
};

}  // namespace maru::daemon::http
