#include "world.h"

#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/host_claim.h"
#include "maru/format/control_region.h"
#include "tests/sim/mutants.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace maru::sim {
namespace {

using namespace maru::format;
using shm::ControlRegion;
using shm::Layout;

constexpr uint64_t kMemoryBytes = 256u << 10;
constexpr uint32_t kHoldsMax = 32;

struct Hold {
  unsigned process;
  PageRef ref;
};

struct KeyRecord {
  Digest digest;
  uint64_t bucket;
  bool defined;
  bool visible, listed;
  uint64_t last_visible, last_absent, last_listed, last_unlisted;  // steps
};

// The latest life of a page that a valid entry named, and the keys of its latest lives.
constexpr uint32_t kLivesKept = 64;
struct PageRecord {
  uint32_t named_generation;
  uint64_t last_named;       // step; 0: never
  uint8_t keys[kLivesKept];  // by generation: key + 1
};

alignas(4096) std::byte memory[kMemoryBytes];
enum WorldKind : unsigned { kPlain, kShared, kDurable, kWorldKinds };
alignas(4096) std::byte pristine[kWorldKinds][kMemoryBytes];
ControlRegion pristine_regions[kWorldKinds];
bool pristine_ready[kWorldKinds];
ControlRegion region;
KeyRecord keys[kWorldKeys];
PageRecord page_records[kWorldPages];
Hold holds[kHoldsMax];
uint32_t hold_count;
alignas(64) AtomicU64 payload[kWorldPages][kPayloadStride];
AtomicU32 pin_counts[kWorldLanes][kPinCounts];
uint64_t next_audit;
void (*page_word_watch)(uint32_t page, PageWord from, PageWord to);
void (*wish_watch)(uint32_t host, uint64_t before, uint64_t after);
uint32_t lane_generations[kWorldLanes];
unsigned lane_processes[kWorldLanes];
unsigned late_machines[kProcessesMax];  // of processes from kWorldLanes on

PageWord word_of(uint32_t page) { return PageWord{region.block(page).word.raw}; }
Digest digest_of(uint32_t page) { return {region.block(page).digest_lo.raw, region.block(page).digest_hi.raw}; }

// -- the registry as it is at this instant ----------------------------------------------------------------------------

// The location of a slot that is valid in a home bucket's header, or none. Slots 7 to 13 are in the overflow bucket.
PageRef location_under(uint64_t bucket, uint64_t header, uint32_t slot) {
  const Bucket& home = region.bucket(bucket);
  if ((header >> slot & 1) == 0) return PageRef::none();
  if (slot < limits::kBucketSlots) return PageRef::from_bits(home.locations.location[slot].raw);
  const uint64_t link = uint32_t(home.locations.overflow.raw);
  if ((header & kOverflowFlag) == 0 || link == 0 || link > region.overflow_buckets()) return PageRef::none();
  return PageRef::from_bits(region.overflow(link - 1).locations.location[slot - limits::kBucketSlots].raw);
}

PageRef valid_location(uint64_t bucket, uint32_t slot) {
  return location_under(bucket, region.bucket(bucket).tags.header.raw, slot);
}

// The valid slots of this header name their pages at this step.
void note_named(uint64_t bucket, uint64_t header) {
  for (uint32_t slot = 0; slot < 2 * limits::kBucketSlots; ++slot) {
    const PageRef ref = location_under(bucket, header, slot);
    if (!region.is_page(ref)) continue;
    page_records[ref.page()].named_generation = ref.generation();
    page_records[ref.page()].last_named = steps() + 1;
  }
}

uint64_t valid_tag(uint64_t bucket, uint32_t slot) {
  const Bucket& home = region.bucket(bucket);
  if (slot < limits::kBucketSlots) return home.tags.tag[slot].raw;
  const uint64_t link = uint32_t(home.locations.overflow.raw);
  return region.overflow(link - 1).tags.tag[slot - limits::kBucketSlots].raw;
}

// How many entries make this key visible: more than one breaks the registry's promise.
uint32_t visible_entries(const KeyRecord& key, bool* ret_listed) {
  uint32_t count = 0;
  *ret_listed = false;
  for (uint32_t slot = 0; slot < 2 * limits::kBucketSlots; ++slot) {
    const PageRef ref = valid_location(key.bucket, slot);
    if (!region.is_page(ref) || valid_tag(key.bucket, slot) != key.digest.lo) continue;
    *ret_listed = true;
    count += word_of(ref.page()).is_findable(ref.generation()) && digest_of(ref.page()) == key.digest;
  }
  return count;
}

void update_key(uint32_t i) {
  KeyRecord& key = keys[i];
  if (!key.defined) return;
  bool listed;
  const uint32_t entries = visible_entries(key, &listed);
  if (entries > 1) fail("key %u is visible %u times", i, entries);
  (key.visible ? key.last_visible : key.last_absent) = steps();
  (key.listed ? key.last_listed : key.last_unlisted) = steps();
  key.visible = entries == 1;
  key.listed = listed;
}

// -- what may change --------------------------------------------------------------------------------------------------

bool may_follow(PageWord from, PageWord to) {
  const bool same_life = to.generation() == from.generation();
  if (to.is(PageState::kPoisoned)) return same_life && !from.is(PageState::kSealed);
  const bool next_life = to.generation() == uint32_t(from.generation() + 1);
  switch (from.state()) {
    case PageState::kOut: return to.is(PageState::kFree) && (same_life || next_life);
    case PageState::kFree: return same_life && (to.is(PageState::kReserved) || to.is(PageState::kOut));
    case PageState::kReserved:
      if (next_life && to.is(PageState::kReserved) && to.lane() == from.lane()) return true;  // renewed
      return (to.is(PageState::kFree) && (same_life || next_life)) || (to.is(PageState::kOut) && next_life) ||
             (same_life && (to.is(PageState::kSealed) || to.is(PageState::kTail) || to.is(PageState::kReserved)));
    case PageState::kSealed:
      return (same_life && (to.is(PageState::kReady) || to.is(PageState::kReserved) || to.is(PageState::kRetired))) ||
             (next_life && (to.is(PageState::kFree) || to.is(PageState::kOut) || to.is(PageState::kReserved)));
    case PageState::kTail:
      return next_life && (to.is(PageState::kFree) || to.is(PageState::kOut) || to.is(PageState::kReserved));
    case PageState::kReady:
      return same_life && (to.is(PageState::kReady) || to.is(PageState::kRetiring) || to.is(PageState::kRetired));
    case PageState::kRetiring:
      return same_life && (to.is(PageState::kReady) || to.is(PageState::kRetired) || to.is(PageState::kRetiring));
    case PageState::kRetired:
      // The wrong variant that has one state for both must fail for what it does, not for its name.
      if (mutant(kMutantOneRetiredState) && same_life && to.is(PageState::kReady)) return true;
      // Back to RESERVED in the same life: a publisher withdraws what nobody has been told of.
      return (same_life && (to.is(PageState::kRetired) || (to.is(PageState::kReserved) && to.lane() == from.lane()))) ||
             (next_life && (to.is(PageState::kFree) || to.is(PageState::kOut) || to.is(PageState::kReserved)));
    case PageState::kPoisoned: return false;
  }
  return false;
}

bool holds_block(PageWord word) {
  return word.is(PageState::kReady) || word.is(PageState::kRetiring) || word.is(PageState::kRetired);
}

void check_pins(uint32_t page, PageWord from, PageWord to) {
  if (!holds_block(from) || (holds_block(to) && to.generation() == from.generation())) return;
  if (to.is(PageState::kPoisoned)) return;  // a view stays what it is: the page is never reused
  for (uint32_t i = 0; i < hold_count; ++i) {
    if (holds[i].ref == PageRef::of(page, from.generation())) {
      fail("page %u is reused under the pin of process %u", page, holds[i].process);
    }
  }
}

// Blocks that name this one as their parent and hold a count of it.
uint32_t children_of(uint32_t page, uint32_t generation) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < kWorldPages; ++i) {
    count += holds_block(word_of(i)) && region.block(i).parent.raw == PageRef::of(page, generation).bits;
  }
  return count;
}

void check_chain(uint32_t page, PageWord word) {
  if (holds_block(word)) {
    const PageRef parent = PageRef::from_bits(region.block(page).parent.raw);
    if (region.is_page(parent)) {
      const PageWord above = word_of(parent.page());
      if (above.is(PageState::kPoisoned, parent.generation())) return;
      if (above.generation() != parent.generation() || !holds_block(above)) {
        fail("page %u is a block whose parent, page %u, is gone", page, parent.page());
      }
      if (above.is(PageState::kReady) && above.children() < children_of(parent.page(), parent.generation())) {
        fail("page %u has a new child and counts only %u", parent.page(), above.children());
      }
      if (!above.is(PageState::kReady)) {
        fail("page %u has a child and is %s", parent.page(), describe(above));
      }
    }
  }
  if (word.is(PageState::kPoisoned)) return;  // marud takes what is below it away
  const uint32_t children = holds_block(word) ? children_of(page, word.generation()) : 0;
  if (word.is(PageState::kReady) ? word.children() < children : children != 0) {
    fail("page %u has %u children and becomes %s", page, children, describe(word));
  }
}

// A further page of a block that is still there must not be freed.
void check_run(uint32_t page, PageWord from, PageWord to) {
  if (!from.is(PageState::kTail) || to.is(PageState::kTail) || to.is(PageState::kPoisoned) || from.low() > page) return;
  const PageWord head = word_of(page - from.low());
  if ((head.is(PageState::kReady) || head.is(PageState::kRetiring)) &&
      region.run_pages(page - from.low()) > from.low()) {
    fail("page %u is freed and is a part of the block in page %u", page, page - from.low());
  }
}

void check_entries(uint32_t page, PageWord from, PageWord to) {
  if (from.generation() == to.generation() || !holds_block(from)) return;
  const PageRef gone = PageRef::of(page, from.generation());
  for (uint64_t bucket = 0; bucket < region.buckets(); ++bucket) {
    for (uint32_t slot = 0; slot < 2 * limits::kBucketSlots; ++slot) {
      if (valid_location(bucket, slot) == gone)
        fail("page %u is freed and bucket %" PRIu64 " still names it", page, bucket);
    }
  }
}

void page_word_changed(uint32_t page, uint64_t before, uint64_t after) {
  const PageWord from{before};
  const PageWord to{after};
  if (!may_follow(from, to)) {
    char text[kNameBytes];
    std::snprintf(text, sizeof text, "%s", describe(from));
    fail("page %u goes from %s to %s", page, text, describe(to));
  }
  check_run(page, from, to);
  check_pins(page, from, to);
  check_chain(page, to);
  check_entries(page, from, to);
  for (uint32_t i = 0; i < kWorldKeys; ++i) {
    if (!keys[i].defined || keys[i].digest != digest_of(page)) continue;
    if (to.is(PageState::kReady)) page_records[page].keys[to.generation() % kLivesKept] = uint8_t(i + 1);
    update_key(i);
  }
  if (page_word_watch != nullptr) page_word_watch(page, from, to);
}

void bucket_changed(uint64_t bucket) {
  for (uint32_t i = 0; i < kWorldKeys; ++i) {
    if (keys[i].defined && keys[i].bucket == bucket) update_key(i);
  }
}

// What is visible changes with the header alone: tags and locations of valid slots stay, and so does a link in use.
void bucket_word_changed(uint64_t bucket, uint64_t word, uint64_t before, uint64_t after) {
  if (word == 0) {
    note_named(bucket, before | after);
    return bucket_changed(bucket);
  }
  if (word == 8 && uint32_t(before) == uint32_t(after)) return;  // another version of the same link
  const uint64_t header = region.bucket(bucket).tags.header.raw;
  if (word == 8 ? (header >> limits::kBucketSlots & 0x7F) != 0 : (header >> (word - (word < 8 ? 1 : 9)) & 1) != 0) {
    fail("word %" PRIu64 " of bucket %" PRIu64 " changes under a valid entry", word, bucket);
  }
}

void overflow_word_changed(uint64_t index, uint64_t word) {
  const uint64_t home = (region.overflow(index).tags.header.raw >> 28) - 1;
  if (word == 0 || word == 8 || home >= region.buckets()) return;
  if (uint32_t(region.bucket(home).locations.overflow.raw) != index + 1) return;  // claimed and not linked
  const uint64_t header = region.bucket(home).tags.header.raw;
  if ((header >> (limits::kBucketSlots + word - (word < 8 ? 1 : 9)) & 1) != 0) {
    fail("word %" PRIu64 " of overflow bucket %" PRIu64 " changes under a valid entry", word, index);
  }
}

uint64_t offset_of(const void* address) { return uint64_t(static_cast<const std::byte*>(address) - memory); }

bool in_section(Section which, uint64_t offset, uint64_t* ret_inside) {
  const SectionRecord& record = region.layout().sections[which];
  if (offset < record.offset || offset >= record.offset + record.bytes) return false;
  *ret_inside = offset - record.offset;
  return true;
}

// An audit costs as much as a hundred steps, so it looks at one moment of many; which, differs from seed to seed.
constexpr uint64_t kStepsPerAudit = 199;

void on_change(const void* address, uint64_t before, uint64_t after) {
  if (steps() >= next_audit && current_process() != kNobody) {
    next_audit = steps() + kStepsPerAudit;
    check_audit(shm::AuditMode::kLive, "live");
  }
  const uint64_t offset = offset_of(address);
  uint64_t inside;
  if (in_section(kSectionBlocks, offset, &inside)) {
    const auto page = uint32_t(inside / sizeof(BlockLine));
    const uint64_t field = inside % sizeof(BlockLine);
    if (field == 0) {
      page_word_changed(page, before, after);
    } else if (holds_block(word_of(page)) || word_of(page).is(PageState::kTail)) {
      fail("a field of page %u's block line changes while it is %s", page, describe(word_of(page)));
    }
  } else if (in_section(kSectionRegistry, offset, &inside)) {
    bucket_word_changed(inside / sizeof(Bucket), inside % sizeof(Bucket) / 8, before, after);
  } else if (in_section(kSectionOverflow, offset, &inside)) {
    overflow_word_changed(inside / sizeof(Bucket), inside % sizeof(Bucket) / 8);
  } else if (wish_watch != nullptr && in_section(kSectionHosts, offset, &inside) &&
             inside % sizeof(HostRecord) == offsetof(HostRecord, wanted)) {
    wish_watch(uint32_t(inside / sizeof(HostRecord)), before, after);
  }
}

void format_pristine(WorldKind kind) {
  const bool shared = kind == kShared;
  Parameters parameters{};
  parameters.pool_bytes = 1u << 20;
  parameters.page_bytes = limits::kPageBytesMin;
  parameters.region_pages = kWorldRegionPages;
  parameters.pages = kWorldPages;
  parameters.lanes = kWorldLanes;
  parameters.hosts = shared ? kWorldHosts : 1;
  parameters.tenants = 1;
  parameters.pins_max = kWorldPinsMax;
  parameters.touch_entries = 8;
  parameters.key_inline_bytes = limits::kKeyInlineMin;
  parameters.key_extents = 2;
  parameters.section_align = 4096;
  shm::FormatIdentity identity{};
  identity.created_unix_ms = 1'000'000;
  identity.shared = shared;
  identity.durable = kind == kDurable;
  Random random(1);
  for (uint64_t& word : identity.secret) word = random.next();
  const char* problem = ControlRegion::format(memory, parameters, identity, false, &region);
  if (problem != nullptr) {
    std::fprintf(stderr, "sim: format: %s\n", problem);
    std::abort();
  }
  for (uint32_t page = 0; page < kWorldPages; ++page) region.block(page).word.raw = PageWord::free(1).bits;
  for (uint32_t host = 0; host < region.hosts(); ++host) {
    region.host(host).epoch.raw = 1;
    if (shared) region.host(host).claim.raw = shm::HostClaim::of(HostState::kLive, 1).bits;
  }
  for (uint32_t lane = 0; lane < kWorldLanes; ++lane) {
    region.lane_bitmap().words[0].raw |= uint64_t(1) << lane;
    region.identity(lane).state.raw = uint64_t(1) << 48 | uint64_t(LaneState::kLive);
    region.identity(lane).process.raw = 1000 + lane;
  }
  for (uint32_t i = 0; i < region.regions(); ++i) {
    const uint32_t owner = shared ? region.daemon_lane_of(i % kWorldHosts) + 1 : 1 + i;
    region.region(i).word.raw = shm::RegionWord::of(RegionState::kRented, 0, {owner, 1}, i % region.hosts()).bits;
  }
  std::memcpy(pristine[kind], memory, region.layout().control_bytes);
  pristine_regions[kind] = region;
  pristine_ready[kind] = true;
}

void make(WorldKind kind) {
  if (!pristine_ready[kind]) format_pristine(kind);
  region = pristine_regions[kind];
  std::memcpy(memory, pristine[kind], region.layout().control_bytes);
  for (KeyRecord& key : keys) key = {};
  for (PageRecord& record : page_records) record = {};
  std::memset(payload, 0, sizeof payload);
  hold_count = 0;
  page_word_watch = nullptr;
  wish_watch = nullptr;
  next_audit = chance().below(uint32_t(kStepsPerAudit));
  for (uint32_t lane = 0; lane < kWorldLanes; ++lane) {
    lane_generations[lane] = 1;
    lane_processes[lane] = lane;
  }
  watch(memory, memory + region.layout().control_bytes, on_change);
  name_words(name_world_word);
}

// A view of a POISONED page stays what it is.
bool is_or_was_block(PageWord word) { return holds_block(word) || word.is(PageState::kPoisoned); }

// Lines went back to what they were: nobody may have counted on what is lost.
void after_loss(unsigned host) {
  for (uint32_t i = 0; i < kWorldKeys; ++i) update_key(i);
  for (uint32_t i = 0; i < hold_count; ++i) {
    const PageWord word = word_of(holds[i].ref.page());
    if (!is_or_was_block(word) || word.generation() != holds[i].ref.generation())
      fail("host %u took page %u with it, which process %u holds: it is %s", host, holds[i].ref.page(),
           holds[i].process, describe(word));
  }
  for (uint32_t page = 0; page < kWorldPages; ++page) check_chain(page, word_of(page));
  for (uint64_t bucket = 0; bucket < region.buckets(); ++bucket) {
    for (uint32_t slot = 0; slot < 2 * limits::kBucketSlots; ++slot) {
      const uint64_t header = region.bucket(bucket).tags.header.raw;
      const PageRef ref = valid_location(bucket, slot);
      if ((header >> slot & 1) == 0) continue;
      if (!region.is_page(ref)) fail("host %u took the location of slot %u of bucket %" PRIu64, host, slot, bucket);
      const PageWord word = word_of(ref.page());
      // Of a POISONED page it may stay until the next marud removes it once more.
      if (!is_or_was_block(word) || word.generation() != ref.generation())
        fail("host %u leaves an entry of page %u, which is %s", host, ref.page(), describe(word));
    }
  }
}

}  // namespace

void make_world() { make(kPlain); }
void make_shared_world() { make(kShared); }
void make_durable_world() { make(kDurable); }
void start_at_epoch(uint64_t epoch) { region.host(0).epoch.raw = epoch; }

void play_shared_world() {
  track_lines(memory, region.layout().control_bytes);
  track_lines(payload, sizeof payload);
  play_hosts(machine_of, after_loss);
}

void belongs_to_machine(unsigned process, unsigned machine) { late_machines[process] = machine; }
unsigned machine_of(unsigned process) {
  return process < kWorldLanes ? process / region.lanes_per_host() : late_machines[process];
}

const ControlRegion& world() { return region; }

const WorldPlaces& world_places() {
  static const WorldPlaces places = {memory, pin_counts, sizeof pin_counts, payload, sizeof payload};
  return places;
}

LaneId lane_id(uint32_t lane) { return {lane, lane_generations[lane]}; }
unsigned lane_process(uint32_t lane) { return lane_processes[lane]; }
void assign_lane(uint32_t lane, uint32_t generation, unsigned process) {
  lane_generations[lane] = generation;
  lane_processes[lane] = process;
}
void reuse_lane(uint32_t lane, unsigned process) {
  assign_lane(lane, lane_generations[lane] + 1, process);
  region.lane_bitmap().words[0].fetch_add_seq_cst(uint64_t(1) << lane);
  region.identity(lane).state.store_release(uint64_t(lane_generations[lane]) << 48 | uint64_t(LaneState::kLive));
}

Digest key_digest(uint32_t key) { return keys[key].digest; }

void define_key(uint32_t key, uint64_t bucket, bool same_tag) {
  const uint64_t step = ~uint64_t(0) / region.buckets();
  KeyRecord& record = keys[key];
  record.digest = {same_tag ? 0x7a6 : 0x1000 + uint64_t(key), bucket * step + step / 4 + key};
  record.bucket = shm::home_bucket(region, record.digest);
  record.defined = true;
}

bool visible_now(uint32_t key) { return keys[key].visible; }
PageRef visible_block(uint32_t key) {
  for (uint32_t slot = 0; slot < 2 * limits::kBucketSlots; ++slot) {
    const PageRef ref = valid_location(keys[key].bucket, slot);
    if (region.is_page(ref) && word_of(ref.page()).is_findable(ref.generation()) &&
        digest_of(ref.page()) == keys[key].digest)
      return ref;
  }
  return PageRef::none();
}
bool was_visible_since(uint32_t key, uint64_t step) { return keys[key].visible || keys[key].last_visible >= step; }
bool was_absent_since(uint32_t key, uint64_t step) { return !keys[key].visible || keys[key].last_absent >= step; }
bool was_listed_since(uint32_t key, uint64_t step) { return keys[key].listed || keys[key].last_listed >= step; }
bool was_unlisted_since(uint32_t key, uint64_t step) { return !keys[key].listed || keys[key].last_unlisted >= step; }

bool was_named_since(PageRef ref, uint64_t step) {
  for (uint64_t bucket = 0; bucket < region.buckets(); ++bucket)
    note_named(bucket, region.bucket(bucket).tags.header.raw);
  const PageRecord& record = page_records[ref.page()];
  // Of a life that is long over nothing is known.
  return record.last_named != 0 && (record.named_generation != ref.generation() || record.last_named > step);
}

uint32_t key_of_life(PageRef ref) {
  const uint8_t kept = page_records[ref.page()].keys[ref.generation() % kLivesKept];
  return kept == 0 ? kWorldKeys : kept - 1;
}

void hold(unsigned process, PageRef ref) {
  if (hold_count == kHoldsMax) fail("the scenario holds more than %u pins", kHoldsMax);
  const PageWord word = word_of(ref.page());
  const bool is_there = is_or_was_block(word);
  if (!is_there || word.generation() != ref.generation()) {
    fail("process %u pinned page %u.%u, which is %s", process, ref.page(), ref.generation(), describe(word));
  }
  holds[hold_count++] = {process, ref};
}

void let_go(unsigned process, PageRef ref) {
  for (uint32_t i = 0; i < hold_count; ++i) {
    if (holds[i].process == process && holds[i].ref == ref) {
      holds[i] = holds[--hold_count];
      return;
    }
  }
  fail("process %u lets page %u go that it does not hold", process, ref.page());
}

bool is_held(uint32_t page) {
  for (uint32_t i = 0; i < hold_count; ++i) {
    if (holds[i].ref.page() == page) return true;
  }
  return false;
}

uint32_t hold_count_of(unsigned process) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < hold_count; ++i) count += holds[i].process == process;
  return count;
}

PageRef registry_location(uint64_t bucket, uint32_t slot) { return valid_location(bucket, slot); }

void watch_page_words(void (*function)(uint32_t page, PageWord from, PageWord to)) { page_word_watch = function; }

void watch_wishes(void (*function)(uint32_t host, uint64_t before, uint64_t after)) { wish_watch = function; }

void forget_process(unsigned process) {
  for (uint32_t i = 0; i < hold_count;) {
    if (holds[i].process == process)
      holds[i] = holds[--hold_count];
    else
      ++i;
  }
}

std::span<AtomicU64> payload_words(uint32_t page) { return payload[page]; }

void write_payload(uint32_t page, uint32_t key, uint32_t version) {
  for (uint32_t i = 0; i < kPayloadWords; ++i) {
    payload[page][i].store_relaxed(uint64_t(key) << 32 | uint64_t(version) << 8 | i);
  }
}

void flush_payload(uint32_t page) { shm::flush(region, payload[page]); }

void check_payload(uint32_t page, uint32_t key, const char* who) {
  uint64_t version = 0;
  for (uint32_t i = 0; i < kPayloadWords; ++i) {
    const uint64_t found = payload[page][i].load_relaxed();
    if (i == 0) version = found >> 8;
    if (found >> 32 != key || (found & 0xff) != i || found >> 8 != version) {
      fail("%s reads foreign or unfinished bytes in page %u: 0x%" PRIx64 " for key %u", who, page, found, key);
    }
  }
}

shm::PinTable make_pin_table(uint32_t lane) {
  AtomicU32* counts = pin_counts[lane];
  const size_t needed = shm::PinTable::counts_needed(region.layout());
  std::memset(static_cast<void*>(counts), 0, needed * sizeof *counts);
  return shm::PinTable(region, lane, {counts, needed});
}

AtomicU32* world_pin_counts(uint32_t lane) { return pin_counts[lane]; }
void occupy_pin_slot(uint32_t lane, uint32_t slot) { pin_counts[lane][slot].raw = 1; }

uint32_t free_pages() {
  uint32_t count = 0;
  for (uint32_t page = 0; page < kWorldPages; ++page) count += word_of(page).is(PageState::kFree);
  return count;
}

void expect_free_pages(uint32_t pages, const char* when) {
  if (free_pages() != pages) fail("%u pages are free %s, and %u should be", free_pages(), when, pages);
}

}  // namespace maru::sim
