// The batches that a stream published last, for subscribers that missed some.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

namespace maru::eventd {

class ReplayBuffer {
 public:
  using Payload = std::shared_ptr<const std::string>;
  struct Batch {
    uint64_t sequence;
    Payload payload;
  };

  ReplayBuffer(size_t batches_max, size_t bytes_max) : batches_max_(batches_max), bytes_max_(bytes_max) {}

  // Sequences follow each other. `begins`: the batch begins with AllBlocksCleared, and all blocks follow.
  void push(uint64_t sequence, Payload payload, bool begins) {
    if (begins) begin_ = sequence;
    bytes_ += payload->size();
    batches_.push_back({sequence, std::move(payload)});
    while (batches_.size() > batches_max_ || bytes_ > bytes_max_) {
      bytes_ -= batches_.front().payload->size();
      batches_.pop_front();
    }
  }

  // Whether a replay from `sequence` is whole: it lacks no batch, or it begins with AllBlocksCleared.
  bool reaches_back_to(uint64_t sequence) const {
    if (batches_.empty()) return false;
    return batches_.front().sequence <= sequence || batches_.front().sequence <= begin_;
  }

  // The first batch of a replay from `sequence`. Batches make no sense without those before them, so a replay with a gap begins
  // with AllBlocksCleared where it can.
  uint64_t begin_for(uint64_t sequence) const {
    if (batches_.empty() || batches_.front().sequence <= sequence) return sequence;
    return batches_.front().sequence <= begin_ ? begin_ : batches_.front().sequence;
  }

  // The first batch from `sequence` on; null: there is none.
  const Batch* from(uint64_t sequence) const {
    if (batches_.empty() || batches_.back().sequence < sequence) return nullptr;
    const uint64_t first = batches_.front().sequence;
    return &batches_[sequence <= first ? 0 : sequence - first];
  }

  size_t batches() const { return batches_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  const size_t batches_max_, bytes_max_;
  std::deque<Batch> batches_;
  size_t bytes_ = 0;
  uint64_t begin_ = 0;
};

}  // namespace maru::eventd
