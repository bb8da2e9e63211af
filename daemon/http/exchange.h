// The HTTP thread asks here, and the deciding thread answers. There is a fixed number of slots, and an event descriptor in each
// direction. Each slot belongs to one of the two threads at a time. Neither thread waits for the other: there is no lock, a
// full exchange refuses, and the HTTP thread can withdraw a question that the deciding thread has not begun.
//
//   free --ask()--> asked --next()--> begun --answer()--> answered --take()--> free
//    ^                |
//    `---withdraw()---'
//
// Thread safety: each method names its thread. The word of a slot says which thread owns the slot's contents.
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
  // kTrouble comes from the HTTP thread itself. `command` says why a socket is not open, or is empty. `sockets_lost` counts how
  // often the file of its Unix socket was removed.
  enum class Kind : uint8_t { kAdmin, kStatus, kHealth, kConfiguration, kMetrics, kTrouble };
  Kind kind = Kind::kAdmin;
  std::string command;               // kAdmin, kStatus: the JSON object, as marudctl sends it
  uint64_t sockets_lost = 0;         // kTrouble
  std::string who;                   // for the log
  std::shared_ptr<const Peer> peer;  // nothing: the caller has shown a token
};

struct Answer {
  int code = 0;                                      // errno
  std::string text;                                  // JSON, or the error
  std::shared_ptr<const metrics::Snapshot> metrics;  // kMetrics
};

class Exchange {
 public:
  // The most questions under way; each connection has at most one.
  static constexpr uint32_t kSlots = 32;

  static Result<std::unique_ptr<Exchange>> create();

  // -- the HTTP thread ------------------------------------------------------------------------------------------------
  // Nothing: all slots are in use.
  std::optional<uint32_t> ask(Question question);
  // Takes the question back: the deciding thread will not see it. False: the deciding thread has begun it.
  bool withdraw(uint32_t slot);
  // The answer, if it has come; this frees the slot.
  std::optional<Answer> take(uint32_t slot);
  // The HTTP thread ignores the answer when it comes.
  void abandon(uint32_t slot) { abandoned_[slot] = true; }
  int answers_fd() const { return answers_.get(); }
  void clear_answers_fd();
  // Whether the deciding thread has called read_again() since the last call of this.
  bool take_read_again();

  // -- the deciding thread --------------------------------------------------------------------------------------------
  // The oldest question; this begins it.
  std::optional<uint32_t> next();
  const Question& question(uint32_t slot) const { return slots_[slot].question; }
  void answer(uint32_t slot, Answer answer);
  // Asks the HTTP thread to read its token files again, since the configuration was read again.
  void read_again();
  int questions_fd() const { return questions_.get(); }
  void clear_questions_fd();

 private:
  enum State : uint32_t { kFree, kAsked, kBegun, kAnswered };
  struct Slot {
    AtomicU32 state = {kFree};
    AtomicU64 number = {0};  // of the question, counted from 1; the next question of this slot replaces it
    Question question;
    Answer answer;
  };

  std::array<Slot, kSlots> slots_;
  std::array<bool, kSlots> abandoned_ = {};  // the HTTP thread's
  uint64_t asked_ = 0;                       // the HTTP thread's
  AtomicU64 read_again_ = {0};               // calls of read_again(); the deciding thread writes it
  uint64_t read_again_taken_ = 0;            // the HTTP thread's
  FileDescriptor questions_, answers_;
};

}  // namespace maru::daemon::http
