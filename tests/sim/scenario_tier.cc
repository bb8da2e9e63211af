// A client lets a device read and write its blocks, as maru-tierd does. It dies in the middle of a store into its tier: pin,
// transfer out of the page, unpin. Or it dies in the middle of a load: page, transfer into it, publish under the parent.
//
// The device is nobody's process and does not die. It goes on with a transfer whose owner has died, as a kernel does. Two rules
// keep others safe from it. A page is not used again while a pin is on it. And what a client holds comes back only when the
// client is gone: a thread that reads waits inside the kernel, so its process is not gone before the device is done.
#include "cast.h"
#include "scenario.h"
#include "tests/sim/mutants.h"

#include <array>
#include <cstdint>

namespace maru::sim {
namespace {

constexpr unsigned kTier = 1;
constexpr unsigned kDevice = 9;  // a process without a lane
constexpr uint32_t kChain = 3;   // keys 0 to 2 are a chain that the tier has
constexpr uint32_t kOthers = 8;  // keys 8 to 15 are other clients'

// One transfer at a time. Between client and device pass messages of the kernel, so this is no shared memory of the pool.
struct Transfer {
  bool is_under_way = false;
  bool is_load = false;
  uint32_t page = 0, key = 0, version = 0;
  std::array<uint64_t, kPayloadWords> copy = {};  // of a store
};
Transfer transfer;
bool is_tier_reclaimed;

void begin_transfer(bool is_load, PageRef page, uint32_t key) {
  settle();  // a system call
  transfer = {true, is_load, page.page(), key, page.generation(), {}};
}

void wait_for_device() {
  wait_until([](void*) { return !transfer.is_under_way; }, nullptr);
}

// The tier looks at other things meanwhile, and may die at each look.
void work_beside_device() {
  while (transfer.is_under_way) {
    (void)world().block(transfer.page).word.load_acquire();
    yield();
  }
}

void device(void*) {
  while (true) {
    wait_until([](void*) { return transfer.is_under_way || process_ended(kTier); }, nullptr);
    if (!transfer.is_under_way) return;
    const Transfer now = transfer;
    // Some transfers take long, in which others do a lot.
    for (uint32_t left = chance().chance(2) ? chance().below(600) : 0; left > 0; --left) yield();
    std::array<uint64_t, kPayloadWords> copy = {};
    if (now.is_load) {
      write_payload(now.page, now.key, now.version);
      write_metadata(now.page, now.key, now.version);
    }
    for (uint32_t i = 0; i < kPayloadWords && !now.is_load; ++i) copy[i] = payload_words(now.page)[i].load_relaxed();
    settle();
    transfer.copy = copy;
    transfer.is_under_way = false;
  }
}

// -- down ---------------------------------------------------------------------------------------------------------------

void put_down(Client& who, uint32_t key) {
  const Held held = find_and_hold(who, key);
  if (held.ref.is_none()) return;
  begin_transfer(false, held.ref, key);
  if (mutant(kMutantDeviceReadsUnpinned)) release(who, held);
  work_beside_device();
  for (uint32_t i = 0; i < kPayloadWords; ++i)
    if (transfer.copy[i] >> 32 != key || (transfer.copy[i] & 0xff) != i ||
        transfer.copy[i] >> 8 != transfer.copy[0] >> 8)
      fail("the tier has 0x%llx as word %u of key %u", static_cast<unsigned long long>(transfer.copy[i]), i, key);
  if (!mutant(kMutantDeviceReadsUnpinned)) release(who, held);
}

void put_all_down(void* argument) {
  const uint32_t rounds = 2 + chance().below(3);
  for (uint32_t i = 0; i < rounds; ++i) put_down(client_of(argument), chance().below(kChain));
}

// -- up -----------------------------------------------------------------------------------------------------------------

// False: nothing below it can be published.
bool bring_up(Client& who, uint32_t key) {
  const PageRef parent = key == 0 ? PageRef::none() : visible_block(key - 1);
  if (key != 0 && parent.is_none()) return false;
  const PageRef page = take_page(who);
  if (page.is_none()) return false;
  begin_transfer(true, page, key);
  if (!mutant(kMutantPublishBeforeDevice)) work_beside_device();
  const auto status = publish_in(who, key, page, parent).status;
  if (mutant(kMutantPublishBeforeDevice)) work_beside_device();
  return status == shm::PublishStatus::kStored || status == shm::PublishStatus::kDuplicate;
}

void bring_all_up(void* argument) {
  for (uint32_t rounds = 1 + chance().below(2); rounds > 0; --rounds)
    for (uint32_t key = 0; key < kChain && bring_up(client_of(argument), key);) ++key;
}

// -- the others ---------------------------------------------------------------------------------------------------------

void use_pool(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 3 + chance().below(4); rounds > 0; --rounds) {
    switch (chance().below(4)) {
      case 0: store(who, kOthers + chance().below(8)); break;
      case 1: remove(who, kOthers + chance().below(8)); break;
      case 2: match_chain(who, 0, kChain); break;
      case 3: retrieve(who, chance().below(kChain)); break;
    }
  }
}

// What comes after the tier's death gets its pages.
void use_its_pages(void* argument) {
  use_pool(argument);
  wait_until([](void*) { return is_tier_reclaimed; }, nullptr);
  for (uint32_t key = kOthers; key < kOthers + 8; ++key)
    if (store(client_of(argument), key).status == shm::PublishStatus::kStored) retrieve(client_of(argument), key);
}

void evict_and_reclaim(void*) {
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    for (uint32_t page = 0; page < kWorldPages; ++page)
      if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady) && chance().chance(2))
        evict_page(page);
    free_handed_over();
  }
  wait_for_process(kTier);
  if (!mutant(kMutantDeviceOutlivesOwner)) wait_for_device();  // the tier's process ends with its last transfer
  reclaim_the_dead(1u << kTier);
  is_tier_reclaimed = true;
  reclaim_the_dead(0b1100);
}

void begin() {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= 4; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 3);
  transfer = {};
  is_tier_reclaimed = false;
  spawn("device", kDevice, device);
  spawn("client 2", 2, use_pool, argument_of(2));
  spawn("client 3", 3, use_its_pages, argument_of(3));
  spawn("marud", kMarud, evict_and_reclaim);
  allow_deaths(1u << kTier, 1);
  if (chance().chance(2)) allow_deaths(0b1100, 1);
}

void store_setup() {
  begin();
  store_chain(client(4), 0, kChain);
  spawn("tier", kTier, put_all_down, argument_of(kTier));
}

void prefetch_setup() {
  begin();
  spawn("tier", kTier, bring_all_up, argument_of(kTier));
}

constexpr Scenario kScenarios[] = {
    {"tier-store", "a client lets a device read what it has pinned, and dies: the device reads that block and no other",
     store_setup, settle_world, forget_process},
    {"tier-prefetch",
     "a client lets a device write into its pages, publishes them under their parents, and dies: nobody else's bytes "
     "change",
     prefetch_setup, settle_world, forget_process},
};

}  // namespace

std::span<const Scenario> tier_scenarios() { return kScenarios; }

}  // namespace maru::sim
