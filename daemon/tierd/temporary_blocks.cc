#include "daemon/tierd/temporary_blocks.h"

#include <cerrno>
#include <utility>

namespace maru::tierd {

bool TemporaryBlocks::hold(maru_block block, bool is_temporary) {
  const auto found = holders_.find(block);
  if (found == holders_.end()) return false;
  if (!is_temporary) {
    holders_.erase(found);
    return false;
  }
  ++found->second;
  return true;
}

bool TemporaryBlocks::try_free(maru_block block) {
  if (free_(block) == -ENOTEMPTY) return false;
  holders_.erase(block);
  return true;
}

void TemporaryBlocks::let_go(const std::vector<maru_block>& blocks) {
  bool is_any_free = false;
  // The end of a chain first.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const auto found = holders_.find(*block);
    if (found == holders_.end() || --found->second > 0) continue;
    if (try_free(*block))
      is_any_free = true;
    else
      unheld_.push_back(*block);
  }
  if (unheld_.size() > kUnheldMax) {
    for (const maru_block block : unheld_) holders_.erase(block);
    unheld_.clear();
  }
  // Others may have lost their last children now.
  while (std::exchange(is_any_free, false))
    std::erase_if(unheld_, [&](maru_block block) {
      const auto found = holders_.find(block);
      if (found == holders_.end() || found->second > 0) return true;
      const bool is_free = try_free(block);
      is_any_free = is_any_free || is_free;
      return is_free;
    });
}

}  // namespace maru::tierd
