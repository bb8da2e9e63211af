#include "cast.h"

#include "libmaru/shm/blocks/find_batch.h"
#include "libmaru/shm/blocks/prefix.h"
#include "libmaru/shm/recovery/evict.h"
#include "tests/sim/mutants.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstddef>
#include <cstring>
#include <new>

namespace maru::sim {
namespace {

using shm::FindStatus;
using shm::FinishStatus;
using shm::LaneSet;
using shm::PublishStatus;
using shm::RetireStatus;

Client clients[kWorldLanes];
uint16_t eviction_attempts[2];
uint64_t clock_ms;
uint64_t time_to_live_ms;
bool clearing;        // marud clears the pool in this schedule
bool early_children;  // somebody names a block as a parent before its store has returned
uint64_t stores_for_tenant;
shm::TenantReturns* tenant_returns;
std::byte key_bytes[kWorldKeys][40];

}  // namespace

std::span<const std::byte> key_text(uint32_t key) {
  std::memset(key_bytes[key], int(key + 1), sizeof key_bytes[key]);
  return {key_bytes[key], key >= kFirstLongKey ? size_t(40) : size_t(16)};
}

bool compare_result() {
  if (chance().chance(4)) return false;
  settle();
  return true;
}

Client& client(uint32_t lane) { return clients[lane]; }

void make_client(uint32_t lane) {
  Client& who = clients[lane];
  who.lane = lane_id(lane);
  who.process = lane_process(lane);
  who.pins = make_pin_table(lane);
  who.context.region = &world();
  who.context.id = who.lane;
  who.context.pins = &who.pins;
  who.context.intents_in_use.raw = 0;
  who.context.returns = nullptr;
}

Client& marud() { return clients[kMarud]; }

void make_marud() {
  begin_reclaims();
  begin_poison(true);
  clock_ms = 1;
  time_to_live_ms = 0;
  clearing = false;
  early_children = false;
  stores_for_tenant = 0;
  tenant_returns = nullptr;
  eviction_attempts[0] = 0;
  eviction_attempts[1] = 0x8000;
  make_client(kMarud);
  marud().lane = marud().context.id = shm::daemon_lane(world());
}

void make_marud_again() {
  world().host(0).epoch.fetch_add_seq_cst(1);
  begin_poison(false);
  make_client(kMarud);
  marud().lane = marud().context.id = shm::daemon_lane(world());
  marud().context.returns = tenant_returns;
}

bool make_next_marud() {
  wait_for_process(kMarud);
  if (!process_died(kMarud)) return false;
  make_marud_again();
  return true;
}

void play_with_tenant(uint64_t tenant, shm::TenantReturns* returns, void (*fold)(uint32_t lane)) {
  stores_for_tenant = tenant;
  tenant_returns = returns;
  fold_lanes_with(fold);
  marud().context.returns = returns;
}

uint64_t now_ms() { return clock_ms; }
void advance_time(uint64_t milliseconds) { clock_ms += milliseconds; }
void set_time_to_live(uint64_t milliseconds) { time_to_live_ms = milliseconds; }
void allow_early_children() { early_children = true; }
bool has_early_children() { return early_children; }

// -- pages ------------------------------------------------------------------------------------------------------------

PageRef take_page(Client& who) {
  const uint32_t start = chance().below(kWorldPages);
  for (uint32_t i = 0; i < kWorldPages; ++i) {
    const PageRef page = shm::take_page(world(), who.lane, (start + i) % kWorldPages);
    if (!page.is_none()) return page;
  }
  return PageRef::none();
}

PageRef take_run(Client& who, uint32_t pages) {
  const uint32_t start = chance().below(kWorldPages);
  for (uint32_t i = 0; i < kWorldPages; ++i) {
    const uint32_t page = (start + i) % kWorldPages;
    if (page % kWorldRegionPages + pages > kWorldRegionPages) continue;
    const PageRef run = shm::take_run(world(), who.lane, page, pages, nullptr);
    if (!run.is_none()) return run;
  }
  return PageRef::none();
}

void give_back(Client& who, PageRef page) {
  if (shm::give_back_run(world(), who.lane, page) == 0 &&
      !PageWord{world().block(page.page()).word.raw}.is(PageState::kPoisoned)) {
    fail("lane %u cannot give back page %u, which is %s", who.lane.lane, page.page(),
         describe(PageWord{world().block(page.page()).word.raw}));
  }
}

// -- storing ----------------------------------------------------------------------------------------------------------

static bool is_over(PageRef block, uint64_t now) {
  const uint64_t expires_ms = world().block(block.page()).expires_ms.raw;
  return expires_ms != 0 && now >= expires_ms;
}

Stored store(Client& who, uint32_t key, PageRef parent, uint32_t pages) {
  const PageRef own = pages == 1 ? take_page(who) : take_run(who, pages);
  return own.is_none() ? Stored{} : store_in(who, key, own, parent);
}

Stored store_in(Client& who, uint32_t key, PageRef own, PageRef parent, bool keeps) {
  note("stores key %u in page %u under page %d", key, own.page(), parent.is_none() ? -1 : int(parent.page()));
  write_payload(own.page(), key, own.generation());
  if (!mutant(kMutantPayloadNotFlushed)) flush_payload(own.page());
  if (!mutant(kMutantMetadataAfterPublish)) write_metadata(own.page(), key, own.generation());
  if (!mutant(kMutantMetadataNotFlushed)) flush_metadata(own.page());
  return publish_in(who, key, own, parent, keeps);
}

Stored publish_in(Client& who, uint32_t key, PageRef own, PageRef parent, bool keeps) {
  shm::NewBlock block;
  block.digest = key_digest(key);
  block.key = key_text(key);
  block.length = kPayloadWords * 8;
  block.metadata_bytes = metadata_bytes(key, own.generation());
  block.parent = parent;
  block.tenant = stores_for_tenant;
  block.now_ms = clock_ms;
  block.expires_ms = time_to_live_ms != 0 ? clock_ms + time_to_live_ms : 0;
  const uint64_t start = steps();
  const shm::PublishResult result = shm::publish(who.context, own, block);
  note("key %u: publish says %u", key, unsigned(result.status));
  if (mutant(kMutantMetadataAfterPublish) && result.status == PublishStatus::kStored)
    write_metadata(own.page(), key, own.generation());
  const bool may_be_lost = clearing || poisons() || early_children;
  if (compare_result()) {
    switch (result.status) {
      case PublishStatus::kStored:
        // What was taken away before it had its entry counts as stored.
        if (!was_listed_since(key, start) && !may_be_lost) fail("key %u was stored and was never visible", key);
        if (!was_named_since(own, start) && !may_be_lost)
          fail("key %u was stored in page %u, which no bucket ever named", key, own.page());
        break;
      case PublishStatus::kDuplicate:
        if (!was_visible_since(key, start)) fail("key %u was a duplicate of nothing", key);
        if (!was_named_since(result.block, start))
          fail("key %u was a duplicate of page %u, which no bucket named", key, result.block.page());
        break;
      case PublishStatus::kNoParent:
        if (PageWord{world().block(parent.page()).word.raw}.is_findable(parent.generation()) &&
            !is_over(parent, block.now_ms)) {
          fail("key %u was refused for its parent, page %u, which is there", key, parent.page());
        }
        break;
      case PublishStatus::kNotReserved:
        if (PageWord{world().block(own.page()).word.raw}.is(PageState::kPoisoned)) break;
        fail("lane %u lost page %u while it was storing", who.lane.lane, own.page());
      default: break;
    }
  }
  if (result.status == PublishStatus::kStored) return {result.status, result.block};
  // Else it is the caller's, unless its memory is bad: then it is nobody's.
  const PageWord left{world().block(own.page()).word.load_acquire()};
  if (left.is(PageState::kPoisoned)) return {result.status, result.block};
  if (left != PageWord::reserved(own.generation(), who.lane))
    fail("lane %u is told that page %u is still its own, which is %s", who.lane.lane, own.page(), describe(left));
  if (!keeps) give_back(who, own);
  return {result.status, result.block};
}

uint32_t store_chain(Client& who, uint32_t first, uint32_t count) {
  PageRef parent = PageRef::none();
  for (uint32_t i = 0; i < count; ++i) {
    const Stored stored = store(who, first + i, parent);
    if (stored.status != PublishStatus::kStored && stored.status != PublishStatus::kDuplicate) return i;
    parent = stored.block;
  }
  return count;
}

uint32_t store_chain_batch(Client& who, uint32_t first, uint32_t count) {
  std::array<PageRef, kWorldPages> own;
  uint32_t taken = 0, stored_count = 0;
  while (taken < count && !(own[taken] = take_page(who)).is_none()) ++taken;
  PageRef parent = PageRef::none();
  for (uint32_t i = 0; i < taken; ++i) {
    if (taken < count || i > stored_count) {  // not all could be had, or one before could not be stored
      give_back(who, own[i]);
      continue;
    }
    const Stored stored = store_in(who, first + i, own[i], parent);
    if (stored.status != PublishStatus::kStored && stored.status != PublishStatus::kDuplicate) continue;
    parent = stored.block;
    ++stored_count;
  }
  return stored_count;
}

Held store_and_hold(Client& who, uint32_t key, PageRef parent) {
  const PageRef own = take_page(who);
  if (own.is_none()) return {PageRef::none(), 0};
  const shm::Pin pin = who.pins.pin_own(own);
  if (pin.status != shm::PinStatus::kPinned) {
    give_back(who, own);
    return {PageRef::none(), 0};
  }
  if (store_in(who, key, own, parent, true).status == PublishStatus::kStored) {
    hold(who.process, own);
    return {own, pin.slot};
  }
  if (!who.pins.unpin(pin.slot, own)) fail("lane %u cannot unpin page %u, its own", who.lane.lane, own.page());
  give_back(who, own);
  return {PageRef::none(), 0};
}

// -- finding ----------------------------------------------------------------------------------------------------------

void expect_named(PageRef ref, uint32_t key, uint64_t start) {
  if (!was_visible_since(key, start)) fail("key %u was found and was not there", key);
  if (!was_named_since(ref, start)) fail("key %u was found in page %u, which no bucket named", key, ref.page());
}

void check_key(PageRef ref, uint32_t key, const char* who) {
  shm::KeyBytes copy;
  if (!shm::read_key(world(), ref, &copy)) fail("%s cannot read the key of page %u", who, ref.page());
  const std::span<const std::byte> wanted = key_text(key);
  if (copy.size != wanted.size() || !std::equal(wanted.begin(), wanted.end(), copy.data))
    fail("%s reads another key in page %u than key %u", who, ref.page(), key);
}

Held find_and_hold(Client& who, uint32_t key) {
  const uint64_t start = steps();
  const uint64_t now = clock_ms;
  const Digest digest = key_digest(key);
  shm::Found found;
  if (chance().chance(2))
    found = shm::find_and_pin(who.context, digest, now);
  else if (!shm::find_and_pin_batch(who.context, {&digest, 1}, now, &found))
    found.status = FindStatus::kPinsFull;
  if (found.status == FindStatus::kPinsFull) return {PageRef::none(), 0};
  if (found.status == FindStatus::kAbsent) {
    const bool expired = time_to_live_ms != 0;  // what is there may be too old to be found
    if (!expired && compare_result() && !was_absent_since(key, start))
      fail("key %u was missed and was there all the time", key);
    return {PageRef::none(), 0};
  }
  hold(who.process, found.ref);
  const uint64_t expires_ms = world().block(found.ref.page()).expires_ms.raw;
  if (expires_ms != 0 && expires_ms <= now) fail("key %u was found and had expired", key);
  expect_named(found.ref, key, start);
  return {found.ref, found.slot};
}

void release(Client& who, Held held) {
  let_go(who.process, held.ref);
  if (!who.pins.unpin(held.slot, held.ref)) fail("lane %u cannot unpin page %u", who.lane.lane, held.ref.page());
}

// libmaru never moves a pin; this is what it would have to do, in the words of control-region.md.
Held move_pin(Client& who, Held held) {
  const shm::LaneView lane = world().lane(who.lane.lane);
  const uint32_t set = held.slot / uint32_t(limits::kPinSetSlots) * uint32_t(limits::kPinSetSlots);
  const uint32_t slot = set + chance().below(limits::kPinSetSlots);
  AtomicU32* counts = world_pin_counts(who.lane.lane);
  uint32_t none = 0;
  if (!counts[slot].cas_acq_rel(none, 1)) return held;
  lane.pins[slot].exchange_seq_cst(held.ref.bits);
  if (!mutant(kMutantPinMoves)) {
    AtomicU64& word = world().block(held.ref.page()).word;
    PageWord found{word.load_seq_cst()};
    while (found.is(PageState::kRetiring, held.ref.generation()) &&
           !word.cas_seq_cst(found.bits, PageWord::ready(held.ref.generation(), 0).bits)) {
    }
  }
  lane.pins[held.slot].store_release(0);
  counts[held.slot].store_release(0);
  return {held.ref, slot};
}

bool retrieve(Client& who, uint32_t key) {
  const Held held = find_and_hold(who, key);
  if (held.ref.is_none()) return false;
  check_payload(held.ref.page(), key, "a reader");
  check_metadata(held.ref.page(), key, "a reader");
  release(who, held);
  return true;
}

bool exists(uint32_t key) {
  const Digest digest = key_digest(key);
  const uint64_t start = steps();
  bool found;
  if (chance().chance(2)) {
    found = shm::registry_exists(world(), digest);
  } else {
    uint8_t present;
    found = shm::registry_exists_batch(world(), &digest, 1, &present) != 0;
  }
  if (compare_result()) {
    if (found && !was_listed_since(key, start)) fail("exists(key %u) says yes and no entry had its tag", key);
    if (!found && !was_absent_since(key, start)) fail("exists(key %u) says no and it was there all the time", key);
  }
  return found;
}

uint32_t match_chain(Client& who, uint32_t first, uint32_t count) {
  std::array<Digest, kWorldKeys> digests;
  std::array<shm::PlainDigest, kWorldKeys> keys;
  std::array<shm::HeldBlock, kWorldKeys> held;
  for (uint32_t i = 0; i < count; ++i) {
    digests[i] = key_digest(first + i);
    keys[i] = shm::unpermute(world().secret(), digests[i]);
  }
  const uint64_t start = steps();
  const shm::PrefixResult result =
      shm::match_prefix(who.context, shm::prefix_keys(world(), {keys.data(), count}), now_ms(), held.data());
  note("match_prefix of %u keys says %zu, %zu held%s", count, result.blocks, result.held,
       result.walked ? ", walked" : "");
  if (result.pins_full) return 0;
  for (size_t i = 0; i < result.held; ++i)
    if (!was_named_since(held[i].ref, start))
      fail("match_prefix holds page %u, which no bucket named", held[i].ref.page());
  // Each pin holds its block and, through the child counts, the ancestors of it.
  std::array<PageRef, kWorldPages> blocks;
  uint32_t block_count = 0;
  for (size_t i = 0; i < result.held; ++i) {
    for (PageRef ref = held[i].ref; world().is_page(ref) && block_count < kWorldPages;) {
      hold(who.process, ref);
      blocks[block_count++] = ref;
      ref = PageRef::from_bits(world().block(ref.page()).parent.raw);
    }
  }
  for (uint32_t key = first; key < first + result.blocks; ++key) {
    if (!was_visible_since(key, start) && !poisons()) fail("match_prefix counts key %u, which was not there", key);
    bool is_held = false;
    for (uint32_t i = 0; i < block_count && !is_held; ++i) {
      const format::BlockLine& line = world().block(blocks[i].page());
      is_held = Digest{line.digest_lo.raw, line.digest_hi.raw} == key_digest(key);
      if (!is_held) continue;
      check_payload(blocks[i].page(), key, "a prefix reader");
      check_metadata(blocks[i].page(), key, "a prefix reader");
    }
    if (!is_held) fail("match_prefix counts key %u and does not hold it", key);
  }
  if (result.blocks < count && time_to_live_ms == 0 && compare_result() &&
      !was_absent_since(first + uint32_t(result.blocks), start)) {
    fail("match_prefix ends before key %zu, which was there all the time", first + result.blocks);
  }
  // Under the pin on the deepest block its ancestors are where they were; the deepest itself may have lost its key, which
  // matters to a lookup and not to a walk.
  if (result.held == 1) {
    std::array<PageRef, kWorldKeys> refs;
    std::array<uint64_t, kWorldKeys> lengths;
    const bool walks = chance().chance(2);
    const size_t wanted = walks ? result.blocks : result.blocks - 1;
    if (walks)
      shm::resolve_chain(world(), result.deepest, result.blocks, {digests.data(), wanted}, refs.data(), lengths.data());
    else
      shm::resolve_batch(world(), {digests.data(), wanted}, refs.data(), lengths.data());
    bool is_whole = true;
    for (uint32_t i = 0; i < wanted; ++i) is_whole &= !refs[i].is_none();
    // A block that was POISONED is resolved as absent, or as another one that has its key now, which is no part of the chain.
    const bool are_held = shm::are_held(world(), {refs.data(), wanted}, {held.data(), 1});
    const bool is_refused = !is_whole || (walks && refs[wanted - 1] != result.deepest) || !are_held;
    // Those were the blocks above the pin before any key was looked up, so it does not matter which of the two is asked first.
    bool were_held = block_count == result.blocks;
    for (uint32_t i = 0; i < wanted && were_held; ++i) were_held = refs[i] == blocks[block_count - 1 - i];
    if (is_whole && are_held != were_held) fail("what the match of key %u holds has changed under its pin", first);
    for (uint32_t i = 0; i < wanted; ++i) {
      if (poisons() && (is_refused || !walks)) break;
      if (refs[i].is_none() ||
          std::find(blocks.begin(), blocks.begin() + block_count, refs[i]) == blocks.begin() + block_count) {
        fail("key %u is held and cannot be located", first + i);
      }
    }
  }
  for (uint32_t i = 0; i < block_count; ++i) let_go(who.process, blocks[i]);
  shm::release_prefix(who.context, held.data(), result.held);
  return uint32_t(result.blocks);
}

// -- removing ---------------------------------------------------------------------------------------------------------

void free_or_hand_over(Client& who, PageRef ref) {
  const FinishStatus status = shm::finish_deleted(who.context, ref, LaneSet::in_use(world()), 0, steps(), nullptr);
  if (PageWord{world().block(ref.page()).word.load_acquire()}.is(PageState::kPoisoned)) return;
  if (status == FinishStatus::kNotMine) fail("lane %u cannot free page %u that it retired", who.lane.lane, ref.page());
  const LaneId daemon = shm::daemon_lane(world(), world().host_of_lane(who.lane.lane));
  if (status == FinishStatus::kPinned && !shm::hand_over_retired(world(), ref, who.lane, daemon) &&
      !PageWord{world().block(ref.page()).word.load_acquire()}.is(PageState::kPoisoned)) {
    fail("lane %u cannot hand page %u over", who.lane.lane, ref.page());
  }
}

RetireStatus remove(Client& who, uint32_t key) {
  const uint64_t start = steps();
  PageRef ref;
  const RetireStatus status = shm::retire(who.context, key_digest(key), &ref);
  note("remove key %u says %u", key, unsigned(status));
  if (compare_result() && status == RetireStatus::kAbsent && !was_absent_since(key, start)) {
    fail("key %u could not be removed and was there all the time", key);
  }
  if (status == RetireStatus::kRetired) {
    if (!was_named_since(ref, start)) fail("key %u was removed in page %u, which no bucket named", key, ref.page());
    free_or_hand_over(who, ref);
  }
  return status;
}

// -- marud ------------------------------------------------------------------------------------------------------------

void evict_pages(std::span<const uint32_t> pages, uint32_t thread) {
  std::array<PageRef, kWorldPages> retired;
  const LaneSet lanes = LaneSet::in_use(world());
  const size_t count = shm::retire_unpinned(marud().context, lanes, pages.data(), pages.size(),
                                            &eviction_attempts[thread], retired.data());
  for (size_t i = 0; i < count; ++i) shm::free_retired(marud().context, retired[i], nullptr);
}

void evict_page(uint32_t page) { evict_pages({&page, 1}); }

void clear_blocks() {
  clearing = true;
  for (uint32_t page = kWorldPages; page-- > 0;) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (!word.is(PageState::kReady)) continue;
    const PageRef ref = PageRef::of(page, word.generation());
    if (shm::retire_ref(marud().context, ref) != RetireStatus::kRetired) continue;
    note("marud clears page %u", page);
    shm::finish_retired(marud().context, ref, LaneSet::in_use(world()), nullptr);
  }
}

void free_handed_over() {
  const LaneSet lanes = LaneSet::in_use(world());
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (word.is(PageState::kRetired) && word.lane() == marud().lane) {
      shm::finish_retired(marud().context, PageRef::of(page, word.generation()), lanes, nullptr);
    }
  }
}

}  // namespace maru::sim
