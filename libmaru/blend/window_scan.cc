#include "libmaru/blend/window_scan.h"

#include "libmaru/blend/roll_stretches.h"

#include <algorithm>
#include <cstring>

namespace maru::blend {
namespace {

// Rows of a batch stay in the second level of the cache. A power of two would put the rows of all lanes into one set of the
// first level; the first row and eights of others leave no rest.
constexpr size_t kLaneWindowsMin = 1 + 8 * 63;

}  // namespace

WindowScan::WindowScan(const maru_spans& spans, const uint32_t* tokens, size_t step)
    : spans_(spans),
      tokens_(tokens),
      step_(step),
      batch_windows_(kLanes * std::max<size_t>(kLaneWindowsMin, spans.names.window())),
      rows_(std::make_unique_for_overwrite<NameBytes[]>(batch_windows_)),
      present_(std::make_unique_for_overwrite<uint8_t[]>(batch_windows_)) {
  for (size_t i = 0; i < batch_windows_; ++i) rows_[i].space = spans.names.space_word(0);
}

void WindowScan::hash_windows(size_t count) {
  static RollStretches* const roll_stretches = best_roll_stretches();
  const RollingHash& hash = spans_.names.hash();
  const size_t stretch = count / kLanes;
  const uint32_t* const tokens = tokens_ + begin_;
  NameBytes* const rows = rows_.get();
  if (stretch != 0) {
    for (size_t k = 0; k < kLanes; ++k) rows[k * stretch].tokens = hash.of(tokens + k * stretch);
    roll_stretches(hash, tokens, stretch, rows);
  }
  for (size_t i = kLanes * stretch; i < count; ++i) rows[i].tokens = hash.of(tokens + i);
}

int WindowScan::find(size_t begin, size_t end, std::vector<size_t>* ret_starts) {
  begin_ = begin;
  const size_t count = end - begin;
  hash_windows(count);
  const size_t first = (step_ - begin % step_) % step_;
  if (first >= count) return 0;
  const size_t asked = (count - first - 1) / step_ + 1;
  const maru_key_rows rows = {rows_.get() + first, sizeof(NameBytes) * step_, nullptr,
                              sizeof(NameBytes),   MARU_KEY_DIGEST128,        spans_.names.tenant()};
  const int found = maru_exists_rows(spans_.client, &rows, asked, present_.get());
  if (found < 0) return found;
  const uint8_t* const present_end = present_.get() + asked;
  for (const uint8_t* at = present_.get(); at != present_end; ++at) {
    at = static_cast<const uint8_t*>(std::memchr(at, 1, size_t(present_end - at)));
    if (at == nullptr) break;
    ret_starts->push_back(begin + first + size_t(at - present_.get()) * step_);
  }
  return 0;
}

}  // namespace maru::blend
