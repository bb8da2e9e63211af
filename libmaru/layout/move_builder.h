// Puts moves into a plan, and merges a move with the move before where both are one pattern.
#pragma once

#include "libmaru/layout/reslice_plan.h"

#include <map>

namespace maru::layout {

inline constexpr uint32_t kDraftLoops = 5;

// A move before it is merged. Its loops stand in any order, and may have one turn.
struct Draft {
  uint32_t source;
  uint32_t target;
  uint64_t source_offset;
  uint64_t target_offset;
  uint64_t run_bytes;
  std::array<Loop, kDraftLoops> loop;  // blocks, layers, K and V, tokens, heads
};

class MoveBuilder {
 public:
  explicit MoveBuilder(maru_reslice& plan) : plan_(plan) {}

  void add(const Draft& draft);
  void finish();
  bool is_full() const { return plan_.moves.size() >= MARU_RESLICE_MOVES_MAX; }

 private:
  bool extends(const Draft& draft);
  void flush();
  uint32_t shape_index(const Shape& shape);

  struct Less {
    bool operator()(const Shape& a, const Shape& b) const;
  };

  maru_reslice& plan_;
  Draft last_ = {};
  bool has_last_ = false;
  std::map<Shape, uint32_t, Less> indices_;
};

}  // namespace maru::layout
