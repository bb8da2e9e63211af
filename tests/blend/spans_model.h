// A matcher that is too slow to be wrong: each window of a prompt is looked for among all chunks that were stored, token by
// token, and the spans are chosen one after the other. What maru_find_spans() must equal.
#pragma once

#include "maru/spans.h"

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace maru::test {

class SpansModel {
 public:
  struct Span {
    uint64_t old_start, new_start;
    friend bool operator==(const Span&, const Span&) = default;
  };

  SpansModel(size_t window, size_t occupants) : window_(window), occupants_(occupants) {}

  // False: these tokens are there already, from this position or often enough.
  bool store(std::span<const uint32_t> tokens, uint64_t position) {
    std::vector<uint64_t>& positions = chunks_[{tokens.begin(), tokens.end()}];
    for (const uint64_t there : positions)
      if (there == position) return false;
    if (positions.size() == occupants_) return false;
    positions.push_back(position);
    return true;
  }
  size_t blocks() const {
    size_t blocks = 0;
    for (const auto& [tokens, positions] : chunks_) blocks += positions.size();
    return blocks;
  }
  const std::map<std::vector<uint32_t>, std::vector<uint64_t>>& chunks() const { return chunks_; }

  std::vector<Span> find(std::span<const uint32_t> tokens, const maru_find_spans_options& options) const {
    const uint64_t step = options.step != 0 ? options.step : 1;
    std::vector<Span> all;
    for (uint64_t at = options.first; at + window_ <= tokens.size();) {
      const uint64_t* old_start = at % step == 0 ? nearest(tokens.subspan(at, window_), at, options.flags) : nullptr;
      if (old_start != nullptr) all.push_back({*old_start, at});
      at += old_start != nullptr ? window_ : 1;
    }
    std::vector<Span> found;
    for (size_t begin = 0, end; begin < all.size(); begin = end) {
      for (end = begin + 1; end < all.size() && all[end].new_start == all[end - 1].new_start + window_ &&
                            all[end].old_start == all[end - 1].old_start + window_;)
        ++end;
      if ((end - begin) * window_ >= options.tokens_min)
        found.insert(found.end(), all.begin() + std::ptrdiff_t(begin), all.begin() + std::ptrdiff_t(end));
    }
    if (options.spans_max != 0 && found.size() > options.spans_max) found.resize(options.spans_max);
    return found;
  }

 private:
  const uint64_t* nearest(std::span<const uint32_t> tokens, uint64_t at, uint32_t flags) const {
    const auto found = chunks_.find({tokens.begin(), tokens.end()});
    if (found == chunks_.end()) return nullptr;
    const auto distance = [&](uint64_t position) { return position > at ? position - at : at - position; };
    const uint64_t* best = nullptr;
    for (const uint64_t& position : found->second) {
      if (position == 0 && (flags & MARU_FIND_SKIP_FIRST) != 0) continue;
      if (best == nullptr || distance(position) < distance(*best)) best = &position;
    }
    return best;
  }

  size_t window_, occupants_;
  std::map<std::vector<uint32_t>, std::vector<uint64_t>> chunks_;
};

}  // namespace maru::test
