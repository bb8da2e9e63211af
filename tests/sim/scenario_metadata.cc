// Metadata of blocks: a reader gets all of it, or no block, whoever dies at which step. docs/format.md, "Metadata of a block".
#include "cast.h"
#include "scenario.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr uint32_t kKeys = 4;  // how much metadata a block has depends on its key and on the life of its page

void begin(uint32_t clients) {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= clients; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
}

// -- stored, read, deleted ----------------------------------------------------------------------------------------------

void describe_and_read(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = chance().below(kKeys);
    switch (chance().below(7)) {
      case 0: store(who, key, PageRef::none(), 1 + chance().below(2)); break;
      case 1: store_chain(who, 0, 1 + chance().below(kKeys)); break;
      case 2: remove(who, key); break;
      case 3: match_chain(who, 0, kKeys); break;
      case 4: {
        // A store that finds the key keeps the pages, and the metadata of its next block is another one.
        const PageRef own = take_page(who);
        if (own.is_none()) break;
        if (store_in(who, key, own, PageRef::none(), true).status == shm::PublishStatus::kStored) break;
        if (PageWord{world().block(own.page()).word.load_acquire()}.is(PageState::kReserved))
          store_in(who, (key + 1) % kKeys, own, PageRef::none());
        break;
      }
      default: retrieve(who, key); break;
    }
  }
}

void marud_works(void*) {
  for (uint32_t rounds = 1 + chance().below(4); rounds > 0; --rounds) {
    const PageRef block = visible_block(chance().below(kKeys));
    if (!block.is_none() && chance().chance(2)) evict_page(block.page());
    free_handed_over();
  }
  reclaim_the_dead(0b1110);
}

void metadata_setup() {
  begin(4);
  for (uint32_t key = 0; key < 2; ++key) store(client(4), key);
  for (uint32_t lane = 1; lane <= 3; ++lane) spawn("client", lane, describe_and_read, argument_of(lane));
  spawn("marud", kMarud, marud_works);
  allow_deaths(0b1110, 2);
}

void metadata_finish() {
  settle_world();
  for (uint32_t key = 0; key < kKeys; ++key) {
    const PageRef block = visible_block(key);
    if (block.is_none()) continue;
    check_payload(block.page(), key, "a reader after all deaths");
    check_metadata(block.page(), key, "a reader after all deaths");
  }
}

// -- read without a pin -------------------------------------------------------------------------------------------------

// Few pages are FREE, so the page that a listing reads is soon another block's.
constexpr uint32_t kPagesInUse = kWorldPages - 3;
PageRef pages_in_use[kPagesInUse];

void replace_blocks(void* argument) {
  Client& who = client_of(argument);
  for (uint32_t rounds = 2 + chance().below(4); rounds > 0; --rounds) {
    const uint32_t key = chance().below(kKeys);
    if (store(who, key).status == shm::PublishStatus::kStored) remove(who, key);
  }
}

void list_all(void*) {
  for (uint32_t rounds = 2 + chance().below(6); rounds > 0; --rounds)
    for (uint32_t page = 0; page < kWorldPages; ++page) list_metadata(page);
}

void listed_setup() {
  begin(4);
  for (PageRef& page : pages_in_use) page = take_page(client(4));
  for (uint32_t lane = 1; lane <= 2; ++lane) spawn("client", lane, replace_blocks, argument_of(lane));
  spawn("lister", 3, list_all);
  spawn("marud", kMarud, [](void*) { reclaim_the_dead(0b1110); });
  if (chance().chance(2)) allow_deaths(0b0110, 1);
}

void listed_finish() {
  for (const PageRef page : pages_in_use) give_back(client(4), page);
  settle_world();
}

constexpr Scenario kScenarios[] = {
    {"metadata",
     "blocks with metadata are stored, read, deleted, evicted; owners die: a block has all of its own, or is gone",
     metadata_setup, metadata_finish, forget_process},
    {"metadata-listed", "metadata is read without a pin while its pages go from block to block", listed_setup,
     listed_finish, forget_process},
};

}  // namespace

std::span<const Scenario> metadata_scenarios() { return kScenarios; }

}  // namespace maru::sim
