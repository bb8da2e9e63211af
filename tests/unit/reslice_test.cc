// Re-slicing: every byte of the targets, and every run of the plan, against references that index one element at a time.
#include "tests/support/reslice_model.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <numeric>
#include <set>
#include <string>

namespace {

using namespace maru::test;
using Run = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t>;  // target, offset, source, offset, bytes

std::vector<uint64_t> first_blocks(uint64_t count) {
  std::vector<uint64_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), uint64_t{0});
  return blocks;
}

std::vector<maru_layout> ranks_of(const maru_layout& whole, uint64_t tensor_ranks, uint64_t pipeline_ranks = 1) {
  std::vector<maru_layout> layouts;
  for (uint64_t stage = 0; stage < pipeline_ranks; ++stage)
    for (uint64_t rank = 0; rank < tensor_ranks; ++rank) {
      maru_layout layout = {};
      if (maru_layout_slice(&whole, tensor_ranks, rank, pipeline_ranks, stage, &layout, nullptr) != 0) std::abort();
      layouts.push_back(layout);
    }
  return layouts;
}

// The place of an element among those of its layout, the slowest dimension first.
struct Coordinate {
  char dimension;  // Block, Layer, Outer, Token, Head; the dim of a head comes last everywhere
  uint64_t index;
};

std::vector<Coordinate> coordinates(const maru_layout& layout, uint64_t block, const ModelElement& element) {
  const Coordinate b = {'B', block}, l = {'L', element.layer}, o = {'O', element.outer};
  const Coordinate t = {'T', element.token % layout.page_tokens}, h = {'H', element.head};
  std::vector<Coordinate> order;
  if (layout.kind == MARU_LAYOUT_CONTIGUOUS) order = {b, l, o};
  if (layout.kind == MARU_LAYOUT_SEPARATE_OUTER) order = {l, o, b};
  if (layout.kind == MARU_LAYOUT_SEPARATE_BLOCK) order = {l, b, o};
  const bool is_nhd = layout.order == MARU_LAYOUT_NHD;
  order.push_back(is_nhd ? t : h);
  order.push_back(is_nhd ? h : t);
  return order;
}

// Those dimensions that begin anew between two neighbours, in the order in which they lie.
std::string wrapped(const ResliceSide& side, size_t layout, const ModelElement& a, const ModelElement& b) {
  const maru_layout& of = side.layouts()[layout];
  const auto before = coordinates(of, side.blocks()[a.token / of.page_tokens], a);
  const auto after = coordinates(of, side.blocks()[b.token / of.page_tokens], b);
  std::string dimensions;
  for (size_t i = 0; i < before.size(); ++i)
    if (after[i].index < before[i].index) dimensions += before[i].dimension;
  return dimensions;
}

// Neighbours on both sides are a corner where dimensions begin anew in another order on either side: the last element of a
// matrix and the first of the next one are neighbours in the transposed matrices, too. So they may be where blocks begin anew
// although not all are copied. No pattern with constant strides has such a run.
bool is_corner(const ResliceSide& sources, size_t source, const ResliceSide& targets, size_t target,
               const ModelElement& a, const ModelElement& b) {
  const std::string of_source = wrapped(sources, source, a, b), of_target = wrapped(targets, target, a, b);
  if (of_source != of_target) return true;
  const auto has_all = [](const ResliceSide& side) { return side.blocks() == first_blocks(side.layouts()[0].blocks); };
  return of_target.find('B') != std::string::npos && !(has_all(sources) && has_all(targets));
}

// The longest runs there can be: neighbours on both sides, found by sorting all elements. A target has an element from the
// first source that has it.
std::set<Run> longest_runs(const ResliceSide& sources, const ResliceSide& targets, bool with_corners) {
  struct Found {
    size_t layout;
    Place place;
  };
  std::map<ModelElement, Found> first;
  sources.for_each([&](const ModelElement& element, size_t layout, uint64_t storage, uint64_t offset) {
    first.try_emplace(element, layout, Place(storage, offset));
  });
  struct Pair {
    ModelElement element;
    size_t layout;
    Found source;
  };
  std::map<Place, Pair> pairs;
  targets.for_each([&](const ModelElement& element, size_t layout, uint64_t storage, uint64_t offset) {
    pairs[{storage, offset}] = {element, layout, first.at(element)};
  });
  std::set<Run> runs;
  Run open = {};
  const Pair* before = nullptr;
  for (const auto& [target, pair] : pairs) {
    auto& [target_storage, target_offset, source_storage, source_offset, bytes] = open;
    if (before != nullptr && target == Place(target_storage, target_offset + bytes) &&
        pair.source.place == Place(source_storage, source_offset + bytes) &&
        (with_corners ||
         !is_corner(sources, pair.source.layout, targets, pair.layout, before->element, pair.element))) {
      bytes += targets.width();
    } else {
      if (before != nullptr) runs.insert(open);
      open = Run(target.first, target.second, pair.source.place.first, pair.source.place.second, targets.width());
    }
    before = &pair;
  }
  runs.insert(open);
  return runs;
}

// All runs, read `at_once` at a time.
std::set<Run> runs_of(const PlanPointer& plan, size_t at_once) {
  std::set<Run> runs;
  std::vector<maru_reslice_run> some(at_once);
  size_t count = 0;
  for (uint64_t first = 0; maru_reslice_runs(plan.get(), first, some.data(), at_once, &count) == 0; first += count)
    for (size_t i = 0; i < count; ++i)
      EXPECT_TRUE(runs.insert({some[i].target_storage, some[i].target_offset, some[i].source_storage,
                               some[i].source_offset, some[i].bytes})
                      .second);
  return runs;
}

// Of these runs the one in which `run` lies, source and target.
void expect_within(const Run& run, const std::set<Run>& runs) {
  const auto& [storage, offset, source, source_offset, bytes] = run;
  const auto after = runs.upper_bound({storage, offset, UINT64_MAX, 0, 0});
  ASSERT_TRUE(after != runs.begin());
  const Run& within = *std::prev(after);
  ASSERT_EQ(storage, std::get<0>(within));
  ASSERT_EQ(source, std::get<2>(within));
  ASSERT_EQ(offset - std::get<1>(within), source_offset - std::get<3>(within));
  ASSERT_LE(offset + bytes, std::get<1>(within) + std::get<4>(within));
}

// No run is longer than there can be, and, where the pages of both sides have as many tokens, none ends before a corner.
void expect_longest_runs(const PlanPointer& plan, const ResliceSide& sources, const ResliceSide& targets) {
  const std::set<Run> runs = runs_of(plan, 7), longest = longest_runs(sources, targets, true);
  if (sources.layouts()[0].page_tokens == targets.layouts()[0].page_tokens) {
    for (const Run& run : longest_runs(sources, targets, false)) expect_within(run, runs);
  }
  uint64_t bytes = 0, bytes_of_longest = 0, least = UINT64_MAX, most = 0;
  for (const Run& run : longest) bytes_of_longest += std::get<4>(run);
  for (const Run& run : runs) {
    expect_within(run, longest);
    const uint64_t run_bytes = std::get<4>(run);
    bytes += run_bytes;
    least = std::min(least, run_bytes);
    most = std::max(most, run_bytes);
  }
  maru_reslice_totals totals = {};
  ASSERT_EQ(maru_reslice_measure(plan.get(), &totals), 0);
  EXPECT_EQ(bytes, bytes_of_longest);
  EXPECT_EQ(totals.bytes, bytes);
  EXPECT_EQ(totals.runs, runs.size());
  EXPECT_EQ(totals.run_bytes_min, least);
  EXPECT_EQ(totals.run_bytes_max, most);
  EXPECT_LE(totals.moves, totals.runs);
}

// A copy, and the same element by element: all of the targets' memory is equal, with what lies between and behind the elements.
void expect_copied(const PlanPointer& plan, ResliceSide& sources, ResliceSide& targets, int times = 1) {
  sources.fill();
  targets.fill();
  const std::vector<std::vector<uint8_t>> expected = targets.memory(), before = sources.memory();
  for (int i = 0; i < times; ++i) {
    targets.clear();
    maru_layout_reason reason = {};
    ASSERT_EQ(copy_sides(plan, sources, targets, &reason), 0) << reason.text;
    ASSERT_TRUE(targets.memory() == expected) << "copy " << i;
  }
  ASSERT_TRUE(sources.memory() == before);
}

void expect_resliced(ResliceSide& sources, ResliceSide& targets, bool check_runs = true, int times = 1) {
  PlanPointer plan;
  maru_layout_reason reason = {};
  ASSERT_EQ(make_plan(sources, targets, plan, &reason), 0) << reason.text;
  if (check_runs) expect_longest_runs(plan, sources, targets);
  expect_copied(plan, sources, targets, times);
}

// Some distinct blocks of a layout, in any order.
std::vector<uint64_t> some_blocks(Random& random, uint64_t of, uint64_t count) {
  std::vector<uint64_t> blocks = first_blocks(of);
  if (random.one_in(2))
    for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(i)]);
  blocks.resize(count);
  return blocks;
}

// One side of a random re-slicing of these heads and layers.
ResliceSide random_side(Random& random, maru_layout whole, uint64_t tokens) {
  do whole.page_tokens = 1 + random.below(tokens);
  while (tokens % whole.page_tokens != 0);
  const uint64_t used = tokens / whole.page_tokens;
  whole.blocks = used + random.below(3);
  const auto split = [&](uint64_t total) {
    uint64_t ranks = 1 + random.below(total);
    while (total % ranks != 0) --ranks;
    return ranks;
  };
  std::vector<maru_layout> layouts = ranks_of(whole, split(whole.heads), split(whole.layers));
  const bool are_alike = random.one_in(2);
  const maru_layout look = random_layout(random);
  for (maru_layout& layout : layouts) {
    const maru_layout own = are_alike ? look : random_layout(random);
    layout.kind = own.kind;
    layout.order = own.order;
    layout.alignment = random.one_in(2) ? 1 : own.alignment;
  }
  return ResliceSide(layouts, some_blocks(random, whole.blocks, used), random.one_in(2) ? 0 : random.below(64));
}

TEST(Reslice, AnyLayoutsEqualTheReference) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 200 && !::testing::Test::HasFatalFailure(); ++i) {
    SCOPED_TRACE("number " + std::to_string(i));
    maru_layout whole = random_layout(random);
    whole.heads = 1 + random.below(4);
    const uint64_t tokens = 1 + random.below(12);
    ResliceSide sources = random_side(random, whole, tokens);
    ResliceSide targets = random_side(random, whole, tokens);
    expect_resliced(sources, targets);
  }
}

maru_layout model_of(uint32_t kind, uint32_t order, uint64_t blocks = 5) {
  return make_layout(kind, order, MARU_LAYOUT_FLOAT16, 2, blocks, 3, 16, 8, 16);
}

TEST(Reslice, FourRanksToEightAndBack) {
  for (const uint32_t order : {MARU_LAYOUT_NHD, MARU_LAYOUT_HND}) {
    const maru_layout whole = model_of(MARU_LAYOUT_CONTIGUOUS, order);
    ResliceSide four(ranks_of(whole, 4), {4, 0, 1}), eight(ranks_of(whole, 8), {2, 3, 0});
    expect_resliced(four, eight);
    expect_resliced(eight, four);
  }
}

TEST(Reslice, TokensFirstToHeadsFirstAndBack) {
  ResliceSide nhd({model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD)}, {1, 2, 3});
  ResliceSide hnd({model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_HND)}, {4, 3, 2});
  expect_resliced(nhd, hnd);
  expect_resliced(hnd, nhd);
}

TEST(Reslice, LayersApartToOnePieceAndBack) {
  for (const uint32_t kind : {MARU_LAYOUT_SEPARATE_OUTER, MARU_LAYOUT_SEPARATE_BLOCK}) {
    ResliceSide apart({model_of(kind, MARU_LAYOUT_NHD)}, {1, 0});
    ResliceSide whole({model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD)}, {3, 1});
    expect_resliced(apart, whole);
    expect_resliced(whole, apart);
  }
}

TEST(Reslice, PagesOfSixteenTokensToPagesOfAnotherSize) {
  for (const uint64_t page_tokens : {8, 12, 48}) {
    maru_layout other = model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD, 10);
    other.page_tokens = page_tokens;
    ResliceSide sixteen({model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD)}, {0, 1, 2});
    ResliceSide others({other}, first_blocks(48 / page_tokens));
    expect_resliced(sixteen, others);
    expect_resliced(others, sixteen);
  }
}

TEST(Reslice, MoreRanksThanHeadsHaveTheSameHeads) {
  const maru_layout whole = model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD);
  ResliceSide four(ranks_of(whole, 4), {0, 1}), sixteen(ranks_of(whole, 16), {0, 1});
  expect_resliced(four, sixteen);
  expect_resliced(sixteen, four);
}

// More targets than one pass over a source fills.
TEST(Reslice, OneRankToAHundredAndThirtyAndBack) {
  const maru_layout whole = make_layout(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD, MARU_LAYOUT_UINT8, 2, 2, 1, 3, 130, 2);
  ResliceSide one({whole}, {1, 0}), many(ranks_of(whole, 130), {0, 1});
  expect_resliced(one, many);
  expect_resliced(many, one);
}

TEST(Reslice, EqualLayoutsAreOneRun) {
  ResliceSide here({model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD)}, {1, 2, 3});
  ResliceSide there({model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD)}, {0, 1, 2});
  PlanPointer plan;
  ASSERT_EQ(make_plan(here, there, plan, nullptr), 0);
  maru_reslice_totals totals = {};
  ASSERT_EQ(maru_reslice_measure(plan.get(), &totals), 0);
  EXPECT_EQ(totals.runs, 1u);
  expect_copied(plan, here, there);
}

// A thousand blocks that lie apart and in order are one pattern.
TEST(Reslice, PlanOfManyBlocksIsSmall) {
  maru_layout whole = model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD, 1000);
  whole.alignment = 1 << 16;
  const std::vector<maru_layout> four = ranks_of(whole, 4), eight = ranks_of(whole, 8);
  PlanPointer plan;
  ASSERT_EQ(maru_reslice_plan(nullptr, four.data(), 4, eight.data(), 8, plan.out(), nullptr), 0);
  maru_reslice_totals totals = {};
  ASSERT_EQ(maru_reslice_measure(plan.get(), &totals), 0);
  EXPECT_EQ(totals.moves, 8u);
  EXPECT_EQ(totals.runs, 8u * 1000 * 3 * 2 * 16);
  EXPECT_EQ(totals.run_bytes_max, 32u);
}

// As large as it must be for each way of copying to have its turns, with runs of a line, of some lines and of a page.
TEST(Reslice, LargeCopiesEqualTheReferenceInEachWay) {
  // A single long run first, while the ways still take turns.
  const maru_layout equal =
      make_layout(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD, MARU_LAYOUT_FLOAT64, 2, 1, 2, 16, 8, 512);
  ResliceSide here({equal}, {0}), there({equal}, {0});
  expect_resliced(here, there, false, 2);
  struct Size {
    uint32_t order;
    uint64_t page_tokens, head_dim;
  };
  for (const Size& size : {Size{MARU_LAYOUT_NHD, 16, 8}, Size{MARU_LAYOUT_NHD, 16, 112}, Size{MARU_LAYOUT_HND, 32, 16},
                           Size{MARU_LAYOUT_HND, 33, 13}}) {
    maru_layout whole = make_layout(MARU_LAYOUT_CONTIGUOUS, size.order, MARU_LAYOUT_FLOAT64, 2, 1, 2, size.page_tokens,
                                    8, size.head_dim);
    whole.blocks = (1 << 20) / (size.page_tokens * size.head_dim * 8 * 2 * 2 * 8) + 1;
    ResliceSide four(ranks_of(whole, 4), first_blocks(whole.blocks)),
        eight(ranks_of(whole, 8), first_blocks(whole.blocks));
    expect_resliced(four, eight, false, 40);
    expect_resliced(eight, four, false, 2);
  }
}

// -- refusals --------------------------------------------------------------------------------------------------------

int plan_status(const maru_reslice_options* options, const std::vector<maru_layout>& sources,
                const std::vector<maru_layout>& targets, std::string& ret_reason) {
  PlanPointer plan;
  maru_layout_reason reason = {};
  const int status =
      maru_reslice_plan(options, sources.data(), sources.size(), targets.data(), targets.size(), plan.out(), &reason);
  EXPECT_EQ(plan.get() == nullptr, status != 0);
  ret_reason = reason.text;
  return status;
}

TEST(Reslice, RefusesLayoutsOfOtherTokens) {
  const maru_layout whole = model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD);
  const auto refused = [&](const maru_layout& target, const std::string& words) {
    std::string reason;
    EXPECT_EQ(plan_status(nullptr, {whole}, {target}, reason), -EINVAL) << words;
    EXPECT_EQ(reason, words);
  };
  maru_layout other = whole;
  other.dtype = MARU_LAYOUT_BFLOAT16;
  refused(other, "dtype of target 0 is 6, expected 5 as source 0 has");
  other = whole;
  other.outer = 1;
  refused(other, "outer of target 0 is 1, expected 2 as source 0 has");
  other = whole;
  other.head_dim = 32;
  refused(other, "head_dim of target 0 is 32, expected 16 as source 0 has");
  other = whole;
  other.heads = 4;
  refused(other, "heads_total of target 0 is 4, expected 8 as source 0 has");
  other = whole;
  other.layers = 4;
  refused(other, "layers_total of target 0 is 4, expected 3 as source 0 has");
  other = whole;
  other.blocks = 6;
  refused(other, "5 source blocks of 16 tokens have 80 tokens, 6 target blocks of 16 have 96");
  other = whole;
  other.kind = 0;
  refused(other, "target 0: kind is 0, expected 1 to 3");
  std::string reason;
  other = whole;
  other.blocks = 4;
  EXPECT_EQ(plan_status(nullptr, {whole, other}, {whole}, reason), -EINVAL);
  EXPECT_EQ(reason, "blocks of source 1 is 4, expected 5 as source 0 has");
  other = whole;
  other.page_tokens = 8;
  EXPECT_EQ(plan_status(nullptr, {whole}, {whole, other}, reason), -EINVAL);
  EXPECT_EQ(reason, "page_tokens of target 1 is 8, expected 16 as target 0 has");
  EXPECT_EQ(plan_status(nullptr, {}, {whole}, reason), -EINVAL);
  EXPECT_EQ(plan_status(nullptr, std::vector<maru_layout>(MARU_RESLICE_LAYOUTS_MAX + 1, whole), {whole}, reason),
            -EINVAL);
}

TEST(Reslice, RefusesTargetsThatNoSourceFills) {
  const maru_layout whole = model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD);
  std::vector<maru_layout> four = ranks_of(whole, 4);
  four.erase(four.begin() + 2);
  std::string reason;
  EXPECT_EQ(plan_status(nullptr, four, ranks_of(whole, 8), reason), -ENODATA);
  EXPECT_EQ(reason, "no source has head 4 of layer 0, which target 4 wants");
  std::vector<maru_layout> stages = ranks_of(whole, 1, 3);
  stages.pop_back();
  EXPECT_EQ(plan_status(nullptr, stages, {whole}, reason), -ENODATA);
  EXPECT_EQ(reason, "no source has head 0 of layer 2, which target 0 wants");
}

TEST(Reslice, RefusesBlocksByNumber) {
  const maru_layout whole = model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD);
  std::string reason;
  const auto status_of = [&](std::vector<uint64_t> sources, std::vector<uint64_t> targets) {
    maru_reslice_options options = {};
    options.size = sizeof(options);
    options.source_blocks = sources.data();
    options.source_blocks_count = sources.size();
    options.target_blocks = targets.data();
    options.target_blocks_count = targets.size();
    return plan_status(&options, {whole}, {whole}, reason);
  };
  EXPECT_EQ(status_of({0, 1}, {0, 5}), -ERANGE);
  EXPECT_EQ(reason, "there is no target block 5; the layout has 5, from 0");
  EXPECT_EQ(status_of({UINT64_MAX, 1}, {0, 4}), -ERANGE);
  EXPECT_EQ(status_of({0, 1}, {3, 3}), -EINVAL);
  EXPECT_EQ(reason, "the target block 3 is to be filled twice");
  EXPECT_EQ(status_of({2, 2}, {0, 1}), 0);  // read twice is fine
  EXPECT_EQ(status_of({1}, {0, 1}), -EINVAL);
  maru_reslice_options options = {};
  EXPECT_EQ(plan_status(&options, {whole}, {whole}, reason), -EINVAL);
  options.size = sizeof(options);
  options.reserved[0] = 1;
  EXPECT_EQ(plan_status(&options, {whole}, {whole}, reason), -EINVAL);
  uint64_t none = 0;
  options.reserved[0] = 0;
  options.source_blocks = &none;
  EXPECT_EQ(plan_status(&options, {whole}, {whole}, reason), -EINVAL);
  EXPECT_EQ(reason, "there are 0 source blocks, expected 1 to 16777216");
}

TEST(Reslice, RefusesAPlanWithTooManyMoves) {
  maru_layout whole =
      make_layout(MARU_LAYOUT_SEPARATE_BLOCK, MARU_LAYOUT_NHD, MARU_LAYOUT_UINT8, 2, 100, 65536, 1, 64, 1);
  const std::vector<maru_layout> ranks = ranks_of(whole, 64);
  std::vector<uint64_t> blocks = first_blocks(100);
  std::reverse(blocks.begin(), blocks.end());
  maru_reslice_options options = {};
  options.size = sizeof(options);
  options.source_blocks = blocks.data();
  options.source_blocks_count = blocks.size();
  std::string reason;
  EXPECT_EQ(plan_status(&options, ranks, {whole}, reason), -E2BIG);
  EXPECT_EQ(reason, "the plan has more than 4194303 moves; plan fewer blocks at a time");
}

class ResliceStorages : public ::testing::Test {
 protected:
  ResliceStorages() {
    EXPECT_EQ(make_plan(sources_, targets_, plan_, nullptr), 0);
    from_ = sources_.storages();
    to_ = targets_.storages();
  }
  void expect(int status, const std::string& words) {
    targets_.clear();
    const auto before = targets_.memory();
    maru_layout_reason reason = {};
    EXPECT_EQ(maru_reslice_copy(plan_.get(), from_.data(), from_.size(), to_.data(), to_.size(), &reason), status);
    EXPECT_EQ(reason.text, words);
    EXPECT_EQ(targets_.memory(), before);
  }

  static constexpr uint64_t kAlignment = 256;
  static maru_layout aligned(uint32_t kind) {
    maru_layout layout = make_layout(kind, MARU_LAYOUT_NHD, MARU_LAYOUT_UINT8, 2, 2, 2, 4, 2, 4, kAlignment);
    return layout;
  }
  ResliceSide sources_{{aligned(MARU_LAYOUT_CONTIGUOUS)}, {0, 1}, 32};
  ResliceSide targets_{{aligned(MARU_LAYOUT_SEPARATE_BLOCK)}, {0, 1}, 32};
  PlanPointer plan_;
  std::vector<maru_reslice_storage> from_, to_;
};

TEST_F(ResliceStorages, AreAsManyAsThePlanSays) {
  to_.pop_back();
  expect(-EINVAL, "there are 1 storages of targets, expected 2");
  to_ = targets_.storages();
  from_.push_back(from_[0]);
  expect(-EINVAL, "there are 2 storages of sources, expected 1");
}

TEST_F(ResliceStorages, HaveAnAddress) {
  to_[1].data = nullptr;
  expect(-EINVAL, "the address of storage 1 of the targets is NULL");
}

TEST_F(ResliceStorages, HaveAllBytesBehindTheirAlignment) {
  maru_layout_sizes sizes = {};
  ASSERT_EQ(maru_layout_measure(&targets_.layouts()[0], &sizes, nullptr), 0);
  const uint64_t skipped = uint64_t(targets_.address(0, 0) - static_cast<uint8_t*>(to_[0].data));
  ASSERT_GT(skipped, 0u);
  to_[0].bytes = skipped + sizes.storage_bytes - 1;
  expect(-ENOSPC, "storage 0 of the targets has " + std::to_string(to_[0].bytes) + " bytes, expected " +
                      std::to_string(sizes.storage_bytes) + " behind " + std::to_string(skipped) +
                      " for its alignment");
  to_[0].bytes = skipped - 1;
  maru_layout_reason reason = {};
  EXPECT_EQ(maru_reslice_copy(plan_.get(), from_.data(), 1, to_.data(), 2, &reason), -ENOSPC);
  to_[0].bytes = skipped + sizes.storage_bytes;
  EXPECT_EQ(maru_reslice_copy(plan_.get(), from_.data(), 1, to_.data(), 2, &reason), 0);
}

TEST_F(ResliceStorages, OfTargetsOverlapNothing) {
  to_[1].data = to_[0].data;
  maru_layout_reason reason = {};
  EXPECT_EQ(maru_reslice_copy(plan_.get(), from_.data(), 1, to_.data(), 2, &reason), -EINVAL);
  EXPECT_NE(std::string(reason.text).find("of the targets overlaps storage"), std::string::npos) << reason.text;
  to_[1] = from_[0];
  to_[1].bytes = 1 << 20;
  EXPECT_EQ(maru_reslice_copy(plan_.get(), from_.data(), 1, to_.data(), 2, &reason), -EINVAL);
  EXPECT_NE(std::string(reason.text).find("overlaps"), std::string::npos) << reason.text;
}

TEST(Reslice, RunsEndWhereThePlanEnds) {
  const maru_layout whole = model_of(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD);
  const std::vector<maru_layout> four = ranks_of(whole, 4);
  PlanPointer plan;
  ASSERT_EQ(maru_reslice_plan(nullptr, four.data(), 4, &whole, 1, plan.out(), nullptr), 0);
  maru_reslice_totals totals = {};
  ASSERT_EQ(maru_reslice_measure(plan.get(), &totals), 0);
  maru_reslice_run runs[4];
  size_t count = 0;
  EXPECT_EQ(maru_reslice_runs(plan.get(), totals.runs, runs, 4, &count), -ERANGE);
  EXPECT_EQ(maru_reslice_runs(plan.get(), totals.runs - 1, runs, 4, &count), 0);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(maru_reslice_runs(plan.get(), 0, runs, 0, &count), -EINVAL);
  EXPECT_EQ(maru_reslice_runs(nullptr, 0, runs, 4, &count), -EINVAL);
}

}  // namespace
