// Counts the lines that one turn of marud's loop reads. Each walk adds the lines of memory that it reads to the meter of its
// pool. A walk that clients can make long has a budget of lines. When the budget is spent the walk ends, and it goes on in the
// next turn.
//
// A line that no cache has costs some 100 ns, or some 10 within a row of lines. A count of lines is the same on every machine,
// so tests compare it with the budget of a turn.
#pragma once

#include <cstdint>

namespace maru::daemon {

class LineMeter {
 public:
  void add(uint64_t lines) { read_ += lines; }
  uint64_t read() const { return read_; }

 private:
  uint64_t read_ = 0;
};

// How far one walk may go in a turn. A walk asks between two steps, so that each turn takes one step at least.
class LineBudget {
 public:
  LineBudget(const LineMeter& meter, uint64_t lines) : meter_(meter), end_(meter.read() + lines) {
    if (end_ < lines) end_ = UINT64_MAX;
  }
  bool is_spent() const { return meter_.read() >= end_; }
  uint64_t left() const { return is_spent() ? 0 : end_ - meter_.read(); }

 private:
  const LineMeter& meter_;
  uint64_t end_;
};

}  // namespace maru::daemon
