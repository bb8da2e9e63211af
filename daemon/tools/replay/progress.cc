#include "daemon/tools/replay/progress.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace maru::replay {

Progress::Progress(const Board& board, uint32_t clients, uint64_t requests_total, bool is_wanted)
    : board_(board),
      clients_(clients),
      requests_total_(requests_total),
      is_wanted_(is_wanted),
      is_terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::show() {
  if (!is_wanted_ || requests_total_ == 0) return;
  const Totals now = totals();
  if (is_terminal_) return draw_bar(now);
  const uint64_t tenths = now.requests * 10 / requests_total_;
  if (tenths == tenths_shown_) return;
  tenths_shown_ = tenths;
  print_line(now);
}

void Progress::finish() {
  show();
  if (is_wanted_ && is_terminal_) std::fputc('\n', stderr);
}

Progress::Totals Progress::totals() const {
  Totals sum;
  for (uint32_t i = 0; i < clients_; ++i) {
    sum.requests += board_.clients[i].requests.get();
    sum.blocks += board_.clients[i].blocks.get();
    sum.hit_blocks += board_.clients[i].hit_blocks.get();
  }
  return sum;
}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

void Progress::draw_bar(const Totals& now) const {
  constexpr uint64_t kWidth = 40;
  const uint64_t filled = std::min(kWidth, now.requests * kWidth / requests_total_);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r[%s] %3llu %%  %llu/%llu requests  %.0f blocks/s  %.1f %% hits ", bar.c_str(),
               static_cast<unsigned long long>(now.requests * 100 / requests_total_),
               static_cast<unsigned long long>(now.requests), static_cast<unsigned long long>(requests_total_),
               double(now.blocks) / std::max(seconds(), 1e-3),
               now.blocks ? 100.0 * double(now.hit_blocks) / double(now.blocks) : 0.0);
  std::fflush(stderr);
}

void Progress::print_line(const Totals& now) const {
  std::fprintf(stderr, "replay: %3llu %%, %llu of %llu requests, %.1f s, %.1f %% hits\n",
               static_cast<unsigned long long>(now.requests * 100 / requests_total_),
               static_cast<unsigned long long>(now.requests), static_cast<unsigned long long>(requests_total_),
               seconds(), now.blocks ? 100.0 * double(now.hit_blocks) / double(now.blocks) : 0.0);
}

}  // namespace maru::replay
