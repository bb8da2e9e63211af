// Says on standard error how far the replay is: a bar on a terminal, a line for every tenth elsewhere.
#pragma once

#include "daemon/tools/replay/board.h"

#include <chrono>
#include <cstdint>

namespace maru::replay {

class Progress {
 public:
  Progress(const Board& board, uint32_t clients, uint64_t requests_total, bool is_wanted);

  // To be called a few times a second while the clients run.
  void show();
  // The last state, and the end of the bar's line.
  void finish();

 private:
  struct Totals {
    uint64_t requests = 0, blocks = 0, hit_blocks = 0;
  };
  Totals totals() const;
  void draw_bar(const Totals& now) const;
  void print_line(const Totals& now) const;
  double seconds() const;

  const Board& board_;
  const uint32_t clients_;
  const uint64_t requests_total_;
  const bool is_wanted_;
  const bool is_terminal_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  uint64_t tenths_shown_ = 0;
};

}  // namespace maru::replay
