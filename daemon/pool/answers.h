// Answers that come in a later turn. A part that cannot answer at once gives a ticket for the answer; the table of the pool's
// administration (inspect/) keeps each answer until the asker fetches it.
//
//   (1) A ticket is above 0, and no other of this pool has its number.
//   (2) A ticket is pending until its answer is given or it is dropped; the answer is fetched once.
//   (3) Of answers that no asker fetches, the table keeps the last kKeptMax.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace maru::daemon {

// An answer, or the ticket under which it comes.
template <typename T>
struct Pending {
  std::optional<T> now;
  uint64_t ticket = 0;

  Pending(T answer) : now(std::move(answer)) {}  // NOLINT: an answer is a Pending that needs no turn
  static Pending later(uint64_t ticket) { return Pending(ticket); }

 private:
  explicit Pending(uint64_t of) : ticket(of) {}
};

// The answer of a part for a ticket.
template <typename T>
struct Answered {
  uint64_t ticket;
  T answer;
};

template <typename T>
class Answers {
 public:
  static constexpr size_t kKeptMax = 64;

  void expect(uint64_t ticket) { pending_.insert(ticket); }
  bool is_pending(uint64_t ticket) const { return pending_.contains(ticket); }
  // Its asker is told that nothing came of it.
  void drop(uint64_t ticket) { pending_.erase(ticket); }
  void give(uint64_t ticket, T answer) {
    pending_.erase(ticket);
    given_[ticket] = std::move(answer);
    if (given_.size() > kKeptMax) given_.erase(given_.begin());
  }
  // Nothing when the ticket is pending, was dropped, or its answer is no longer kept.
  std::optional<T> take(uint64_t ticket) {
    const auto found = given_.find(ticket);
    if (found == given_.end()) return std::nullopt;
    std::optional<T> answer = std::move(found->second);
    given_.erase(found);
    return answer;
  }

 private:
  std::set<uint64_t> pending_;
  std::map<uint64_t, T> given_;
};

}  // namespace maru::daemon
