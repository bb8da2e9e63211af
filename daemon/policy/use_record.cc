#include "daemon/policy/use_record.h"

#include <algorithm>

namespace maru::daemon {
namespace {

// Until a class has been seen often enough, its record is mixed with the record of so many average blocks.
constexpr double kImaginedBlocks = 4;
// Records fade when so many blocks have come into a class since they were halved the last time, so that old uses do not count
// for ever.
constexpr double kArrivalsMax = 1u << 20;

}  // namespace

void UseRecord::resize(uint64_t pages) {
  if (pages == pages_) return;
  *this = {};
  pages_ = pages;
  unit_ = std::max<uint64_t>(1, pages / 64);
  for (size_t i = 0; i < kClasses; ++i) refresh_next();
}

double UseRecord::bin_begin(size_t number) const {
  if (number == 0) return 0;
  const double octave = double(uint64_t{1} << ((number - 1) / 4)), quarter = double((number - 1) % 4);
  return octave * (1 + quarter / 4) * double(unit_);
}

void UseRecord::add_uses_of_unknown_age(size_t of_class, double blocks) {
  if (ages_total_[of_class] <= 0) return;
  for (size_t i = 0; i < kBins; ++i) uses_[of_class][i] += blocks * ages_[of_class][i] / ages_total_[of_class];
}

void UseRecord::refresh_next() {
  const size_t of_class = next_class_;
  next_class_ = (next_class_ + 1) % kClasses;

  // The assumption about an unknown class: a block with more uses is likelier to be used again. At any age the chance is the
  // same for each doubling of the age.
  const double uses_before = double(of_class / 2);
  const double imagined = of_class % 2 == 0 ? 0.02 * (uses_before + 1) : 0.5 * (uses_before + 1) / (uses_before + 3);

  std::array<double, kBins> uses;
  std::array<double, kBins + 1> waiting;  // blocks that were not used again before this bin
  waiting[0] = arrivals_[of_class] + kImaginedBlocks;
  for (size_t i = 0; i < kBins; ++i) {
    uses[i] = uses_[of_class][i] + kImaginedBlocks * imagined / double(kBins);
    waiting[i + 1] = std::max(waiting[i] - uses[i], 0.001);
  }
  // The worth at an age is the worth with the best time to give up, from there on.
  for (size_t i = 0; i < kBins; ++i) {
    double expected = 0, time = 0, best = 0;
    for (size_t k = i; k + 1 < kBins; ++k) {
      expected += uses[k];
      time += (bin_begin(k + 1) - bin_begin(k)) * (waiting[k] + waiting[k + 1]) / 2;
      best = std::max(best, expected / time);
    }
    worth_[of_class][i] = uint64_t(best * double(uint64_t{1} << 40));
  }

  if (arrivals_[of_class] < kArrivalsMax) return;
  arrivals_[of_class] /= 2;
  ages_total_[of_class] /= 2;
  for (double& each : uses_[of_class]) each /= 2;
  for (double& each : ages_[of_class]) each /= 2;
}

}  // namespace maru::daemon
