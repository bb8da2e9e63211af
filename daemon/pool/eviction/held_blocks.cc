#include "daemon/pool/eviction/held_blocks.h"

#include "libmaru/shm/blocks/pin.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {

void HeldBlocks::hold(PageRef ref) {
  if (queues_.held.has(ref.page())) return;
  queues_.remove(ref.page());
  queues_.held.add(ref.page());
  core_.meter.add(lanes_.look_lines());
  blocks_.push_back({ref, shm::find_pin(core_.region, shm::with_other_hosts(core_.region, lanes_.in_use), ref.page())});
}

bool HeldBlocks::is_pass_due() const {
  return rounds_.held_seen < rounds_.wanted && rounds_.pass_wanted <= rounds_.begun;
}

// Blocks whose pins ended return to their queues, to their old places. Most are pinned where they were, which costs one line.
// Goes on with the pass under way as far as these lines last, to its end at most, or begins a pass. It walks down. So the block
// that takes the place of a returning block was looked at in this pass, or was not held when it began.
void HeldBlocks::look(uint64_t lines) {
  if (is_pass_due() && round_ < rounds_.pass_wanted) left_ = 0;  // no work waits for the pass under way
  if (left_ == 0) {
    left_ = blocks_.size();
    round_ = rounds_.begun;
  }
  const shm::LaneSet in_use = shm::with_other_hosts(core_.region, lanes_.in_use);
  const uint64_t cost = left_ == 0 ? 0 : lanes_.look_lines();
  std::vector<uint32_t> back;
  while (left_ > 0 && lines > 0) {
    WaitingBlock& block = blocks_[--left_];
    core_.meter.add(1);
    if (block.is_pinned_there()) {
      --lines;
      continue;
    }
    lines -= std::min(lines, cost);
    core_.meter.add(cost);
    const PageRef ref = block.ref;
    const bool is_there = core_.word(ref.page()).is(PageState::kReady, ref.generation());
    block.pin = is_there ? shm::find_pin(core_.region, in_use, ref.page()) : nullptr;
    if (block.pin != nullptr) continue;
    queues_.held.remove(ref.page());
    block = blocks_.back();
    blocks_.pop_back();
    if (regions_.owns_page(ref.page()) && core_.word(ref.page()).is(PageState::kReady))
      back.push_back(ref.page());  // or the block that has its page now
  }
  take_back(back, round_);
  if (left_ > 0) return;
  rounds_.held_seen = round_;
  rounds_.pass_wanted = std::max(rounds_.pass_wanted, rounds_.held_seen + 1);
}

void HeldBlocks::look_at_all() {
  left_ = 0;
  look(kNever);
  queues_.place_late(kNever);
}

// The coldest come last, so that each block that is colder than all others finds its place at once.
void HeldBlocks::take_back(const std::vector<uint32_t>& blocks, uint64_t round) {
  // Each tick is read once: they are shared memory, and may change while they are sorted.
  std::vector<std::pair<uint64_t, uint32_t>> sorted;
  sorted.reserve(blocks.size());
  for (const uint32_t page : blocks) sorted.emplace_back(queues_.order.last_use(page), page);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<uint32_t> others;
  for (const auto& [tick, page] : sorted) {
    const PageWord found = core_.word(page);
    if (!found.is(PageState::kReady)) continue;
    queues_.know(page, found.generation());
    if (queues_.order.is_at_an_end(page))
      queues_.insert(page, found.generation());
    else
      others.push_back(page);
  }
  queues_.add_missing(others, round);
}

}  // namespace maru::daemon
