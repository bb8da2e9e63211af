// What the simulated memory may and may not do, as litmus tests: a few words, two or three fibres, an outcome that must
// occur in some schedule or must occur in none. If one of these is wrong, no other result of the simulator means anything.
#include "engine.h"
#include "maru/format/atomic_word.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace maru::sim {
namespace {

constexpr unsigned kSchedules = 20'000;

AtomicU64 x, y, z;
uint64_t r0, r1, r2;
bool saw_outcome;

void clear() {
  x.raw = y.raw = z.raw = 0;
  r0 = r1 = r2 = ~uint64_t(0);
}

struct Litmus {
  const char* name;
  void (*first)(void*);
  void (*second)(void*);
  void (*third)(void*);
  bool (*outcome)();
  bool in_sequential, in_tso, in_relaxed;  // whether the outcome is possible there
};

void store_x_load_y(void*) {
  x.store_release(1);
  r0 = y.load_acquire();
}
void store_y_load_x(void*) {
  y.store_release(1);
  r1 = x.load_acquire();
}
void store_x_load_y_seq(void*) {
  x.store_release(1);
  r0 = y.load_seq_cst();
}
void store_y_load_x_seq(void*) {
  y.store_release(1);
  r1 = x.load_seq_cst();
}
void exchange_x_load_y(void*) {
  x.exchange_seq_cst(1);
  r0 = y.load_seq_cst();
}
void exchange_y_load_x(void*) {
  y.exchange_seq_cst(1);
  r1 = x.load_seq_cst();
}
void exchange_x_acquire_y(void*) {
  x.exchange_seq_cst(1);
  r0 = y.load_acquire();
}
void exchange_y_acquire_x(void*) {
  y.exchange_seq_cst(1);
  r1 = x.load_acquire();
}
bool both_zero() { return r0 == 0 && r1 == 0; }

void message_relaxed(void*) {
  x.store_relaxed(1);
  y.store_relaxed(1);
}
void message_release(void*) {
  x.store_relaxed(1);
  y.store_release(1);
}
void message_cas(void*) {
  x.store_relaxed(1);
  uint64_t expected = 0;
  y.cas_acq_rel(expected, 1);
}
void message_cas_relaxed(void*) {
  x.store_relaxed(1);
  uint64_t expected = 0;
  y.cas_relaxed(expected, 1);
}
void message_read(void*) {
  r0 = y.load_acquire();
  r1 = x.load_acquire();
}
bool flag_without_data() { return r0 == 1 && r1 == 0; }

void pass_on(void*) {
  if (x.load_acquire() == 1) y.store_release(1);
}
void write_x(void*) { x.store_release(1); }
void read_y_x(void*) {
  r0 = y.load_acquire();
  r1 = x.load_acquire();
}

void own_store(void*) {
  x.store_relaxed(5);
  r0 = x.load_relaxed();
  r1 = 0;
}
bool own_store_lost() { return r0 != 5; }

void add_one(void*) {
  x.fetch_add_relaxed(1);
  x.fetch_add_seq_cst(1);
  uint64_t v = x.load_relaxed();
  while (!x.cas_acq_rel(v, v + 1)) {
  }
}
bool add_lost() { return x.raw != 9; }

void same_word(void*) {
  x.store_relaxed(1);
  x.store_relaxed(2);
}
void same_word_read(void*) {
  r0 = x.load_acquire();
  r1 = x.load_acquire();
}
bool same_word_back() { return r0 == 2 && r1 == 1; }

void store_then_exchange(void*) {
  x.store_relaxed(1);
  x.exchange_seq_cst(2);
}
void rival_cas(void*) {
  uint64_t v = x.load_relaxed();
  r0 = x.cas_relaxed(v, 7) ? 1 : 0;
  r1 = v;
}
bool atomicity_broken() { return r0 == 1 && r1 == 2 && x.raw != 7; }

constexpr Litmus kLitmus[] = {
    {"store buffering", store_x_load_y, store_y_load_x, nullptr, both_zero, false, true, true},
    {"store buffering, seq_cst loads", store_x_load_y_seq, store_y_load_x_seq, nullptr, both_zero, false, true, false},
    {"store buffering, exchange", exchange_x_load_y, exchange_y_load_x, nullptr, both_zero, false, false, false},
    {"store buffering, exchange, acquire loads", exchange_x_acquire_y, exchange_y_acquire_x, nullptr, both_zero, false,
     false, true},
    {"message passing, relaxed", message_relaxed, message_read, nullptr, flag_without_data, false, false, true},
    {"message passing, release", message_release, message_read, nullptr, flag_without_data, false, false, false},
    {"message passing, cas acq_rel", message_cas, message_read, nullptr, flag_without_data, false, false, false},
    {"message passing, cas relaxed", message_cas_relaxed, message_read, nullptr, flag_without_data, false, false, true},
    {"write to read causality", write_x, pass_on, read_y_x, flag_without_data, false, false, false},
    {"own stores are seen", own_store, own_store, nullptr, own_store_lost, false, false, false},
    {"no update is lost", add_one, add_one, add_one, add_lost, false, false, false},
    {"one word, one order", same_word, same_word_read, nullptr, same_word_back, false, false, false},
    {"a cas meets nothing in between", store_then_exchange, rival_cas, nullptr, atomicity_broken, false, false, false},
};

const Litmus* litmus;

void setup() {
  clear();
  spawn("first", 0, litmus->first);
  spawn("second", 1, litmus->second);
  if (litmus->third != nullptr) spawn("third", 2, litmus->third);
}
void finish() { saw_outcome |= litmus->outcome(); }
constexpr Scenario kScenario = {"litmus", "", setup, finish, nullptr};

// -- deaths -----------------------------------------------------------------------------------------------------------

bool saw_none, saw_first, saw_both, saw_second_alone;
void die_setup() {
  clear();
  spawn("victim", 0, [](void*) {
    x.store_relaxed(1);
    y.store_relaxed(1);
    z.store_relaxed(1);
  });
  allow_deaths(1, 1);
}
void die_finish() {
  if (!process_died(0)) return;
  saw_none |= x.raw == 0 && y.raw == 0;
  saw_first |= x.raw == 1 && y.raw == 0;
  saw_both |= x.raw == 1 && y.raw == 1;
  saw_second_alone |= x.raw == 0 && y.raw == 1;
}
constexpr Scenario kDeath = {"death", "", die_setup, die_finish, nullptr};

void stuck_setup() {
  spawn("waiter", 0, [](void*) { wait_until([](void*) { return false; }, nullptr); });
}
void loop_setup() {
  spawn("looper", 0, [](void*) {
    while (x.load_relaxed() != 77) yield();
  });
}
void nothing() {}
constexpr Scenario kStuck = {"stuck", "", stuck_setup, nothing, nullptr};
constexpr Scenario kLoop = {"loop", "", loop_setup, nothing, nullptr};

unsigned failures;
void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("FAIL: %s\n", what);
  ++failures;
}

void run_litmus() {
  static constexpr const char* kModels[] = {"tso", "relaxed", "sequential"};
  for (const Litmus& test : kLitmus) {
    litmus = &test;
    for (int model = 0; model < 3; ++model) {
      saw_outcome = false;
      for (unsigned seed = 0; seed < kSchedules; ++seed) {
        Settings settings;
        settings.seed = seed;
        settings.memory_model = model;
        const Outcome outcome = run_schedule(kScenario, settings);
        if (outcome.failed) expect(false, outcome.message);
      }
      const bool possible = model == 0 ? test.in_tso : model == 1 ? test.in_relaxed : test.in_sequential;
      if (saw_outcome != possible) {
        std::printf("FAIL: %s under %s: %s\n", test.name, kModels[model],
                    possible ? "never occurred" : "occurred and must not");
        ++failures;
      }
    }
  }
}

void run_deaths() {
  for (int model = 0; model < 2; ++model) {
    saw_none = saw_first = saw_both = saw_second_alone = false;
    for (unsigned seed = 0; seed < kSchedules; ++seed) {
      Settings settings;
      settings.seed = seed;
      settings.memory_model = model;
      run_schedule(kDeath, settings);
    }
    expect(saw_none && saw_first && saw_both, "a death keeps any prefix of the stores");
    expect(!saw_second_alone, "a death keeps no store without those before it");
  }
}

void run_ends() {
  Settings settings;
  settings.steps_max = 1'000;
  expect(run_schedule(kStuck, settings).failed, "a fibre that waits for nothing is reported");
  expect(run_schedule(kLoop, settings).failed, "a loop without end is reported");
}

// Two runs of one seed are the same schedule.
void run_replay() {
  litmus = &kLitmus[0];
  for (unsigned seed = 0; seed < 100; ++seed) {
    Settings settings;
    settings.seed = seed;
    const Outcome first = run_schedule(kScenario, settings);
    const uint64_t seen = r0 << 1 | r1;
    const Outcome second = run_schedule(kScenario, settings);
    expect(first.steps == second.steps && seen == (r0 << 1 | r1), "a seed is a schedule");
  }
}

}  // namespace
}  // namespace maru::sim

int main() {
  maru::sim::run_litmus();
  maru::sim::run_deaths();
  maru::sim::run_ends();
  maru::sim::run_replay();
  std::printf("%s\n", maru::sim::failures == 0 ? "ok" : "failed");
  return maru::sim::failures == 0 ? 0 : 1;
}
