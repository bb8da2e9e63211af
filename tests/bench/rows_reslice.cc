// Re-slicing a KV cache between numbers of ranks, beside the best copy of as many bytes.
#include "tests/bench/clock.h"
#include "tests/bench/floors.h"
#include "tests/bench/suite.h"

#include <algorithm>
#include <cstring>
#include <maru/layout.h>
#include <stdexcept>

namespace maru::bench {

namespace {

constexpr uint64_t kBytes = 32 << 20;
constexpr uint64_t kPageTokens = 16;
constexpr uint64_t kHeads = 8;

void must_not_fail(int status, const maru_layout_reason& reason) {
  if (status < 0) throw std::runtime_error(std::string("re-slicing: ") + reason.text);
}

// A model whose heads have so many bytes for each token, with blocks for kBytes.
maru_layout model_of(uint32_t order, uint64_t head_bytes) {
  maru_layout layout = {};
  layout.size = sizeof(layout);
  layout.kind = MARU_LAYOUT_CONTIGUOUS;
  layout.order = order;
  layout.dtype = MARU_LAYOUT_FLOAT16;
  layout.outer = 2;
  layout.layers = 32;
  layout.page_tokens = kPageTokens;
  layout.heads = kHeads;
  layout.head_dim = head_bytes / 2;
  layout.blocks = kBytes / (2 * layout.layers * kPageTokens * kHeads * head_bytes);
  return layout;
}

// The storages of all ranks lie in one piece of memory each for sources and for targets, which all resliced models share.
class Resliced {
 public:
  Resliced(const maru_layout& whole, uint64_t from_ranks, uint64_t to_ranks, const FloorMemory& from,
           const FloorMemory& to)
      : sources_(storages_of(whole, from_ranks, from)), targets_(storages_of(whole, to_ranks, to)) {
    const std::vector<maru_layout> source_ranks = ranks_of(whole, from_ranks), target_ranks = ranks_of(whole, to_ranks);
    maru_layout_reason reason = {};
    must_not_fail(
        maru_reslice_plan(nullptr, source_ranks.data(), from_ranks, target_ranks.data(), to_ranks, &plan_, &reason),
        reason);
  }
  ~Resliced() { maru_reslice_free(plan_); }
  Resliced(const Resliced&) = delete;
  Resliced& operator=(const Resliced&) = delete;

  maru_reslice_totals totals() const {
    maru_reslice_totals totals = {};
    maru_reslice_measure(plan_, &totals);
    return totals;
  }

  double sample(uint64_t copies) {
    Laps laps;
    for (uint64_t i = 0; i < copies; ++i) {
      maru_layout_reason reason = {};
      const uint64_t started_ns = now_ns();
      must_not_fail(
          maru_reslice_copy(plan_, sources_.data(), sources_.size(), targets_.data(), targets_.size(), &reason),
          reason);
      laps.add(now_ns() - started_ns, 1);
    }
    return laps.median();
  }

 private:
  static std::vector<maru_layout> ranks_of(const maru_layout& whole, uint64_t ranks) {
    std::vector<maru_layout> layouts(ranks);
    maru_layout_reason reason = {};
    for (uint64_t i = 0; i < ranks; ++i)
      must_not_fail(maru_layout_slice(&whole, ranks, i, 1, 0, &layouts[i], &reason), reason);
    return layouts;
  }
  static std::vector<maru_reslice_storage> storages_of(const maru_layout&, uint64_t ranks, const FloorMemory& memory) {
    std::vector<maru_reslice_storage> storages;
    for (uint64_t i = 0; i < ranks; ++i) storages.push_back({memory.data() + i * (kBytes / ranks), kBytes / ranks});
    return storages;
  }

  std::vector<maru_reslice_storage> sources_, targets_;
  maru_reslice* plan_ = nullptr;
};

double best_copy(const FloorMemory& from, const FloorMemory& to, uint64_t copies, const CopyWay& way) {
  Laps laps;
  for (uint64_t i = 0; i < copies; ++i) {
    const uint64_t started_ns = now_ns();
    way.copy(to.data(), from.data(), kBytes);
    laps.add(now_ns() - started_ns, 1);
  }
  return laps.median();
}

// The medians of some rounds in which both take turns, as rows have them.
double ratio(Suite& suite, Resliced& resliced, const FloorMemory& from, const FloorMemory& to, uint64_t copies) {
  const std::vector<CopyWay> ways = copy_ways();
  Laps ours;
  std::vector<Laps> floors(ways.size());
  for (unsigned round = 0; round < suite.rounds(); ++round) {
    ours.add(uint64_t(resliced.sample(copies)), 1);
    for (size_t i = 0; i < ways.size(); ++i) floors[i].add(uint64_t(best_copy(from, to, copies, ways[i])), 1);
  }
  double best = floors[0].median();
  for (Laps& floor : floors) best = std::min(best, floor.median());
  return ours.median() / best;
}

}  // namespace

void reslice_rows(Suite& suite) {
  const FloorMemory from(kBytes, true), to(kBytes, true);
  std::memset(from.data(), 3, kBytes);
  const uint64_t copies = suite.operations(24);
  // A head's tokens of a block are one run where heads come first: 16 tokens of 256 bytes.
  Resliced pages(model_of(MARU_LAYOUT_HND, 256), 4, 8, from, to), back(model_of(MARU_LAYOUT_HND, 256), 8, 4, from, to);
  // Where tokens come first, a run is the head of one token.
  Resliced heads(model_of(MARU_LAYOUT_NHD, 256), 4, 8, from, to), lines(model_of(MARU_LAYOUT_NHD, 64), 4, 8, from, to);
  const auto ratio_of = [&](Resliced& resliced) {
    return [&suite, &resliced, &from, &to, copies] { return ratio(suite, resliced, from, to, copies); };
  };

  std::vector<Contestant> contestants = {{"value", [&] { return pages.sample(copies); }}};
  for (const CopyWay& way : copy_ways())
    contestants.push_back({"floor", [&from, &to, copies, way] { return best_copy(from, to, copies, way); }});
  Facts facts;
  facts.huge_pages = huge_pages_mapped("bench-floor");
  facts.note = "runs of " + std::to_string(pages.totals().run_bytes_min) + " bytes";
  facts.extra = {{"ratio_run_4096", ratio_of(pages)},
                 {"ratio_run_4096_tp8_tp4", ratio_of(back)},
                 {"ratio_run_256", ratio_of(heads)},
                 {"ratio_run_64", ratio_of(lines)}};
  suite.measure("reslice_tp4_tp8", contestants, facts);
}

}  // namespace maru::bench
