#include "libmaru/shm/audit/audit.h"

#include "libmaru/base/check.h"
#include "libmaru/shm/audit/checks.h"
#include "libmaru/shm/audit/run.h"

#include <algorithm>
#include <iterator>

namespace maru::shm {
namespace {

using namespace audit_checks;

struct Row {
  InvariantInfo info;
  Check* check;
};
using P = AuditPlace;
using C = AuditClass;
constexpr Row kRows[] = {
    {{"page.state", P::kPage, C::kAlways}, page_state},
    {{"page.low", P::kPage, C::kAlways}, page_low},
    {{"page.lane", P::kPage, C::kAtRest}, page_lane},
    {{"page.sealed", P::kPage, C::kAtRest}, page_sealed},
    {{"run.tail", P::kPage, C::kAlways}, tail},
    {{"run.length", P::kPage, C::kAlways}, run_length},
    {{"run.tails", P::kPage, C::kAlways}, run_tails},
    {{"block.length", P::kPage, C::kAlways}, block_length},
    {{"block.metadata", P::kPage, C::kAlways}, block_metadata},
    {{"block.detail", P::kPage, C::kAlways}, block_detail},
    {{"block.key", P::kPage, C::kAlways}, block_key},
    {{"block.digest", P::kPage, C::kAlways}, block_digest_of_key},
    {{"block.parent", P::kPage, C::kAlways}, block_parent},
    {{"block.chain", P::kPage, C::kAlways}, block_chain},
    {{"block.expiry", P::kPage, C::kAlways}, block_expiry},
    {{"children.at-least", P::kPage, C::kAlways}, children_at_least},
    {{"children.exact", P::kPage, C::kAtRest}, children_exact},
    {{"block.registered", P::kPage, C::kAtRest}, block_registered},
    {{"bucket.bits", P::kBucket, C::kAlways}, bucket_bits},
    {{"bucket.overflow", P::kBucket, C::kAlways}, bucket_overflow},
    {{"bucket.link", P::kBucket, C::kAtRest}, bucket_link},
    {{"slot.location", P::kBucket, C::kAlways}, slot_location},
    {{"slot.digest", P::kBucket, C::kAlways}, slot_digest},
    {{"bucket.duplicate", P::kBucket, C::kAlways}, bucket_duplicate},
    {{"slot.claim", P::kBucket, C::kAtRest}, slot_claim},
    {{"overflow.owner", P::kOverflowBucket, C::kAlways}, overflow_owner},
    {{"overflow.linked", P::kOverflowBucket, C::kAtRest}, overflow_linked},
    {{"overflow.lane", P::kOverflowBucket, C::kAtRest}, overflow_lane},
    {{"overflow.claim", P::kOverflowBucket, C::kAtRest}, overflow_claim},
    {{"region.word", P::kRegion, C::kAlways}, region_word},
    {{"region.lane", P::kRegion, C::kAtRest}, region_lane},
    {{"region.unused", P::kRegion, C::kAlways}, region_unused},
    {{"queue.links", P::kRegion, C::kQueues}, queue_links},
    {{"queue.ends", P::kRegion, C::kQueues}, queue_ends},
    {{"lane.bitmap", P::kPool, C::kAlways}, lane_bitmap},
    {{"lane.identity", P::kLane, C::kAlways}, lane_identity},
    {{"lane.in-use", P::kLane, C::kAtRest}, lane_in_use},
    {{"lane.live", P::kLane, C::kAtRest}, lane_live},
    {{"lane.unused", P::kLane, C::kAtRest}, lane_unused},
    {{"pin.page", P::kLane, C::kAlways}, pin_page},
    {{"pin.set", P::kLane, C::kAlways}, pin_set},
    {{"pin.holds", P::kLane, C::kAtRest}, pin_holds},
    {{"pin.overflow", P::kLane, C::kAtRest}, pin_overflow},
    {{"lane.intent", P::kLane, C::kAlways}, lane_intent},
    {{"lane.intent-done", P::kLane, C::kAtRest}, lane_intent_done},
    {{"extent.owner", P::kKeyExtent, C::kAlways}, extent_owner},
    {{"tenant.name", P::kTenant, C::kAlways}, tenant_name},
    {{"tenant.place", P::kTenant, C::kAlways}, tenant_place},
    {{"lane.accounts", P::kLane, C::kAlways}, lane_accounts},
    {{"lane.accounts-done", P::kLane, C::kAtRest}, lane_accounts_done},
};
static_assert(sizeof(kRows) / sizeof(kRows[0]) == kInvariantCount);

bool wanted(const AuditRequest& request, uint32_t row) {
  if (request.skip.has(Invariant(row))) return false;
  switch (kRows[row].info.when) {
    case AuditClass::kAlways: return true;
    case AuditClass::kAtRest: return request.mode == AuditMode::kExact;
    case AuditClass::kQueues: return request.mode != AuditMode::kLive;
  }
  return false;
}

void run(Audit& a, uint32_t row, uint64_t index) {
  Finding finding{Invariant(row), 0, index, {}};
  if (!kRows[row].check(a, index, &finding)) return;
  if (a.request.mode != AuditMode::kExact)
    for (uint32_t i = 1; i < kConfirmations; ++i) {
      Finding again{Invariant(row), 0, index, {}};
      if (!kRows[row].check(a, index, &again) || !(again == finding)) return;
    }
  report(a, finding);
}

constexpr size_t round_up_to_word(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

}  // namespace

namespace audit_checks {

uint64_t places(const ControlRegion& region, AuditPlace place) {
  switch (place) {
    case AuditPlace::kPool: return 1;
    case AuditPlace::kPage: return region.pages();
    case AuditPlace::kBucket: return region.buckets();
    case AuditPlace::kOverflowBucket: return region.overflow_buckets();
    case AuditPlace::kRegion: return region.regions();
    case AuditPlace::kLane: return region.lanes();
    case AuditPlace::kKeyExtent: return region.parameters().key_extents;
    case AuditPlace::kTenant: return region.parameters().tenants;
  }
  return 0;
}

void report(Audit& a, const Finding& finding) {
  ++a.report.counts[uint32_t(finding.invariant)];
  if (a.report.findings++ < a.request.findings_max) a.sink.found(finding);
}

// While its lines are near.
void check_place(Audit& a, AuditPlace place, uint64_t index) {
  for (uint32_t row = 0; row < kInvariantCount; ++row)
    if (kRows[row].info.place == place && wanted(a.request, row)) run(a, row, index);
}

}  // namespace audit_checks

const InvariantInfo& invariant_info(Invariant invariant) { return kRows[uint32_t(invariant)].info; }

size_t audit_scratch_bytes(const ControlRegion& region) {
  return round_up_to_word(region.pages() * sizeof(uint32_t)) + (region.pages() + 63) / 64 * sizeof(uint64_t);
}

AuditReport audit(const ControlRegion& region, const AuditRequest& request, std::span<std::byte> scratch,
                  FindingSink& sink) {
  AuditRun run(region, request, scratch, sink);
  run.step(~uint64_t{0});
  return run.report();
}

// -- in slices --------------------------------------------------------------------------------------------------------

AuditRun::AuditRun(const ControlRegion& region, const AuditRequest& request, std::span<std::byte> scratch,
                   FindingSink& sink)
    : audit_{
          .region = region, .request = request, .sink = sink, .live = request.live, .children = {}, .registered = {}} {
  MARU_CHECK(scratch.size() >= audit_scratch_bytes(region), "the audit would write beyond its scratch memory");
  MARU_CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 8 == 0, "the scratch memory holds words");
  const size_t counts_bytes = round_up_to_word(region.pages() * sizeof(uint32_t));
  audit_.children = {reinterpret_cast<uint32_t*>(scratch.data()), region.pages()};
  audit_.registered = {reinterpret_cast<uint64_t*>(scratch.data() + counts_bytes), (region.pages() + 63) / 64};
  audit_.live.add(0);
}

// The cost of one place in steps, by the words that are read there.
uint64_t AuditRun::cost(AuditPlace place) const {
  const ControlRegion& region = audit_.region;
  switch (place) {
    case AuditPlace::kPage: return 8;
    case AuditPlace::kBucket: return 4;
    case AuditPlace::kRegion: return region.region_pages();
    case AuditPlace::kLane: return 1 + region.layout().lane_bytes / 64;
    default: return 1;
  }
}

// The next items of a phase that has `count` of them, each of which costs as many steps: [first, last). At least one.
AuditRun::Slice AuditRun::take(uint64_t count, uint64_t each, uint64_t& steps) {
  const uint64_t first = next_, wanted = std::max<uint64_t>(1, steps / each);
  next_ += std::min(wanted, count - first);
  steps -= std::min(steps, (next_ - first) * each);
  return {first, next_};
}

bool AuditRun::is_through(uint64_t count) {
  if (next_ < count) return false;
  next_ = 0;
  return true;
}

bool AuditRun::step(uint64_t steps) {
  constexpr AuditPlace kPlaces[] = {P::kPool,   P::kPage, P::kBucket,    P::kOverflowBucket,
                                    P::kRegion, P::kLane, P::kKeyExtent, P::kTenant};
  constexpr uint64_t kClearedPerStep = 16;
  const ControlRegion& region = audit_.region;
  const bool is_exact = audit_.request.mode == AuditMode::kExact;
  const uint64_t pages = region.pages();
  while (phase_ != Phase::kDone && steps > 0) {
    switch (phase_) {
      case Phase::kClear: {
        const uint64_t blocks = (pages + kClearedPerStep - 1) / kClearedPerStep;
        const Slice slice = take(blocks, 1, steps);
        const uint64_t first = slice.first * kClearedPerStep, last = std::min(pages, slice.last * kClearedPerStep);
        std::ranges::fill(audit_.children.subspan(first, last - first), 0u);
        std::ranges::fill(audit_.registered.subspan(first / 64, (last + 63) / 64 - first / 64), uint64_t{0});
        if (is_through(blocks)) phase_ = Phase::kChildren;
        break;
      }
      case Phase::kChildren: {
        const Slice slice = take(pages, 1, steps);
        count_children(audit_, slice.first, slice.last);
        if (is_through(pages)) phase_ = is_exact ? Phase::kRegistered : Phase::kPlaces;
        break;
      }
      case Phase::kRegistered: {
        const Slice slice = take(region.buckets(), 4, steps);
        mark_registered(audit_, slice.first, slice.last);
        if (is_through(region.buckets())) phase_ = Phase::kPlaces;
        break;
      }
      case Phase::kPlaces: {
        const AuditPlace place = kPlaces[place_];
        const uint64_t count = places(region, place);
        const Slice slice = take(count, cost(place), steps);
        for (uint64_t index = slice.first; index < slice.last; ++index) check_place(audit_, place, index);
        if (!is_through(count) || ++place_ < std::size(kPlaces)) break;
        phase_ = audit_.doubt_count == 0 ? Phase::kDone : Phase::kBefore;
        break;
      }
      case Phase::kBefore:
      case Phase::kAfter: {
        const Slice slice = take(pages, 1, steps);
        pass_over_doubts(audit_, phase_ == Phase::kBefore ? &Doubt::before : &Doubt::after, slice.first, slice.last);
        if (!is_through(pages)) break;
        if (phase_ == Phase::kBefore) {
          look_at_doubts(audit_);
          phase_ = Phase::kAfter;
          break;
        }
        for (uint32_t i = 0; i < audit_.doubt_count; ++i)
          if (Finding finding; is_confirmed(audit_.doubts[i], &finding)) audit_checks::report(audit_, finding);
        phase_ = Phase::kDone;
        break;
      }
      case Phase::kDone: break;
    }
  }
  return phase_ == Phase::kDone;
}

}  // namespace maru::shm
