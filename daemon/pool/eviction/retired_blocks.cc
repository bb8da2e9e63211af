#include "daemon/pool/eviction/retired_blocks.h"

#include "libmaru/shm/blocks/pin.h"

#include <algorithm>

namespace maru::daemon {

void RetiredBlocks::add(PageRef ref) {
  if (known_.has(ref.page())) return;
  known_.add(ref.page());
  blocks_.push_back({ref});
}

size_t RetiredBlocks::finish(uint64_t lines, uint64_t pages_left, size_t blocks) {
  if (blocks_.empty()) return 0;
  const shm::LaneSet in_use = shm::with_other_hosts(core_.region, lanes_.in_use);
  const uint64_t cost = lanes_.look_lines();
  size_t left = std::min(blocks, blocks_.size());
  for (; left > 0 && lines > 0 && pages_left > 0; --left) {
    if (next_ >= blocks_.size()) next_ = 0;
    WaitingBlock& block = blocks_[next_];
    if (block.is_pinned_there()) {
      --lines;
      ++next_;
      continue;
    }
    lines -= std::min(lines, cost);
    core_.meter.add(cost);
    const PageRef ref = block.ref;
    block.pin = shm::find_pin(core_.region, in_use, ref.page());
    if (block.pin != nullptr) {
      ++next_;
      continue;
    }
    const PageRef parent =
        PageRef::from_bits(core_.region.block(ref.page()).parent.load_relaxed());  // ours while RETIRED
    queues_.inherit_use(parent, queues_.tick_of(ref.page(), ref.generation()));
    const uint64_t walked = core_.reclaim_cost(ref.page());
    core_.meter.add(cost + walked);
    uint32_t freed = 0;
    const shm::FinishStatus status = shm::finish_retired(core_.self, ref, lanes_.in_use, &freed);
    if (status == shm::FinishStatus::kPinned) {
      ++next_;
      continue;
    }
    pages_left -= std::min(pages_left, walked);
    known_.remove(ref.page());
    blocks_[next_] = blocks_.back();
    blocks_.pop_back();
    if (status != shm::FinishStatus::kFreed) continue;
    regions_.own_frees += freed;
    queues_.remove(ref.page());
    queues_.child_left(parent, nullptr);
  }
  return left;
}

}  // namespace maru::daemon
