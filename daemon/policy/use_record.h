// The policy `odds` records here how often blocks of a class were used again, and how long after their last use. From this
// follows the worth of a block: the expected number of uses for each unit of time that it keeps its place.
//
// Time is counted in blocks stored into the pool: a block must outlast the demand for its place. Ages fall into bins, four for
// each doubling, from a 64th of the pool upwards.
//
// Example: of 100 blocks of a class 20 are used again within one turnover of the pool, 10 more within the next three. A new
// block is worth 20 % / 0.9 turnovers if it is kept for one, or 30 % / 3.2 if for four: the best of these counts. A block that
// has waited a turnover in vain is worth 12.5 % / 2.8 at most. (The numbers leave out that waiting ends with the use.)
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace maru::daemon {

class UseRecord {
 public:
  static constexpr size_t kClasses = 16;
  static constexpr size_t kBins = 57;  // up to 256 turnovers of the pool

  // Forgets everything if the size changes.
  void resize(uint64_t pages);

  // A block came into a class, by being stored or by a use.
  void add_arrival(size_t of_class, double blocks = 1) { arrivals_[of_class] += blocks; }
  // A block of a class was used again at this age, and left the class.
  void add_use(size_t of_class, uint64_t age, double blocks = 1) { uses_[of_class][bin(age)] += blocks; }
  // For uses that are known to have happened, but not when: they had the ages of those noted with add_age().
  void add_uses_of_unknown_age(size_t of_class, double blocks);
  void add_age(size_t of_class, uint64_t age) {
    ages_[of_class][bin(age)] += 1;
    ages_total_[of_class] += 1;
  }

  // Works the records of one class, in turn, into the answers of worth(); bounded work, a few microseconds.
  void refresh_next();
  // Uses for each block stored elsewhere, at this age, in 2^-40.
  uint64_t worth(size_t of_class, uint64_t age) const { return worth_[of_class][bin(age)]; }

 private:
  size_t bin(uint64_t age) const {
    const uint64_t units = age / unit_;
    if (units == 0) return 0;
    const auto octave = uint32_t(std::bit_width(units)) - 1;
    const uint64_t quarter = (octave >= 2 ? units >> (octave - 2) : units << (2 - octave)) & 3;
    const size_t found = 1 + octave * 4 + size_t(quarter);
    return found < kBins ? found : kBins - 1;
  }
  double bin_begin(size_t number) const;  // age

  uint64_t pages_ = 0;
  uint64_t unit_ = 1;
  size_t next_class_ = 0;
  std::array<double, kClasses> arrivals_{};
  std::array<std::array<double, kBins>, kClasses> uses_{};
  std::array<std::array<double, kBins>, kClasses> ages_{};
  std::array<double, kClasses> ages_total_{};
  std::array<std::array<uint64_t, kBins>, kClasses> worth_{};
};

}  // namespace maru::daemon
