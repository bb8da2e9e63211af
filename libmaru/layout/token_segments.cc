#include "libmaru/layout/token_segments.h"

#include "libmaru/layout/reason.h"

#include <algorithm>
#include <cerrno>

namespace maru::layout {
namespace {

int check_blocks(const Side& side, maru_layout_reason* reason) {
  if (side.blocks.empty() || side.blocks.size() > MARU_RESLICE_BLOCKS_MAX)
    return fail(reason, EINVAL, "there are %zu %s blocks, expected 1 to %u", side.blocks.size(), side.name,
                MARU_RESLICE_BLOCKS_MAX);
  for (const uint64_t block : side.blocks)
    if (block >= side.blocks_of_layout)
      return fail(reason, ERANGE, "there is no %s block %llu; the layout has %llu, from 0", side.name, ull(block),
                  ull(side.blocks_of_layout));
  return 0;
}

int check_unique(std::span<const uint64_t> blocks, maru_layout_reason* reason) {
  std::vector<uint64_t> sorted(blocks.begin(), blocks.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return 0;
  return fail(reason, EINVAL, "the target block %llu is to be filled twice", ull(*twice));
}

}  // namespace

int pair_tokens(const Side& sources, const Side& targets, std::vector<Segment>& ret_segments,
                maru_layout_reason* reason) {
  for (const Side* side : {&sources, &targets})
    if (const int status = check_blocks(*side, reason); status < 0) return status;
  // At most 2^24 * 2^20.
  const uint64_t source_tokens = sources.blocks.size() * sources.page_tokens;
  const uint64_t target_tokens = targets.blocks.size() * targets.page_tokens;
  if (source_tokens != target_tokens)
    return fail(reason, EINVAL,
                "%zu source blocks of %llu tokens have %llu tokens, %zu target blocks of %llu have %llu",
                sources.blocks.size(), ull(sources.page_tokens), ull(source_tokens), targets.blocks.size(),
                ull(targets.page_tokens), ull(target_tokens));
  if (const int status = check_unique(targets.blocks, reason); status < 0) return status;

  ret_segments.reserve(std::max(sources.blocks.size(), targets.blocks.size()));
  for (uint64_t at = 0, tokens; at < source_tokens; at += tokens) {
    const uint64_t source_token = at % sources.page_tokens, target_token = at % targets.page_tokens;
    tokens = std::min(sources.page_tokens - source_token, targets.page_tokens - target_token);
    ret_segments.push_back({sources.blocks[at / sources.page_tokens], source_token,
                            targets.blocks[at / targets.page_tokens], target_token, tokens});
  }
  std::sort(ret_segments.begin(), ret_segments.end(), [](const Segment& a, const Segment& b) {
    return a.target_block != b.target_block ? a.target_block < b.target_block : a.target_token < b.target_token;
  });
  return 0;
}

}  // namespace maru::layout
