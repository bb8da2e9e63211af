// Which tokens of which block go where: the list of blocks that hold the tokens, beside the list of those to fill.
#pragma once

#include "maru/layout.h"

#include <cstdint>
#include <span>
#include <vector>

namespace maru::layout {

// Tokens that lie in one block on either side.
struct Segment {
  uint64_t source_block;
  uint64_t source_token;
  uint64_t target_block;
  uint64_t target_token;
  uint64_t tokens;
};

struct Side {
  const char* name;
  std::span<const uint64_t> blocks;  // in the order of the tokens
  uint64_t blocks_of_layout;
  uint64_t page_tokens;
};

// In the order in which the targets lie, so that neighbours come one after the other. 0, or -errno with the reason. Throws
// std::bad_alloc.
int pair_tokens(const Side& sources, const Side& targets, std::vector<Segment>& ret_segments,
                maru_layout_reason* reason);

}  // namespace maru::layout
