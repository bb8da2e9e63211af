// What must be true when nobody is doing anything any more: written from the rules of the format, apart from the auditor
// of libmaru/shm, so that an error in one of them is found by the other. Then the auditor itself.
#include "cast.h"
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/blocks/registry.h"
#include "maru/format/control_region.h"

#include <cinttypes>

namespace maru::sim {
namespace {

using namespace maru::format;

void check_pages() {
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    switch (word.state()) {
      case PageState::kOut:
      case PageState::kFree: break;
      case PageState::kPoisoned:
        if (!is_poisoned_by_scenario(page)) fail("page %u is POISONED and nobody said that it is bad", page);
        break;
      case PageState::kReady:
        for (uint32_t i = 1; i < world().run_pages(page); ++i) {
          const PageWord tail{world().block(page + i).word.raw};
          if (!tail.is(PageState::kTail) || tail.low() != i)
            fail("page %u of the block in page %u is %s", page + i, page, describe(tail));
        }
        break;
      case PageState::kTail: {
        const uint32_t distance = word.low();
        if (distance > page || distance == 0) fail("page %u is a TAIL of nothing", page);
        const PageWord head{world().block(page - distance).word.raw};
        if (!head.is(PageState::kReady) || world().run_pages(page - distance) <= distance) {
          fail("page %u is a TAIL of page %u, which is %s", page, page - distance, describe(head));
        }
        break;
      }
      default: fail("at rest page %u is %s", page, describe(word));
    }
  }
}

// Every count is the number of children.
void check_counts() {
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    if (!word.is(PageState::kReady)) continue;
    uint32_t children = 0;
    for (uint32_t i = 0; i < kWorldPages; ++i) {
      children += PageWord{world().block(i).word.raw}.is(PageState::kReady) &&
                  world().block(i).parent.raw == PageRef::of(page, word.generation()).bits;
    }
    if (word.children() != children)
      fail("at rest page %u counts %u children and has %u", page, word.children(), children);
  }
}

void check_pins_empty() {
  for (uint32_t lane = 0; lane < kWorldLanes; ++lane) {
    const shm::LaneView view = world().lane(lane);
    for (const auto slots : {view.pins, view.pin_overflow}) {
      for (const AtomicU64& slot : slots) {
        const PageRef ref = PageRef::from_bits(slot.raw);
        if (!ref.is_none() && !is_held(ref.page())) fail("at rest lane %u still pins page %u", lane, ref.page());
      }
    }
    if (view.header->pin_overflow.raw != 0 && hold_count_of(lane) == 0) {
      fail("at rest lane %u says %" PRIu64 " overflow pins", lane, view.header->pin_overflow.raw);
    }
    for (const AtomicU64& intent : view.header->parent_intent) {
      if (intent.raw != 0) fail("at rest lane %u has an intent", lane);
    }
  }
}

void check_registry() {
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.raw};
    if (!word.is(PageState::kReady)) continue;
    const uint32_t entries = entries_of(page, word.generation());
    if (entries != 1) fail("at rest page %u is READY and has %u entries", page, entries);
  }
  for (uint64_t bucket = 0; bucket < world().buckets(); ++bucket) {
    for (uint32_t slot = 0; slot < 2 * limits::kBucketSlots; ++slot) {
      const PageRef ref = registry_location(bucket, slot);
      if (ref.is_none()) continue;
      if (!world().is_page(ref) ||
          !PageWord{world().block(ref.page()).word.raw}.is(PageState::kReady, ref.generation())) {
        fail("at rest bucket %" PRIu64 " slot %u names page %u, which is not there", bucket, slot, ref.page());
      }
    }
  }
}

// An overflow bucket belongs to the home bucket that links it, or to nobody.
void check_overflow() {
  for (uint64_t i = 0; i < world().overflow_buckets(); ++i) {
    const uint64_t owner = world().overflow(i).tags.header.raw;
    uint32_t links = 0;
    for (uint64_t bucket = 0; bucket < world().buckets(); ++bucket) {
      if (uint32_t(world().bucket(bucket).locations.overflow.raw) != i + 1) continue;
      ++links;
      if (owner >> 28 != bucket + 1)
        fail("at rest overflow bucket %" PRIu64 " is linked by one that does not own it", i);
    }
    if (links == 0 && owner != 0) fail("at rest overflow bucket %" PRIu64 " is owned and not linked: it is lost", i);
  }
}

}  // namespace

uint32_t entries_of(uint32_t page, uint32_t generation) {
  uint32_t entries = 0;
  for (uint64_t bucket = 0; bucket < world().buckets(); ++bucket) {
    for (uint32_t slot = 0; slot < 2 * limits::kBucketSlots; ++slot) {
      entries += registry_location(bucket, slot) == PageRef::of(page, generation);
    }
  }
  return entries;
}

namespace {

// The first finding ends the schedule.
struct FirstFinding final : shm::FindingSink {
  const char* when;
  explicit FirstFinding(const char* name) : when(name) {}
  void found(const shm::Finding& finding) override {
    fail("the auditor, %s: %s at %" PRIu64 " slot %u (0x%" PRIx64 " 0x%" PRIx64 " 0x%" PRIx64 ")", when,
         shm::invariant_info(finding.invariant).name, finding.index, finding.slot, finding.words[0], finding.words[1],
         finding.words[2]);
  }
};

}  // namespace

void check_audit(shm::AuditMode mode, const char* when) {
  alignas(8) static std::byte scratch[4096];
  shm::AuditRequest request;
  request.mode = mode;
  request.live = live_lanes();
  // Digests are made up, so that keys collide where a scenario wants them to.
  request.skip = request.skip.with(shm::Invariant::kBlockDigest);
  FirstFinding sink(when);
  if (shm::audit_scratch_bytes(world()) > sizeof scratch) fail("the auditor wants more scratch memory");
  const Unseen unseen;
  shm::audit(world(), request, scratch, sink);
}

void check_rest() {
  check_pages();
  check_counts();
  check_pins_empty();
  check_registry();
  check_overflow();
  check_audit(shm::AuditMode::kExact, "at rest");
}

}  // namespace maru::sim
