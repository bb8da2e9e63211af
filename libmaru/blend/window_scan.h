// Finds the windows of a prompt for which the pool has a key. All windows are hashed, side by side in eight lanes, and looked
// up in batches.
//
// A hash depends on the hash before it by a multiplication and a reduction, some ten cycles. Eight stretches of a batch are
// hashed at once, so that the processor is never idle. Each begins with a hash from nothing, a multiplication for each token.
#pragma once

#include "libmaru/blend/chunk_names.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace maru::blend {

class WindowScan {
 public:
  // Asks for windows that begin at a multiple of `step`.
  WindowScan(const maru_spans& spans, const uint32_t* tokens, size_t step);

  // How many windows a batch has.
  size_t batch_windows() const { return batch_windows_; }
  // Looks at the windows that begin from `begin` to `end`, batch_windows() at most. Appends the windows that are present to
  // `ret_starts` in their order. Returns 0 or -errno.
  int find(size_t begin, size_t end, std::vector<size_t>* ret_starts);
  // The hash of a window of the last call.
  uint64_t hash(size_t start) const { return rows_[start - begin_].tokens; }

 private:
  void hash_windows(size_t count);

  const maru_spans& spans_;
  const uint32_t* tokens_;
  size_t step_;
  size_t batch_windows_;
  size_t begin_ = 0;
  std::unique_ptr<NameBytes[]> rows_;
  std::unique_ptr<uint8_t[]> present_;
};

}  // namespace maru::blend
