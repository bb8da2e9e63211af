// layout.h for C++20: the same calls, with an owner for a plan. Header only, needs no exceptions.
//
//   Answer<T>   a value, or the errno and the sentence that say why there is none
//   Layout      where the elements of a KV cache lie
//   Reslice     a plan of copies between layouts; freed when it goes
//
// layout.h has the meaning, the units and the errors of each call; nothing differs here.
#ifndef MARU_LAYOUT_HPP
#define MARU_LAYOUT_HPP

#include <maru/answer.hpp>
#include <maru/layout.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru {
inline namespace api_0 {

using Refusal = RefusalWith<maru_layout_reason>;
template <typename T>
using Answer = AnswerWith<T, maru_layout_reason>;

// An array of Layout is an array of maru_layout. Each call checks the fields; the constructors do not.
struct Layout : maru_layout {
  Layout() : maru_layout{} { size = sizeof(maru_layout); }
  explicit Layout(const maru_layout& layout) : maru_layout(layout) {}

  using Encoded = std::array<std::byte, MARU_LAYOUT_ENCODED_BYTES>;
  using Fingerprint = std::array<std::byte, MARU_LAYOUT_FINGERPRINT_BYTES>;

  Answer<maru_layout_sizes> measure() const {
    return ask<maru_layout_sizes>([&](auto& ret, auto* reason) { return maru_layout_measure(this, &ret, reason); });
  }
  Answer<maru_layout_part> locate(uint64_t block, uint64_t layer, uint64_t of_outer) const {
    return ask<maru_layout_part>(
        [&](auto& ret, auto* reason) { return maru_layout_locate(this, block, layer, of_outer, &ret, reason); });
  }
  Answer<maru_layout_part> locate(const maru_layout_element& element) const {
    return ask<maru_layout_part>(
        [&](auto& ret, auto* reason) { return maru_layout_locate_element(this, &element, &ret, reason); });
  }
  Answer<std::vector<maru_layout_part>> block_parts(uint64_t block) const {
    return ask<std::vector<maru_layout_part>>([&](auto& ret, auto* reason) {
      ret.resize(2 * (layers <= MARU_LAYOUT_LAYERS_MAX ? layers : 1));
      size_t count = 0;
      const int status = maru_layout_block_parts(this, block, ret.data(), ret.size(), &count, reason);
      ret.resize(count);
      return status;
    });
  }
  Answer<Layout> slice(uint64_t tensor_ranks, uint64_t tensor_rank, uint64_t pipeline_ranks = 1,
                       uint64_t pipeline_rank = 0) const {
    return ask<Layout>([&](auto& ret, auto* reason) {
      return maru_layout_slice(this, tensor_ranks, tensor_rank, pipeline_ranks, pipeline_rank, &ret, reason);
    });
  }
  Answer<Encoded> encode() const {
    return ask<Encoded>([&](auto& ret, auto* reason) { return maru_layout_encode(this, ret.data(), reason); });
  }
  static Answer<Layout> decode(std::span<const std::byte> bytes) {
    return ask<Layout>(
        [&](auto& ret, auto* reason) { return maru_layout_decode(bytes.data(), bytes.size(), &ret, reason); });
  }
  Answer<std::string> to_json() const {
    return ask<std::string>([&](auto& ret, auto* reason) {
      std::array<char, MARU_LAYOUT_JSON_BYTES_MAX> text;
      const int status = maru_layout_to_json(this, text.data(), text.size(), reason);
      if (status == 0) ret = text.data();
      return status;
    });
  }
  static Answer<Layout> from_json(std::string_view text) {
    return ask<Layout>(
        [&](auto& ret, auto* reason) { return maru_layout_from_json(text.data(), text.size(), &ret, reason); });
  }
  Answer<Fingerprint> fingerprint() const {
    return ask<Fingerprint>([&](auto& ret, auto* reason) { return maru_layout_fingerprint(this, ret.data(), reason); });
  }

 private:
  template <typename T, typename Call>
  static Answer<T> ask(const Call& call) {
    T value{};
    Refusal refusal;
    const int status = call(value, &refusal.reason);
    if (status == 0) return value;
    refusal.code = -status;
    return refusal;
  }
};
static_assert(sizeof(Layout) == sizeof(maru_layout), "an array of Layout is passed where layout.h wants maru_layout");

class Reslice {
 public:
  // The blocks that hold the tokens, and those to fill; empty: all.
  struct Blocks {
    std::span<const uint64_t> sources;
    std::span<const uint64_t> targets;
  };

  static Answer<Reslice> plan(std::span<const Layout> sources, std::span<const Layout> targets) {
    return plan(sources, targets, nullptr);
  }
  static Answer<Reslice> plan(std::span<const Layout> sources, std::span<const Layout> targets, const Blocks& blocks) {
    maru_reslice_options options = {};
    options.size = sizeof(options);
    options.source_blocks = blocks.sources.empty() ? nullptr : blocks.sources.data();
    options.source_blocks_count = blocks.sources.size();
    options.target_blocks = blocks.targets.empty() ? nullptr : blocks.targets.data();
    options.target_blocks_count = blocks.targets.size();
    return plan(sources, targets, &options);
  }

  maru_reslice_totals totals() const {
    maru_reslice_totals totals = {};
    maru_reslice_measure(plan_.get(), &totals);
    return totals;
  }
  // As many of `ret_runs` as there are from `first` on.
  Answer<std::span<maru_reslice_run>> runs(uint64_t first, std::span<maru_reslice_run> ret_runs) const {
    size_t count = 0;
    const int status = maru_reslice_runs(plan_.get(), first, ret_runs.data(), ret_runs.size(), &count);
    if (status < 0) return Refusal{-status, {}};
    return ret_runs.first(count);
  }
  Answer<void> copy(std::span<const maru_reslice_storage> sources,
                    std::span<const maru_reslice_storage> targets) const {
    Refusal refusal;
    refusal.code = -maru_reslice_copy(plan_.get(), sources.data(), sources.size(), targets.data(), targets.size(),
                                      &refusal.reason);
    return refusal;
  }

 private:
  struct Free {
    void operator()(maru_reslice* plan) const { maru_reslice_free(plan); }
  };
  explicit Reslice(maru_reslice* plan) : plan_(plan) {}
  static Answer<Reslice> plan(std::span<const Layout> sources, std::span<const Layout> targets,
                              const maru_reslice_options* options) {
    Refusal refusal;
    maru_reslice* plan = nullptr;
    const int status = maru_reslice_plan(options, sources.data(), sources.size(), targets.data(), targets.size(), &plan,
                                         &refusal.reason);
    if (status == 0) return Reslice(plan);
    refusal.code = -status;
    return refusal;
  }

  std::unique_ptr<maru_reslice, Free> plan_;
};

}  // namespace api_0
}  // namespace maru

#endif
