// The functions of maru/layout.h for re-slicing: they make plans, list their runs, and copy.
#include "libmaru/layout/copy_rows.h"
#include "libmaru/layout/reason.h"
#include "libmaru/layout/reslice_plan.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <new>
#include <span>

namespace maru::layout {
namespace {

int read_side(const char* name, const maru_layout* layouts, size_t count, std::vector<Geometry>& ret_side,
              maru_layout_reason* reason) {
  if (layouts == nullptr || count == 0 || count > MARU_RESLICE_LAYOUTS_MAX)
    return fail(reason, EINVAL, "there are %zu %ss%s, expected 1 to %d", count, name,
                layouts == nullptr ? " at NULL" : "", MARU_RESLICE_LAYOUTS_MAX);
  ret_side.resize(count);
  for (size_t i = 0; i < count; ++i) {
    maru_layout_reason why = {};
    if (const int status = read_geometry(&layouts[i], ret_side[i], &why); status < 0)
      return fail(reason, -status, "%s %zu: %.200s", name, i, why.text);
  }
  return 0;
}

int check_options(const maru_reslice_options* options, maru_layout_reason* reason) {
  if (options == nullptr) return 0;
  if (options->size != sizeof(maru_reslice_options))
    return fail(reason, EINVAL, "size is %zu, expected sizeof(maru_reslice_options), %zu", options->size,
                sizeof(maru_reslice_options));
  for (const uint64_t word : options->reserved)
    if (word != 0) return fail(reason, EINVAL, "a reserved field of the options is %llu, expected 0", ull(word));
  return 0;
}

// Where run `index` of a shape begins, from the offset of its move on: as the digits of a number whose bases are the loops.
uint64_t offset_of_run(const Shape& shape, uint64_t index, uint64_t Loop::* stride) {
  uint64_t offset = 0;
  for (uint32_t i = shape.loops; i-- > 0;) {
    offset += index % shape.loop[i].count * (shape.loop[i].*stride);
    index /= shape.loop[i].count;
  }
  return offset;
}

maru_reslice_run run_of(const maru_reslice& plan, const Move& move, uint64_t index) {
  const Shape& shape = plan.shapes[move.shape];
  return {move.source, move.source_offset + offset_of_run(shape, index, &Loop::source_stride), move.target,
          move.target_offset + offset_of_run(shape, index, &Loop::target_stride), shape.run_bytes};
}

// The memory of a storage that its layout covers.
struct Covered {
  uintptr_t begin;
  uintptr_t end;
  bool is_target;
  size_t index;
};

int cover(const char* name, const std::vector<StorageNeed>& needs, const maru_reslice_storage* storages, size_t count,
          std::vector<Covered>& ret_covered, maru_layout_reason* reason) {
  if (count != needs.size())
    return fail(reason, EINVAL, "there are %zu storages of %ss, expected %zu", count, name, needs.size());
  if (storages == nullptr) return fail(reason, EINVAL, "the storages of %ss are NULL", name);
  for (size_t i = 0; i < count; ++i) {
    const auto base = reinterpret_cast<uintptr_t>(storages[i].data);
    if (base == 0) return fail(reason, EINVAL, "the address of storage %zu of the %ss is NULL", i, name);
    uint64_t skipped = 0;
    if (const int status = maru_layout_base_offset(base, needs[i].alignment, &skipped, reason); status < 0)
      return status;
    if (storages[i].bytes < skipped || storages[i].bytes - skipped < needs[i].bytes)
      return fail(reason, ENOSPC, "storage %zu of the %ss has %llu bytes, expected %llu behind %llu for its alignment",
                  i, name, ull(storages[i].bytes), ull(needs[i].bytes), ull(skipped));
    if (base + skipped > UINTPTR_MAX - needs[i].bytes)
      return fail(reason, EINVAL, "storage %zu of the %ss goes beyond the last address", i, name);
    ret_covered.push_back({base + skipped, base + skipped + needs[i].bytes, name[0] == 't', i});
  }
  return 0;
}

int check_overlaps(std::vector<Covered> covered, maru_layout_reason* reason) {
  std::sort(covered.begin(), covered.end(), [](const Covered& a, const Covered& b) { return a.begin < b.begin; });
  const Covered* last = nullptr;         // that ends last
  const Covered* last_target = nullptr;  // likewise, of the targets
  for (const Covered& each : covered) {
    const Covered* const other = each.is_target ? last : last_target;
    if (other != nullptr && each.begin < other->end)
      return fail(reason, EINVAL, "storage %zu of the %s overlaps storage %zu of the %s", each.index,
                  each.is_target ? "targets" : "sources", other->index, other->is_target ? "targets" : "sources");
    if (last == nullptr || each.end > last->end) last = &each;
    if (each.is_target && (last_target == nullptr || each.end > last_target->end)) last_target = &each;
  }
  return 0;
}

// Moves whose runs alternate in one source: the heads of one token go to several targets, for example.
struct Group {
  const Shape* shape;
  uint32_t shared_loops;  // the slowest loops, within whose turns the moves alternate
  std::span<Lane> lanes;
};

// Calls visit(to_offset, from_offset) for each turn of some loops, as an odometer.
template <typename Visit>
void for_each_turn(std::span<const Loop> loops, const Visit& visit) {
  uint64_t turns[5] = {}, to = 0, from = 0;
  while (true) {
    visit(to, from);
    size_t i = loops.size();
    for (; i > 0; --i) {
      const Loop& loop = loops[i - 1];
      to += loop.target_stride;
      from += loop.source_stride;
      if (++turns[i - 1] < loop.count) break;
      turns[i - 1] = 0;
      to -= loop.count * loop.target_stride;
      from -= loop.count * loop.source_stride;
    }
    if (i == 0) return;
  }
}

void copy_group(RowCopier& copier, const Group& group) {
  const Shape& shape = *group.shape;
  const std::span<const Loop> loops = std::span(shape.loop).first(shape.loops);
  std::array<Lane, kLanesMax> moved;
  // The fastest loop is rows: of all lanes together where they alternate within it.
  const bool are_fused = group.shared_loops == shape.loops;
  const Loop rows = loops.empty() ? Loop{1, 0, 0} : loops.back();
  const auto copy_rows = [&](std::span<const Lane> lanes, uint64_t to, uint64_t from) {
    for (size_t i = 0; i < lanes.size(); ++i) moved[i] = {lanes[i].to + to, lanes[i].from + from};
    copier.copy(
        {std::span(moved).first(lanes.size()), shape.run_bytes, rows.count, rows.target_stride, rows.source_stride});
  };
  const size_t outer_loops = loops.empty() ? 0 : loops.size() - 1;
  if (are_fused)
    return for_each_turn(loops.first(outer_loops),
                         [&](uint64_t to, uint64_t from) { copy_rows(group.lanes, to, from); });
  const auto shared = loops.first(group.shared_loops), own = loops.subspan(group.shared_loops);
  for_each_turn(shared, [&](uint64_t to, uint64_t from) {
    for (size_t i = 0; i < group.lanes.size(); ++i)
      for_each_turn(own.first(own.size() - 1), [&](uint64_t own_to, uint64_t own_from) {
        copy_rows(group.lanes.subspan(i, 1), to + own_to, from + own_from);
      });
  });
}

uint32_t shared_loops(const Shape& shape, uint64_t distance) {
  uint32_t loops = 0;
  while (loops < shape.loops && distance < shape.loop[loops].source_stride) ++loops;
  return loops;
}

void copy_moves(const maru_reslice& plan, std::span<const Covered> sources, std::span<const Covered> targets) {
  RowCopier copier(plan.totals.bytes);
  std::array<Lane, kLanesMax> lanes;
  for (size_t at = 0; at < plan.moves.size();) {
    const Move& first = plan.moves[at];
    const Shape& shape = plan.shapes[first.shape];
    size_t count = 0;
    uint32_t shared = shape.loops;
    for (; count < lanes.size() && at + count < plan.moves.size(); ++count) {
      const Move& move = plan.moves[at + count];
      const uint32_t loops = shared_loops(shape, move.source_offset - first.source_offset);
      if (count > 0 && (move.source != first.source || move.shape != first.shape || loops == 0)) break;
      shared = std::min(shared, loops);
      lanes[count] = {reinterpret_cast<std::byte*>(targets[move.target].begin) + move.target_offset,
                      reinterpret_cast<const std::byte*>(sources[move.source].begin) + move.source_offset};
    }
    copy_group(copier, {&shape, shared, std::span(lanes).first(count)});
    at += count;
  }
}

int copy(const maru_reslice& plan, const maru_reslice_storage* sources, size_t sources_count,
         const maru_reslice_storage* targets, size_t targets_count, maru_layout_reason* reason) {
  std::vector<Covered> covered;
  covered.reserve(sources_count + targets_count);
  if (const int status = cover("source", plan.sources, sources, sources_count, covered, reason); status < 0)
    return status;
  if (const int status = cover("target", plan.targets, targets, targets_count, covered, reason); status < 0)
    return status;
  if (const int status = check_overlaps(covered, reason); status < 0) return status;
  copy_moves(plan, std::span(covered).first(sources_count), std::span(covered).subspan(sources_count));
  return 0;
}

}  // namespace
}  // namespace maru::layout

using namespace maru::layout;

extern "C" {

MARU_LAYOUT_PUBLIC int maru_reslice_plan(const maru_reslice_options* options, const maru_layout* sources,
                                         size_t sources_count, const maru_layout* targets, size_t targets_count,
                                         maru_reslice** ret_plan, maru_layout_reason* reason) {
  if (ret_plan == nullptr) return fail(reason, EINVAL, "ret_plan is NULL");
  if (const int status = check_options(options, reason); status < 0) return status;
  try {
    std::vector<Geometry> from, to;
    if (const int status = read_side("source", sources, sources_count, from, reason); status < 0) return status;
    if (const int status = read_side("target", targets, targets_count, to, reason); status < 0) return status;
    auto plan = std::make_unique<maru_reslice>();
    if (const int status = plan_reslice(options, from, to, *plan, reason); status < 0) return status;
    *ret_plan = plan.release();
    return 0;
  } catch (const std::bad_alloc&) {
    return fail(reason, ENOMEM, "there is no memory for the plan");
  }
}

MARU_LAYOUT_PUBLIC void maru_reslice_free(maru_reslice* plan) { delete plan; }

MARU_LAYOUT_PUBLIC int maru_reslice_measure(const maru_reslice* plan, maru_reslice_totals* ret_totals) {
  if (plan == nullptr || ret_totals == nullptr) return -EINVAL;
  *ret_totals = plan->totals;
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_reslice_runs(const maru_reslice* plan, uint64_t first, maru_reslice_run* ret_runs, size_t n,
                                         size_t* ret_count) {
  if (plan == nullptr || ret_runs == nullptr || ret_count == nullptr || n == 0) return -EINVAL;
  if (first >= plan->totals.runs) return -ERANGE;
  auto move = std::upper_bound(plan->moves.begin(), plan->moves.end(), first,
                               [](uint64_t run, const Move& each) { return run < each.first_run; }) -
              1;
  const uint64_t end = first + std::min<uint64_t>(n, plan->totals.runs - first);
  for (uint64_t run = first; run < end; ++run) {
    if (run - move->first_run == plan->shapes[move->shape].runs) ++move;
    ret_runs[run - first] = run_of(*plan, *move, run - move->first_run);
  }
  *ret_count = size_t(end - first);
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_reslice_copy(const maru_reslice* plan, const maru_reslice_storage* sources,
                                         size_t sources_count, const maru_reslice_storage* targets,
                                         size_t targets_count, maru_layout_reason* reason) {
  if (plan == nullptr) return fail(reason, EINVAL, "the plan is NULL");
  try {
    return copy(*plan, sources, sources_count, targets, targets_count, reason);
  } catch (const std::bad_alloc&) {
    return fail(reason, ENOMEM, "there is no memory to check the storages in");
  }
}

}  // extern "C"
