#include "libmaru/shm/audit.h"

#include "libmaru/base/check.h"
#include "libmaru/shm/audit_checks.h"

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

void run(Audit& a, uint32_t row, uint64_t index) {
  Finding finding{Invariant(row), 0, index, {}};
  if (!kRows[row].check(a, index, &finding)) return;
  if (a.request.mode != AuditMode::kExact)
    for (uint32_t i = 1; i < kConfirmations; ++i) {
      Finding again{Invariant(row), 0, index, {}};
      if (!kRows[row].check(a, index, &again) || !(again == finding)) return;
    }
  ++a.report.counts[row];
  if (a.report.findings++ < a.request.findings_max) a.sink.found(finding);
}

constexpr size_t round_up_to_word(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

}  // namespace

const InvariantInfo& invariant_info(Invariant invariant) { return kRows[uint32_t(invariant)].info; }

size_t audit_scratch_bytes(const ControlRegion& region) {
  return round_up_to_word(region.pages() * sizeof(uint32_t)) + (region.pages() + 63) / 64 * sizeof(uint64_t);
}

AuditReport audit(const ControlRegion& region, const AuditRequest& request, std::span<std::byte> scratch,
                  FindingSink& sink) {
  MARU_CHECK(scratch.size() >= audit_scratch_bytes(region), "the audit would write beyond its scratch memory");
  MARU_CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 8 == 0, "the scratch memory holds words");
  auto* counts = reinterpret_cast<uint32_t*>(scratch.data());
  auto* bits = reinterpret_cast<uint64_t*>(scratch.data() + round_up_to_word(region.pages() * sizeof(uint32_t)));
  Audit a{.region = region,
          .request = request,
          .sink = sink,
          .live = request.live,
          .children = {counts, region.pages()},
          .registered = {bits, (region.pages() + 63) / 64}};
  a.live.add(0);
  count_children(a);
  if (request.mode == AuditMode::kExact) mark_registered(a);
  // All invariants of one place while its lines are near.
  constexpr AuditPlace kPlaces[] = {P::kPool,   P::kPage, P::kBucket,    P::kOverflowBucket,
                                    P::kRegion, P::kLane, P::kKeyExtent, P::kTenant};
  for (const AuditPlace place : kPlaces)
    for (uint64_t index = 0; index < places(region, place); ++index)
      for (uint32_t row = 0; row < kInvariantCount; ++row)
        if (kRows[row].info.place == place && wanted(request, row)) run(a, row, index);
  return a.report;
}

}  // namespace maru::shm
