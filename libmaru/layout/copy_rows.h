// Copies rows: equal runs of bytes at constant strides, side by side for several targets. The first large copies of a process
// find out which way is the fastest on this machine for runs of such a length (libmaru/base/fastest_way.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace maru::layout {

inline constexpr size_t kLanesMax = 64;

// Where the rows of one target begin, and where the rows of its source begin.
struct Lane {
  std::byte* to;
  const std::byte* from;
};

// Row 0 of each lane, row 1 of each lane, and so on: where the lanes' rows alternate in one source, it is read from its
// beginning to its end.
struct Rows {
  std::span<const Lane> lanes;  // 1 to kLanesMax
  uint64_t run_bytes;
  uint64_t count;
  uint64_t to_stride;  // bytes; both mean nothing for one row
  uint64_t from_stride;
};

using CopyWay = void (*)(const Rows& rows);

// One copy of many rows. Not for several threads; each makes its own.
class RowCopier {
 public:
  // `total_bytes`: of all rows to come. A small copy goes through the caches, where the next reader finds it.
  explicit RowCopier(uint64_t total_bytes);
  // Later stores of this thread follow all rows.
  ~RowCopier();
  RowCopier(const RowCopier&) = delete;
  RowCopier& operator=(const RowCopier&) = delete;

  void copy(const Rows& rows);

 private:
  static constexpr int kClasses = 3;
  struct Trial {
    uint32_t number;
    CopyWay way = nullptr;
    uint64_t ns = 0;
    uint64_t bytes = 0;
  };

  void try_ways(const Rows& rows, int length);

  bool is_large_;
  CopyWay best_[kClasses];
  Trial trials_[kClasses];
};

}  // namespace maru::layout
