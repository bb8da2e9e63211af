// The numbers of a stream's batches, which grow over restarts: a router that has seen a number ignores smaller numbers without
// a word. The first number of a process is its start in Unix milliseconds times kEachMs, so no process reaches the numbers of a
// later process. Where the clock may go back, a file keeps the highest promised number.
//
// Thread safety: one thread.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <string>

namespace maru::eventd {

class Sequence {
 public:
  static constexpr uint64_t kEachMs = 1u << 14;
  static constexpr uint64_t kPromise = 1u << 20;  // numbers that one writing of the file lasts for

  // `path`: of the file; empty: the clock alone. Errors: the file cannot be read or written, or holds something else.
  static Result<Sequence> begin(std::string path, uint64_t unix_ms);

  uint64_t next();
  uint64_t last() const { return next_ - 1; }

 private:
  Result<void> promise();

  std::string path_;
  uint64_t next_ = 0, promised_ = 0;
};

}  // namespace maru::eventd
