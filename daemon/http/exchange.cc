#include "daemon/http/exchange.h"

#include "daemon/system/peer.h"

#include <cerrno>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace maru::daemon::http {
namespace {

// An eventfd that does not block takes a 1 unless its counter is at 2^64 - 2, which is as good as having been told.
void tell(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof(one));
}

void clear(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof(count));
}

}  // namespace

Result<std::unique_ptr<Exchange>> Exchange::create() {
  auto exchange = std::make_unique<Exchange>();
  for (FileDescriptor* fd : {&exchange->questions_, &exchange->answers_}) {
    fd->reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd->is_open()) return failure(errno, "create an event descriptor");
  }
  return exchange;
}

std::optional<uint32_t> Exchange::ask(Question question) {
  for (uint32_t i = 0; i < kSlots; ++i) {
    if (abandoned_[i]) take(i);
    Slot& slot = slots_[i];
    if (slot.state.load_relaxed() != kFree) continue;  // only this thread makes a slot free, and not free
    slot.number.store_relaxed(++asked_);
    slot.question = std::move(question);
    slot.state.store_release(kAsked);  // the question is whole [pairs http.slot]
    tell(questions_.get());
    return i;
  }
  return std::nullopt;
}

bool Exchange::withdraw(uint32_t slot) {
  uint32_t expected = kAsked;
  if (!slots_[slot].state.cas_acq_rel(expected, kFree)) return false;
  slots_[slot].question = {};
  return true;
}

std::optional<Answer> Exchange::take(uint32_t i) {
  Slot& slot = slots_[i];
  if (slot.state.load_acquire() != kAnswered) return std::nullopt;  // [pairs http.slot]
  Answer answer = std::move(slot.answer);
  slot.answer = {};
  slot.question = {};
  abandoned_[i] = false;
  slot.state.store_relaxed(kFree);  // the other thread does not look at free slots
  return answer;
}

std::optional<uint32_t> Exchange::next() {
  // Another question can be withdrawn between the look and the exchange, once for each slot at most.
  for (uint32_t tries = 0; tries < kSlots; ++tries) {
    std::optional<uint32_t> oldest;
    uint64_t least = 0;
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (slots_[i].state.load_acquire() != kAsked) continue;  // [pairs http.slot]
      const uint64_t number = slots_[i].number.load_relaxed();
      if (oldest && number > least) continue;
      oldest = i;
      least = number;
    }
    if (!oldest) return std::nullopt;
    uint32_t expected = kAsked;
    if (slots_[*oldest].state.cas_acq_rel(expected, kBegun)) return oldest;
  }
  return std::nullopt;
}

void Exchange::answer(uint32_t i, Answer answer) {
  slots_[i].answer = std::move(answer);
  slots_[i].state.store_release(kAnswered);  // the answer is whole [pairs http.slot]
  tell(answers_.get());
}

void Exchange::read_again() {
  read_again_.store_relaxed(read_again_.load_relaxed() + 1);  // the descriptor brings it to the other thread
  tell(answers_.get());
}

bool Exchange::take_read_again() {
  const uint64_t wanted = read_again_.load_relaxed();
  return std::exchange(read_again_taken_, wanted) != wanted;
}

void Exchange::clear_answers_fd() { clear(answers_.get()); }
void Exchange::clear_questions_fd() { clear(questions_.get()); }

}  // namespace maru::daemon::http
