// Blocks of the pool that temporary tickets alone have asked for, and how many of these hold each. Such a block leaves the pool
// with the last ticket that holds it. A block with children stays until they have gone. A block that another client holds then
// is an ordinary one, and so is a block that a ticket without the flag has asked for.
//
// Threads: one, the controllers'.
#pragma once

#include "maru/maru.h"

#include <functional>
#include <unordered_map>
#include <vector>

namespace maru::tierd {

class TemporaryBlocks {
 public:
  // `free`: as maru_delete_block() with MARU_DELETE_UNPINNED.
  explicit TemporaryBlocks(std::function<int(maru_block)> free) : free_(std::move(free)) {}

  // Its loader holds it first.
  void add(maru_block block) { holders_[block] = 1; }
  // A ticket wants the block. True: the ticket holds it, and has to let it go.
  bool hold(maru_block block, bool is_temporary);
  // All that one ticket holds, each block behind its parent.
  void let_go(const std::vector<maru_block>& blocks);

  size_t count() const { return holders_.size(); }

 private:
  static constexpr size_t kUnheldMax = 4096;  // more of them are ordinary blocks

  bool try_free(maru_block block);  // false: it has children

  const std::function<int(maru_block)> free_;
  std::unordered_map<maru_block, size_t> holders_;
  std::vector<maru_block> unheld_;  // without a holder, with children; each before its parent
};

}  // namespace maru::tierd
