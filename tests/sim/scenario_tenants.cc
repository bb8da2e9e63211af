// A tenant's usage and its hard limit. Clients store and delete for one tenant while marud evicts, counts the pages, grants
// credit, sets limits, and reclaims the lanes of dead clients; marud may die as well. A client may have two threads that store,
// the lane of a dead client may go to another one, and pages may have bad memory.
//
//   never too low   after every change of a page word, the accounts and marud's balance say at least what the pages say
//   the limit       what the pages say never passes the limit, from the moment that it was in force; stores that had begun
//                   before it may still go through, and are counted against it
//   at rest         the accounts say what the pages say: at once when nobody died, after a pass over the pages otherwise
#include "cast.h"
#include "scenario.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>

namespace maru::sim {
namespace {

constexpr uint64_t kTenant = 77;
constexpr unsigned kNextMarud = 8;
constexpr uint32_t kClients = 3;
constexpr uint32_t kRunPagesMax = 2;
constexpr uint64_t kNoBound = ~uint64_t{0};

// What the simulator knows; marud's part of it is what a marud would remember, and is lost with it where it matters.
uint64_t limit_bytes;  // 0: none
uint64_t bound_bytes;  // that the pages must not pass
// A thread of a client asks for credit, by a number: the lane, and kSecondThread more for the second thread.
constexpr uint32_t kSecondThread = 8, kAskers = 2 * kSecondThread;
uint64_t asked[kAskers];  // bytes of credit; 0: the thread asks for nothing
bool granted[kAskers];    // the answer
bool is_reclaimed[kWorldLanes];
shm::LaneSet unsettled;

// A scenario's additions: by default a client has one thread, good memory, and its lane for ever.
struct Play {
  bool has_limits = false, has_threads = false, reuses_lanes = false, has_bad_memory = false;
};
Play play;
void (*client_body)(void*);
constexpr unsigned kNextClients = 8;  // the process that gets the lane of a dead client is so much more than its lane

uint32_t lane_of_asker(uint32_t asker) { return asker % kSecondThread; }
bool is_gone(uint32_t lane) { return process_died(lane_process(lane)); }
bool has_ended(uint32_t lane) { return process_ended(lane_process(lane)); }

uint64_t page_bytes() { return world().page_bytes(); }
format::TenantRecord& record() { return world().tenant(0); }

bool counts(PageWord word) {
  return word.is(PageState::kSealed) || word.is(PageState::kReady) || word.is(PageState::kRetiring) ||
         word.is(PageState::kRetired);
}

uint64_t truth() {
  uint64_t bytes = 0;
  for (uint32_t page = 0; page < kWorldPages; ++page)
    if (counts(PageWord{world().block(page).word.raw}) && world().detail(page).tenant.raw == kTenant)
      bytes += uint32_t(world().block(page).shape.raw) * page_bytes();
  return bytes;
}

uint64_t usage() {
  uint64_t bytes = record().balance.raw;
  for (uint32_t lane = 1; lane < kWorldLanes; ++lane)
    for (uint32_t i = 0; i < world().account_slots(); ++i)
      bytes += world().account(lane, i).charged.raw - world().account(lane, i).returned.raw;
  return bytes;
}

void on_page_word(uint32_t page, PageWord from, PageWord to) {
  const Unseen unseen;
  const uint64_t pages_say = truth();
  if (usage() < pages_say || usage() > 2 * kWorldPages * kWorldLanes * page_bytes())
    fail("the accounts say %" PRId64 " bytes and the pages %" PRIu64, int64_t(usage()), pages_say);
  if (counts(to) && !counts(from) && pages_say > bound_bytes)
    fail("page %u makes it %" PRIu64 " bytes and the limit is %" PRIu64, page, pages_say, bound_bytes);
}

// -- marud ------------------------------------------------------------------------------------------------------------

shm::LaneSet accounted_lanes() {
  shm::LaneSet lanes = shm::LaneSet::in_use(world());
  lanes.remove(kMarud);
  return lanes;
}

void add_to_balance(uint64_t bytes) { record().balance.store_release(record().balance.load_relaxed() + bytes); }

struct Balance final : shm::TenantReturns {
  void returned(uint32_t, uint64_t tenant, uint64_t bytes) override {
    if (tenant == kTenant) add_to_balance(0 - bytes);
  }
} balance;

void fold(uint32_t lane) {
  shm::fold_accounts(world(), lane, [](uint64_t, uint64_t bytes) { add_to_balance(bytes); });
}

// Whether the pass counted.
bool count_pages() {
  const shm::LaneSet lanes = accounted_lanes();
  const shm::TenantReading before = shm::read_tenant(world(), lanes, kTenant);
  if (!before.is_quiet) return false;
  uint64_t pages_say = 0;
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    uint64_t tenant = 0;
    const uint64_t bytes = shm::tenant_bytes(world(), page, &tenant);
    if (tenant == kTenant) pages_say += bytes;
  }
  if (!(shm::read_tenant(world(), lanes, kTenant) == before)) return false;
  note("marud counts %" PRIu64 " bytes", pages_say);
  record().balance.store_release(pages_say - before.bytes());
  return true;
}

// From the end of this on the limit is in force: what began before it, or had credit, is in the bound.
void set_limit(uint64_t bytes) {
  note("marud sets a limit of %" PRIu64 " bytes", bytes);
  limit_bytes = bytes;
  record().id.exchange_seq_cst(kTenant);
  record().flags.exchange_seq_cst(format::kTenantNeedsCredit);
  world().tenant_rules().flags.exchange_seq_cst(format::kRulesLimited);
  shm::revoke_credit(world(), accounted_lanes(), kTenant, true);
  unsettled = accounted_lanes();
  uint64_t in_flight = 0;
  for (uint32_t lane = 1; lane < kWorldLanes; ++lane)
    for (uint32_t i = 0; i < world().account_slots(); ++i)
      in_flight += shm::stores_in_flight(world().account(lane, i).in_flight.raw);
  bound_bytes = std::max(bytes, usage() + in_flight * kRunPagesMax * page_bytes());
}

bool grant(uint32_t lane, uint64_t bytes) {
  const uint32_t account = shm::find_account(world(), lane, kTenant);
  const auto left = [&] {
    return int64_t(limit_bytes - record().balance.load_relaxed() -
                   shm::committed_bytes(world(), accounted_lanes(), kTenant, &unsettled));
  };
  int64_t available = left();
  if (available < int64_t(bytes)) {
    shm::revoke_credit(world(), accounted_lanes(), kTenant, false);
    available = left();
  }
  if (available < int64_t(bytes) || account == shm::kOthersAccount) return false;
  shm::grant_credit(world(), lane, account, chance().chance(2) ? bytes : uint64_t(available));
  return true;
}

bool is_due(uint32_t lane) {
  if (is_gone(lane)) return !is_reclaimed[lane];
  return asked[lane] != 0 || asked[lane + kSecondThread] != 0;
}

// Another client gets the lane, without credit and accounts of the dead one.
void give_lane_again(uint32_t lane) {
  note("lane %u is another client's", lane);
  reuse_lane(lane, lane + kNextClients);
  make_client(lane);
  settle();
  spawn("next client", lane + kNextClients, client_body, argument_of(lane));
}

void take_back(uint32_t lane) {
  reclaim_lane(lane);
  is_reclaimed[lane] = true;
  asked[lane] = asked[lane + kSecondThread] = 0;
  if (play.reuses_lanes) give_lane_again(lane);
}

void do_something() {
  if (play.has_bad_memory && chance().chance(2)) {
    poison(chance().below(kWorldPages));
    return settle_poison(false);
  }
  switch (chance().below(play.has_limits ? 5 : 3)) {
    case 0:
    case 1: count_pages(); break;
    case 2:
      for (uint32_t page = 0; page < kWorldPages; ++page)
        if (PageWord{world().block(page).word.load_acquire()}.is(PageState::kReady) && chance().chance(2))
          evict_page(page);
      free_handed_over();
      break;
    case 3:
    case 4: set_limit((1 + chance().below(5)) * page_bytes()); break;
  }
}

void serve_clients(uint32_t rounds) {
  for (;;) {
    bool all_ended = true;
    for (uint32_t lane = 1; lane <= kClients; ++lane) {
      if (is_gone(lane) && !is_reclaimed[lane]) take_back(lane);
      for (const uint32_t asker : {lane, lane + kSecondThread}) {
        if (asked[asker] == 0 || is_gone(lane)) continue;
        granted[asker] = grant(lane, asked[asker]);
        settle();
        asked[asker] = 0;
      }
      all_ended = all_ended && has_ended(lane);
    }
    if (rounds != 0) {
      --rounds;
      do_something();
      yield();
    } else if (all_ended) {
      return;
    } else {
      wait_until(
          [](void*) {
            bool ended = true;
            for (uint32_t lane = 1; lane <= kClients; ++lane) {
              if (is_due(lane)) return true;
              ended = ended && has_ended(lane);
            }
            return ended;
          },
          nullptr);
    }
  }
}

void keep_tenants(void*) { serve_clients(2 + chance().below(6)); }

// The limit appears at one moment among the steps of stores that have begun.
void set_one_limit(void*) {
  for (uint32_t rounds = chance().below(40); rounds > 0; --rounds) yield();
  set_limit((3 + chance().below(4)) * page_bytes());
  serve_clients(0);
}

void next_marud(void*) {
  if (!make_next_marud()) return;
  unsettled = accounted_lanes();
  adopt();
  // What the last one was doing when it died is begun again.
  if (play.has_limits && record().flags.load_relaxed() != 0) set_limit(limit_bytes);
  keep_tenants(nullptr);
}

// -- clients ----------------------------------------------------------------------------------------------------------

Client& client_of_asker(void* argument) { return client(lane_of_asker(lane_of(argument))); }

void store_with_credit(void* argument, uint32_t key, uint32_t pages) {
  const uint32_t asker = lane_of(argument);
  for (uint32_t tries = 0; tries < 2; ++tries) {
    if (store(client_of_asker(argument), key, PageRef::none(), pages).status != shm::PublishStatus::kNeedsCredit)
      return;
    settle();
    asked[asker] = pages * page_bytes();
    wait_until([](void* number) { return asked[lane_of(number)] == 0; }, argument);
    if (!granted[asker]) return;
  }
}

void live(void* argument) {
  Client& who = client_of_asker(argument);
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = chance().below(5);
    if (chance().chance(3)) {
      remove(who, key);
      continue;
    }
    store_with_credit(argument, key, 1 + chance().below(kRunPagesMax));
  }
}

void store_a_few(void* argument) {
  const uint32_t first = 2 + 4 * lane_of_asker(lane_of(argument));
  for (uint32_t key = first; key < first + 1 + chance().below(3); ++key)
    store_with_credit(argument, key, 1 + chance().below(kRunPagesMax));
}

void begin(Play wanted, void (*client_life)(void*), void (*marud_life)(void*)) {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= kClients + 1; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
  play = wanted;
  client_body = client_life;
  limit_bytes = 0;
  bound_bytes = kNoBound;
  unsettled = {};
  for (uint64_t& bytes : asked) bytes = 0;
  for (bool& answer : granted) answer = false;
  for (bool& lane : is_reclaimed) lane = false;
  play_with_tenant(kTenant, &balance, fold);
  store(client(kClients + 1), 0);
  store(client(kClients + 1), 1);
  watch_page_words(on_page_word);
  for (uint32_t lane = 1; lane <= kClients; ++lane) {
    spawn("client", lane, client_body, argument_of(lane));
    if (play.has_threads && chance().chance(2))
      spawn("its thread", lane, client_body, argument_of(lane + kSecondThread));
  }
  spawn("marud", kMarud, marud_life);
}

void death_setup() {
  begin({}, live, keep_tenants);
  spawn("next marud", kNextMarud, next_marud);
  allow_deaths(0b1110, 2);
  allow_deaths(0b0001, 1);
}

void limit_setup() {
  begin({.has_limits = true}, live, keep_tenants);
  spawn("next marud", kNextMarud, next_marud);
  if (chance().chance(2)) allow_deaths(0b1110, 2);
  if (chance().chance(3)) allow_deaths(0b0001, 1);
}

void appears_setup() { begin({.has_limits = true}, store_a_few, set_one_limit); }

void threads_setup() {
  begin({.has_limits = true, .has_threads = true}, store_a_few, set_one_limit);
  if (chance().chance(2)) allow_deaths(0b1110, 1);
}

void reuse_setup() {
  begin({.has_limits = true, .has_threads = chance().chance(2), .reuses_lanes = true}, live, set_one_limit);
  allow_deaths(0b1110, 3);
}

void poison_setup() {
  begin({.has_limits = chance().chance(2), .has_bad_memory = true}, live, keep_tenants);
  spawn("next marud", kNextMarud, next_marud);
  if (chance().chance(2)) allow_deaths(0b1110, 1);
  if (chance().chance(3)) allow_deaths(0b0001, 1);
}

void finish() {
  settle_world();
  if (deaths() == 0 && usage() != truth())
    fail("nobody died, the accounts say %" PRId64 " bytes and the pages %" PRIu64, int64_t(usage()), truth());
  if (!count_pages()) fail("at rest a pass over the pages does not count");
  if (usage() != truth())
    fail("at rest the accounts say %" PRId64 " bytes and the pages %" PRIu64, int64_t(usage()), truth());
}

constexpr Scenario kScenarios[] = {
    {"tenant-death",
     "clients and marud die at any step: a tenant's accounts are never below its pages, and equal at rest", death_setup,
     finish, forget_process},
    {"tenant-limit", "a hard limit appears and changes while clients store: the pages never pass it", limit_setup,
     finish, forget_process},
    {"tenant-limit-appears",
     "a hard limit appears among stores that have begun, and is not passed by them and later ones", appears_setup,
     finish, forget_process},
    {"tenant-threads", "two threads of a client store under one hard limit: they do not use one credit twice",
     threads_setup, finish, forget_process},
    {"tenant-lane-reuse", "the lane of a dead client goes to another one, without its credit and its accounts",
     reuse_setup, finish, forget_process},
    {"tenant-poison", "pages of a tenant become POISONED: their bytes are returned once, and not before", poison_setup,
     finish, forget_process},
};

}  // namespace

std::span<const Scenario> tenant_scenarios() { return kScenarios; }

}  // namespace maru::sim
