#include "libmaru/layout/move_builder.h"

#include <algorithm>
#include <tuple>

namespace maru::layout {
namespace {

// The stride of a loop with one turn means nothing.
bool same_but_counts(const Draft& a, const Draft& b) {
  if (a.source != b.source || a.target != b.target) return false;
  for (uint32_t i = 0; i < kDraftLoops; ++i)
    if ((a.loop[i].count > 1 || b.loop[i].count > 1) &&
        (a.loop[i].source_stride != b.loop[i].source_stride || a.loop[i].target_stride != b.loop[i].target_stride))
      return false;
  return true;
}

// Which loop has another count than the other draft's: none (-1), one, or more than one (-2).
int loop_that_differs(const Draft& a, const Draft& b) {
  int found = -1;
  for (uint32_t i = 0; i < kDraftLoops; ++i)
    if (a.loop[i].count != b.loop[i].count) found = found == -1 ? int(i) : -2;
  return found;
}

// The longest runs and the fewest loops that make the same copies.
Shape shape_of(const Draft& draft) {
  std::array<Loop, kDraftLoops> loops;  // loops that turn more than once, the fastest first
  uint32_t count = 0;
  for (const Loop& loop : draft.loop) {
    if (loop.count == 1) continue;
    uint32_t at = count++;
    for (; at > 0 && loops[at - 1].source_stride > loop.source_stride; --at) loops[at] = loops[at - 1];
    loops[at] = loop;
  }
  Shape shape;
  shape.run_bytes = draft.run_bytes;
  shape.runs = 1;
  for (uint32_t i = 0; i < count; ++i) {
    const Loop& loop = loops[i];
    Loop* const faster = shape.loops > 0 ? &shape.loop[shape.loops - 1] : nullptr;
    if (faster == nullptr && loop.source_stride == shape.run_bytes && loop.target_stride == shape.run_bytes) {
      shape.run_bytes *= loop.count;
    } else if (faster != nullptr && loop.source_stride == faster->source_stride * faster->count &&
               loop.target_stride == faster->target_stride * faster->count) {
      faster->count *= loop.count;
    } else {
      shape.loop[shape.loops++] = loop;
    }
  }
  std::reverse(shape.loop.begin(), shape.loop.begin() + shape.loops);
  for (uint32_t i = 0; i < shape.loops; ++i) shape.runs *= shape.loop[i].count;
  return shape;
}

}  // namespace

bool MoveBuilder::Less::operator()(const Shape& a, const Shape& b) const {
  const auto key = [](const Shape& shape, uint32_t i) {
    return std::tie(shape.loop[i].count, shape.loop[i].source_stride, shape.loop[i].target_stride);
  };
  if (std::tie(a.run_bytes, a.loops) != std::tie(b.run_bytes, b.loops))
    return std::tie(a.run_bytes, a.loops) < std::tie(b.run_bytes, b.loops);
  for (uint32_t i = 0; i < a.loops; ++i)
    if (key(a, i) != key(b, i)) return key(a, i) < key(b, i);
  return false;
}

void MoveBuilder::add(const Draft& draft) {
  if (has_last_ && extends(draft)) return;
  flush();
  last_ = draft;
  has_last_ = true;
}

// Whether the draft goes on where a loop of the last one, or its run, ends: then that is longer, and the draft is done with.
bool MoveBuilder::extends(const Draft& draft) {
  if (!same_but_counts(last_, draft) || draft.target_offset <= last_.target_offset ||
      draft.source_offset <= last_.source_offset)
    return false;
  const uint64_t source_step = draft.source_offset - last_.source_offset;
  const uint64_t target_step = draft.target_offset - last_.target_offset;
  const int differing = loop_that_differs(last_, draft);
  if (differing == -1 && source_step == last_.run_bytes && target_step == last_.run_bytes) {
    last_.run_bytes += draft.run_bytes;
    return true;
  }
  if (differing == -2 || last_.run_bytes != draft.run_bytes) return false;
  for (uint32_t i = 0; i < kDraftLoops; ++i) {
    Loop& loop = last_.loop[i];
    if ((differing != -1 && differing != int(i)) || source_step != loop.count * loop.source_stride ||
        target_step != loop.count * loop.target_stride)
      continue;
    loop.count += draft.loop[i].count;
    return true;
  }
  return false;
}

void MoveBuilder::flush() {
  if (!has_last_) return;
  has_last_ = false;
  const Shape shape = shape_of(last_);
  maru_reslice_totals& totals = plan_.totals;
  plan_.moves.push_back(
      {last_.source, last_.target, shape_index(shape), 0, last_.source_offset, last_.target_offset, 0});
  totals.run_bytes_min = plan_.moves.size() == 1 ? shape.run_bytes : std::min(totals.run_bytes_min, shape.run_bytes);
  totals.run_bytes_max = std::max(totals.run_bytes_max, shape.run_bytes);
}

// Sources are read from their beginning to their end: the processor fetches ahead, and a copy that used half of a line at a
// time would fetch it twice.
void MoveBuilder::finish() {
  flush();
  std::sort(plan_.moves.begin(), plan_.moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.source, a.source_offset, a.target, a.target_offset) <
           std::tie(b.source, b.source_offset, b.target, b.target_offset);
  });
  for (Move& move : plan_.moves) {
    move.first_run = plan_.totals.runs;
    plan_.totals.runs += plan_.shapes[move.shape].runs;
  }
}

uint32_t MoveBuilder::shape_index(const Shape& shape) {
  const auto [found, is_new] = indices_.try_emplace(shape, uint32_t(plan_.shapes.size()));
  if (is_new) plan_.shapes.push_back(shape);
  return found->second;
}

}  // namespace maru::layout
