// Tokens in the storages of several layouts, one element at a time: what a re-slicing is compared with. An element of the model
// has a value of its own, whichever rank holds it.
#pragma once

#include "tests/support/layout_model.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

namespace maru::test {

// A head and so on of the whole model, and a token of the whole sequence.
struct ModelElement {
  uint64_t token, layer, outer, head, dim;
  auto operator<=>(const ModelElement&) const = default;
};

inline uint64_t value_of(const ModelElement& element) {
  Random random(((((element.token * 1009 + element.layer) * 1009 + element.outer) * 1009 + element.head) * 1009) +
                element.dim);
  return random.next();
}

constexpr uint8_t kUntouched = 0xEE;

// The storages of all layouts of one side.
class ResliceSide {
 public:
  // `skew`: the storages begin at so many bytes after a multiple of 64.
  ResliceSide(std::vector<maru_layout> layouts, std::vector<uint64_t> blocks, uint64_t skew = 0)
      : layouts_(std::move(layouts)), blocks_(std::move(blocks)) {
    for (const maru_layout& layout : layouts_) {
      first_storage_.push_back(storages_.size());
      maru_layout_sizes sizes = {};
      if (maru_layout_measure(&layout, &sizes, nullptr) != 0) std::abort();
      for (uint64_t i = 0; i < sizes.storages; ++i) {
        memory_.emplace_back(sizes.allocation_bytes + 64 + skew, kUntouched);
        uint8_t* data = memory_.back().data();
        while (reinterpret_cast<uintptr_t>(data) % 64 != skew) ++data;
        storages_.push_back({data, sizes.allocation_bytes});
      }
    }
  }

  const std::vector<maru_layout>& layouts() const { return layouts_; }
  const std::vector<uint64_t>& blocks() const { return blocks_; }
  const std::vector<maru_reslice_storage>& storages() const { return storages_; }
  const std::vector<std::vector<uint8_t>>& memory() const { return memory_; }
  uint64_t width() const { return width_of(layouts_[0].dtype); }

  // Calls visit(model element, layout, storage, offset) for each element of each layout.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < layouts_.size(); ++i) {
      const maru_layout& layout = layouts_[i];
      for (size_t at = 0; at < blocks_.size(); ++at)
        for (uint64_t layer = 0; layer < layout.layers; ++layer)
          for (uint64_t outer = 0; outer < layout.outer; ++outer)
            for (uint64_t token = 0; token < layout.page_tokens; ++token)
              for (uint64_t head = 0; head < layout.heads; ++head)
                for (uint64_t dim = 0; dim < layout.head_dim; ++dim) {
                  const maru_layout_element element = {blocks_[at], layer, outer, token, head, dim};
                  maru_layout_part part = {};
                  if (maru_layout_locate_element(&layout, &element, &part, nullptr) != 0) std::abort();
                  visit(ModelElement{at * layout.page_tokens + token, layout.first_layer + layer, outer,
                                     layout.first_head + head, dim},
                        i, first_storage_[i] + part.storage, part.offset);
                }
    }
  }

  void fill() {
    for_each([&](const ModelElement& element, size_t layout, uint64_t storage, uint64_t offset) {
      const uint64_t value = value_of(element);
      std::memcpy(address(layout, storage) + offset, &value, width());
    });
  }

  void clear() {
    for (std::vector<uint8_t>& memory : memory_) std::fill(memory.begin(), memory.end(), kUntouched);
  }

  // The base of a storage, brought to the alignment of its layout.
  uint8_t* address(size_t layout, uint64_t storage) const {
    uint64_t skipped = 0;
    const auto base = reinterpret_cast<uintptr_t>(storages_[storage].data);
    if (maru_layout_base_offset(base, layouts_[layout].alignment, &skipped, nullptr) != 0) std::abort();
    return static_cast<uint8_t*>(storages_[storage].data) + skipped;
  }

 private:
  std::vector<maru_layout> layouts_;
  std::vector<uint64_t> blocks_;
  std::vector<size_t> first_storage_;
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<maru_reslice_storage> storages_;
};

class PlanPointer {
 public:
  PlanPointer() = default;
  ~PlanPointer() { maru_reslice_free(plan_); }
  PlanPointer(const PlanPointer&) = delete;
  PlanPointer& operator=(const PlanPointer&) = delete;
  maru_reslice* get() const { return plan_; }
  maru_reslice** out() { return &plan_; }

 private:
  maru_reslice* plan_ = nullptr;
};

inline int make_plan(const ResliceSide& sources, const ResliceSide& targets, PlanPointer& ret_plan,
                     maru_layout_reason* reason) {
  maru_reslice_options options = {};
  options.size = sizeof(options);
  options.source_blocks = sources.blocks().data();
  options.source_blocks_count = sources.blocks().size();
  options.target_blocks = targets.blocks().data();
  options.target_blocks_count = targets.blocks().size();
  return maru_reslice_plan(&options, sources.layouts().data(), sources.layouts().size(), targets.layouts().data(),
                           targets.layouts().size(), ret_plan.out(), reason);
}

inline int copy_sides(const PlanPointer& plan, const ResliceSide& sources, const ResliceSide& targets,
                      maru_layout_reason* reason) {
  return maru_reslice_copy(plan.get(), sources.storages().data(), sources.storages().size(), targets.storages().data(),
                           targets.storages().size(), reason);
}

}  // namespace maru::test
