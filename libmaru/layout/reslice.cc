// What maru/layout.h says of re-slicing: makes plans, tells of their runs, and copies.
#include "libmaru/layout/copy_rows.h"
#include "libmaru/layout/reason.h"
#include "libmaru/layout/reslice_plan.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>

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
      return fail(reason, ENOSPC, "storage %zu of the %ss has %llu bytes, expected %llu behind %llu for its alignment", i,
                  name, ull(storages[i].bytes), ull(needs[i].bytes), ull(skipped));
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

// The loops but the fastest, as an odometer; the fastest is rows.
void copy_move(RowCopier& copier, const Shape& shape, std::byte* to, const std::byte* from) {
  const uint32_t outer_loops = shape.loops > 0 ? shape.loops - 1 : 0;
  const Loop rows = shape.loops > 0 ? shape.loop[outer_loops] : Loop{1, 0, 0};
  uint64_t turns[5] = {};
  while (true) {
    copier.copy({to, from, shape.run_bytes, rows.count, rows.target_stride, rows.source_stride});
    uint32_t i = outer_loops;
    for (; i > 0; --i) {
      const Loop& loop = shape.loop[i - 1];
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

int copy(const maru_reslice& plan, const maru_reslice_storage* sources, size_t sources_count,
         const maru_reslice_storage* targets, size_t targets_count, maru_layout_reason* reason) {
  std::vector<Covered> covered;
  covered.reserve(sources_count + targets_count);
  if (const int status = cover("source", plan.sources, sources, sources_count, covered, reason); status < 0)
    return status;
  if (const int status = cover("target", plan.targets, targets, targets_count, covered, reason); status < 0)
    return status;
  if (const int status = check_overlaps(covered, reason); status < 0) return status;
  RowCopier copier(plan.totals.bytes);
  for (const Move& move : plan.moves)
    copy_move(copier, plan.shapes[move.shape],
              reinterpret_cast<std::byte*>(covered[sources_count + move.target].begin) + move.target_offset,
              reinterpret_cast<const std::byte*>(covered[move.source].begin) + move.source_offset);
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
