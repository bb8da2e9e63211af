// marud takes pages for clients that ask, and answers; marud, the connection and clients die or end at any step, also with
// answers that nobody has read. docs/format.md, "Regions change hands", 4 to 6.
//
// Beside what holds in every schedule: what a client was told to have stays its own; and with the clients still alive no page
// is RESERVED at the end.
#include "cast.h"
#include "libmaru/shm/region/page_run.h"
#include "scenario.h"
#include "tests/sim/mutants.h"

#include <algorithm>
#include <cstdint>

namespace maru::sim {
namespace {

constexpr uint32_t kClients = 2;  // lanes 1 and 2
constexpr unsigned kMaruds[] = {kMarud, 8, 9};
constexpr uint32_t kRunsMax = 2, kHeldMax = 6, kLostMax = 16;

// A client's connection, which is the kernel's: messages in it outlive who sent them.
struct Connection {
  unsigned server;  // who let the client in
  bool is_open, wants_in;
  uint32_t asked, served, answered;  // request ids
  PageRef runs[kRunsMax];            // of the answer
  uint32_t count;
};
Connection connections[kWorldLanes];

// What a client knows, in its private memory.
struct Memory {
  PageRef held[kHeldMax];
  uint32_t count;
  uint64_t lost[kLostMax];  // marks of requests whose answer was lost
  uint32_t lost_count;
};
Memory memories[kWorldLanes];

bool all_clients_ended() {
  for (uint32_t lane = 1; lane <= kClients; ++lane)
    if (!process_ended(lane)) return false;
  return true;
}

// -- clients ----------------------------------------------------------------------------------------------------------

void keep(Client& who, PageRef run) {
  Memory& memory = memories[who.lane.lane];
  for (uint32_t i = 0; i < world().run_pages(run.page()); ++i) write_payload(run.page() + i, 100 + who.lane.lane, i);
  memory.held[memory.count++] = run;
}

void drop_one(Client& who) {
  Memory& memory = memories[who.lane.lane];
  const PageRef run = memory.held[--memory.count];
  for (uint32_t i = 0; i < world().run_pages(run.page()); ++i)
    check_payload(run.page() + i, 100 + who.lane.lane, "who was given the page");
  give_back(who, run);
}

void give_back_lost(Client& who) {
  Memory& memory = memories[who.lane.lane];
  std::sort(memory.lost, memory.lost + memory.lost_count);
  const uint64_t freed = shm::give_back_granted(world(), who.lane, {memory.lost, memory.lost_count});
  if (freed != 0) note("lane %u gives back %u pages of lost answers", who.lane.lane, unsigned(freed));
  memory.lost_count = 0;
}

void come_back(Client& who) {
  if (mutant(kMutantGiveBackEarly)) give_back_lost(who);
  Connection& line = connections[who.lane.lane];
  line.is_open = false;
  settle();
  line.wants_in = true;
  wait_until([](void* argument) { return static_cast<Connection*>(argument)->is_open; }, &line);
  give_back_lost(who);
}

void ask_for_memory(Client& who) {
  Connection& line = connections[who.lane.lane];
  Memory& memory = memories[who.lane.lane];
  settle();
  const uint32_t id = ++line.asked;
  bool hangs_up = chance().chance(6);
  if (hangs_up)
    for (uint32_t waits = chance().below(20); waits > 0; --waits) yield();
  else
    wait_until(
        [](void* argument) {
          const auto* its = static_cast<const Connection*>(argument);
          return its->answered == its->asked || process_died(its->server);
        },
        &line);
  // The kernel may say that the connection was reset, and then what lies in it is not read.
  if (process_died(line.server) && chance().chance(2)) hangs_up = true;
  if (line.answered == id && !hangs_up) {
    for (uint32_t i = 0; i < line.count; ++i) {
      if (memory.count < kHeldMax)
        keep(who, line.runs[i]);
      else
        give_back(who, line.runs[i]);
    }
  } else {
    memory.lost[memory.lost_count++] = shm::grant_mark(who.lane, id);
  }
  if (hangs_up || process_died(line.server)) come_back(who);
}

void client_life(void* argument) {
  Client& who = client_of(argument);
  Memory& memory = memories[who.lane.lane];
  for (uint32_t rounds = 2 + chance().below(5); rounds > 0; --rounds) {
    switch (chance().below(4)) {
      case 0:
        if (memory.count < kHeldMax)
          if (const PageRef own = take_page(who); !own.is_none()) keep(who, own);
        break;
      case 1:
        if (memory.count > 0) drop_one(who);
        break;
      default: ask_for_memory(who);
    }
  }
  while (memory.count > 0) drop_one(who);
}

// Another thread of the client stores and deletes: what it is filling has a chain of its own.
void client_thread(void* argument) {
  Client& who = client_of(argument);
  const uint32_t key = who.lane.lane;
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    store(who, key);
    remove(who, key);
  }
}

// -- marud ------------------------------------------------------------------------------------------------------------

bool has_work(void* argument) {
  const auto self = unsigned(reinterpret_cast<uintptr_t>(argument));
  for (uint32_t lane = 1; lane <= kClients; ++lane) {
    const Connection& line = connections[lane];
    if (process_ended(lane)) continue;
    if (line.wants_in || (line.is_open && line.server == self && line.served != line.asked)) return true;
  }
  return all_clients_ended();
}

void answer(uint32_t lane) {
  Connection& line = connections[lane];
  const uint32_t id = line.served = line.asked;
  PageRef runs[kRunsMax];
  uint32_t count = 0;
  const uint32_t pages = 1 + chance().below(2), start = chance().below(kWorldPages);
  for (uint32_t i = 0; i < kWorldPages && count < kRunsMax; ++i) {
    const uint32_t page = (start + i) % kWorldPages;
    if (page % kWorldRegionPages + pages > kWorldRegionPages) continue;
    const PageRef run =
        shm::grant_run(world(), marud().lane, lane_id(lane), page, pages, shm::grant_mark(lane_id(lane), id), nullptr);
    if (!run.is_none()) runs[count++] = run;
  }
  settle();
  if (!line.is_open || line.asked != id) return;  // nobody is there to read it
  std::copy(runs, runs + count, line.runs);
  line.count = count;
  line.answered = id;
}

void serve(unsigned self) {
  while (!all_clients_ended()) {
    wait_until(has_work, reinterpret_cast<void*>(uintptr_t(self)));
    for (uint32_t lane = 1; lane <= kClients; ++lane) {
      Connection& line = connections[lane];
      if (process_ended(lane)) continue;
      if (line.wants_in) {  // what it asked on another connection nobody will look at again
        line.wants_in = false;
        line.server = self;
        line.served = line.asked;
        line.is_open = true;
      } else if (line.is_open && line.server == self && line.served != line.asked) {
        answer(lane);
      }
    }
  }
  reclaim_the_dead(0b0110);
}

void marud_life(void*) { serve(kMarud); }

void next_marud(void* argument) {
  const auto* self = static_cast<const unsigned*>(argument);
  wait_for_process(self[-1]);
  if (!process_died(self[-1])) return;
  make_marud_again();
  adopt();
  serve(*self);
}

// -- the play ---------------------------------------------------------------------------------------------------------

void grants_setup() {
  make_world();
  make_marud();
  for (uint32_t lane = 1; lane <= kClients; ++lane) make_client(lane);
  for (uint32_t key = 0; key < kWorldKeys; ++key) define_key(key, key % 2);
  for (Connection& line : connections) line = {kMarud, true, false, 0, 0, 0, {}, 0};
  for (Memory& memory : memories) memory = {};
  for (uint32_t lane = 1; lane <= kClients; ++lane) {
    spawn("client", lane, client_life, argument_of(lane));
    if (chance().chance(2)) spawn("client's thread", lane, client_thread, argument_of(lane));
  }
  spawn("marud", kMarud, marud_life);
  for (const unsigned& next : std::span(kMaruds).subspan(1))
    spawn("next marud", next, next_marud, const_cast<unsigned*>(&next));
  allow_deaths(1u << kMaruds[0] | 1u << kMaruds[1], 2);
  if (chance().chance(3)) allow_deaths(0b0110, 1);
}

// What a client has stored and could not delete any more stays.
void grants_finish() {
  settle_world();
  uint32_t blocks = 0;
  for (uint32_t page = 0; page < kWorldPages; ++page)
    blocks += PageWord{world().block(page).word.raw}.is(PageState::kReady);
  expect_free_pages(kWorldPages - blocks, "after every client gave back what it knew of, or died");
}

constexpr Scenario kScenarios[] = {
    {"lost-answer", "marud takes pages for clients and dies, or its answer is lost: no page is", grants_setup,
     grants_finish, forget_process},
};

}  // namespace

std::span<const Scenario> grant_scenarios() { return kScenarios; }

}  // namespace maru::sim
