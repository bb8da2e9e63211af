// The simulator's engine.
//
// The problem. The algorithms of libmaru/shm are lock-free and shared by processes that may be killed between any two
// instructions. Their errors need a particular order of a few dozen accesses, so a test with real processes finds them in
// a year of production and not before. Here the order is the input: every process is a fibre on one thread, every access
// to a shared word is a point where another may go on instead, and a seed decides at each such point who goes on, who
// dies, and which of the stores made so far anybody else can see. A schedule is a function of its seed; what went wrong
// once goes wrong again under --seed, with a trace of each step.
//
// The memory. Each fibre has a buffer of stores that it has made and others cannot see yet.
//
//   TSO (x86):  stores leave the buffer in order, at moments that the seed chooses. A load sees the fibre's own newest
//               buffered store to that word, or memory. Every read-modify-write empties the buffer first.
//   relaxed:    stores to different words leave in any order, except that a release store waits for all that were made
//               before it. A read-modify-write reads and writes at one instant of the word's history, but its write may
//               become visible to others later, too (AArch64 without LSE: the store half of an exclusive pair); until
//               then nobody else can change that word. With release semantics it first empties the buffer. A seq_cst load
//               waits for the buffered release stores and read-modify-writes of its own fibre, and no other load does.
//   sequential: no buffers. Only to show that a control passes where it should not.
//
// Loads happen in program order in all three. That is x86 exactly and stronger than AArch64: a relaxed load where an
// acquire load is needed goes unnoticed here. relacy_*.cc run the same code of pin and publish under the C++ memory model,
// which lets such a load return old values.
//
// Death. A process dies at a step of its own. Its fibres never run again and their stacks are forgotten. Of each buffer a
// prefix in program order becomes visible at once and the rest never does: what comes before the instruction that did not
// happen. The prefix reaches at least as far as the last store that anybody can have seen. Whoever learns of the death
// learns it from the kernel, so that all is settled by then.
//
// What a seed decides, in this order: the memory model; how eagerly buffers empty; the policy of scheduling with its
// parameters; what the scenario asks of chance(); who dies and after how many of its steps; then, step by step, who runs.
// Four policies, because different errors hide from different ones:
//
//   uniform     anybody, at every step: errors that need many alternations.
//   sticky      whoever runs goes on for a while: errors that need one process to get far meanwhile.
//   priorities  the highest runs until one of a few random moments demotes it (as in "A randomized scheduler with
//               probabilistic guarantees of finding bugs", Burckhardt et al. 2010): errors that need one process to be
//               stopped at one place for as long as everybody else takes. A process under SIGSTOP looks like this.
//   stalls      as sticky, but now and then whoever runs is stopped for a random number of steps, a few or hundreds:
//               errors that need two or three processes to be stopped at the right places at once.
//
// Cost. A step is a draw of the random generator, a few predictable branches, and, if somebody else goes on, a switch of
// a dozen instructions: 10 to 20 ns. With the code under test, the world's look at every change and an audit now and then,
// a schedule of five hundred steps takes 50 to 100 microseconds, so a million of them are one or two minutes on one core.
#include "engine.h"

#include "engine_state.h"
#include "tests/sim/mutants.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace maru::sim {

Engine engine;

namespace {

// A fibre with the highest priority that never lets go would starve the one it waits for if it forgot to yield; real
// schedulers let everybody run in the end, and so does this one. Likewise what somebody stored is seen in the end.
constexpr uint64_t kRunLengthMax = 5'000;

uint32_t nth_bit(uint32_t mask, unsigned n) {
  while (n-- > 0) mask &= mask - 1;
  return uint32_t(__builtin_ctz(mask));
}

// -- scheduling -------------------------------------------------------------------------------------------------------

void continue_fibre(unsigned next) {
  const unsigned from = engine.current;
  engine.current = next;
  engine.run_length = 0;
  void** save = from == kNobody ? &engine.conductor_stack_pointer : &engine.fibres[from].stack.stack_pointer;
  maru_sim_switch(save, engine.fibres[next].stack.stack_pointer);
}

// Everybody has returned or died, or nobody can go on: setup's caller takes over.
void continue_conductor() {
  const unsigned from = engine.current;
  engine.current = kNobody;
  maru_sim_switch(&engine.fibres[from].stack.stack_pointer, engine.conductor_stack_pointer);
}

// Those of the candidates that are not stopped, or all of them if all are.
uint32_t without_stalled(uint32_t candidates, uint64_t draw) {
  if (engine.current != kNobody && (draw >> 40 & 0xff) < engine.stall_weight) {
    engine.fibres[engine.current].stalled_until = engine.steps + engine.random.magnitude(9);
  }
  uint32_t going = 0;
  for (uint32_t mask = candidates; mask != 0; mask &= mask - 1) {
    const unsigned i = uint32_t(__builtin_ctz(mask));
    if (engine.fibres[i].stalled_until <= engine.steps) going |= 1u << i;
  }
  return going != 0 ? going : candidates;
}

// Who goes on among `candidates`, which is not empty.
unsigned choose(uint32_t candidates, uint64_t draw) {
  if (engine.policy == Policy::kPriorities) {
    unsigned best = uint32_t(__builtin_ctz(candidates));
    for (uint32_t mask = candidates & (candidates - 1); mask != 0; mask &= mask - 1) {
      const unsigned i = uint32_t(__builtin_ctz(mask));
      if (engine.fibres[i].priority > engine.fibres[best].priority) best = i;
    }
    return best;
  }
  if (engine.policy == Policy::kStalls) candidates = without_stalled(candidates, draw);
  if (engine.policy != Policy::kUniform && engine.current != kNobody && (candidates >> engine.current & 1) != 0 &&
      (draw & 0xff) >= engine.switch_weight) {
    return engine.current;
  }
  const unsigned count = unsigned(__builtin_popcount(candidates));
  return count == 1 ? nth_bit(candidates, 0) : nth_bit(candidates, unsigned(((draw >> 32) * count) >> 32));
}

// The next fibre that can go on, or kNobody.
unsigned next_fibre(uint32_t candidates, uint64_t draw) {
  while (candidates != 0) {
    const unsigned next = choose(candidates, draw);
    Fibre& fibre = engine.fibres[next];
    if (fibre.state != FibreState::kWaiting) return next;
    Unseen unseen;
    if (fibre.condition(fibre.condition_argument)) {
      fibre.state = FibreState::kRunnable;
      engine.waiting_mask &= ~(1u << next);
      return next;
    }
    candidates &= ~(1u << next);
  }
  return kNobody;
}

// Leaves the running fibre for good or until its condition holds.
void leave() {
  const unsigned next = next_fibre(engine.runnable_mask, engine.random.next());
  if (next == engine.current) return;
  if (next == kNobody) {
    continue_conductor();
  } else {
    continue_fibre(next);
  }
}

void settle_process(unsigned process) {
  for (unsigned i = 0; i < engine.fibre_count; ++i) {
    if (engine.fibres[i].process == process) make_all_visible(i);
  }
}

// Its fibres run no more, and their stores are settled.
void kill_process(unsigned victim) {
  engine.processes[victim].died = true;
  ++engine.deaths;
  for (unsigned i = 0; i < engine.fibre_count; ++i) {
    Fibre& fibre = engine.fibres[i];
    if (fibre.process != victim || fibre.state == FibreState::kReturned) continue;
    if (fibre.buffered > 0) {
      // Keep the stores before a random point that is not before one already visible.
      const uint32_t oldest = fibre.buffer[0].sequence;
      const uint32_t least = fibre.visible_sequence > oldest ? fibre.visible_sequence : oldest;
      const uint32_t cut = least + engine.random.below(fibre.sequence - least + 1);
      while (fibre.buffered > 0 && fibre.buffer[0].sequence < cut) make_visible(i, 0);
      for (unsigned j = 0; j < fibre.buffered; ++j) {
        if (fibre.buffer[j].exclusive) --engine.exclusive_count;
        if (engine.settings.trace) trace_access("lost", fibre, fibre.buffer[j].address, fibre.buffer[j].value, "");
      }
      fibre.buffered = 0;
      engine.pending_mask &= ~(1u << i);
    }
    fibre.state = FibreState::kDead;
    engine.runnable_mask &= ~(1u << i);
    engine.waiting_mask &= ~(1u << i);
  }
  settle_process(victim);  // fibres that had returned before
}

// The running fibre's process is killed before its next access, and perhaps its host with all others on it.
void die() {
  const unsigned victim = engine.fibres[engine.current].process;
  const bool takes_host = engine.processes[victim].takes_host;
  if (engine.settings.trace) {
    std::printf("%6" PRIu64 "  %-12s DIES%s\n", engine.steps, engine.fibres[engine.current].name,
                takes_host ? " WITH ITS HOST" : "");
  }
  uint32_t victims = 1u << victim;
  const unsigned host = takes_host ? engine.host_of_process(victim) : 0;
  for (unsigned process = 0; takes_host && process < kProcessesMax; ++process) {
    if (engine.processes[process].exists && !engine.processes[process].died && engine.host_of_process(process) == host)
      victims |= 1u << process;
  }
  for (uint32_t mask = victims; mask != 0; mask &= mask - 1) kill_process(uint32_t(__builtin_ctz(mask)));
  if (takes_host) {
    engine.dead_hosts |= 1u << host;
    lose_lines(host);
  }
  Unseen unseen;
  for (uint32_t mask = victims; mask != 0 && engine.scenario->on_death != nullptr; mask &= mask - 1)
    engine.scenario->on_death(uint32_t(__builtin_ctz(mask)));
  if (takes_host && engine.lines_lost != nullptr) engine.lines_lost(host);
  --engine.unseen;  // its destructor never runs
  leave();          // and nobody ever comes back
  std::abort();
}

}  // namespace

void point() {
  note_plain_stores();
  if (++engine.steps > engine.settings.steps_max) {
    fail("no end after %" PRIu64 " steps: somebody waits or retries for ever", engine.settings.steps_max);
  }
  const uint64_t draw = engine.random.next();
  const bool starves = ++engine.run_length > kRunLengthMax;
  const bool waits_long =
      engine.steps > engine.settings.steps_max / 2;  // two may wait for a third one's store in turns
  if (engine.pending_mask != 0 && (starves || waits_long || (draw >> 8 & 0xff) < engine.drain_weight)) {
    const uint32_t mask = engine.pending_mask;
    const unsigned owner = nth_bit(mask, unsigned(((draw >> 16 & 0xff) * unsigned(__builtin_popcount(mask))) >> 8));
    const unsigned count = engine.fibres[owner].buffered;
    make_visible(owner, engine.memory_model == MemoryModel::kTso ? 0 : unsigned(((draw >> 24 & 0xff) * count) >> 8));
  }
  Process& process = engine.processes[engine.fibres[engine.current].process];
  if (process.steps_to_death != 0 && --process.steps_to_death == 0) die();
  if (engine.policy == Policy::kPriorities) {
    bool demote = starves;
    for (unsigned i = 0; i < engine.demotion_count; ++i) demote |= engine.demotions[i] == engine.steps;
    if (demote) engine.fibres[engine.current].priority = --engine.lowest_priority;
  }
  unsigned next;
  if (engine.waiting_mask == 0) {
    next = choose(engine.runnable_mask, draw);
  } else {
    next = next_fibre(engine.runnable_mask, draw);
  }
  if (next != engine.current) continue_fibre(next);
}

namespace {

void fibre_entry() {
  Fibre& fibre = engine.fibres[engine.current];
  fibre.body(fibre.argument);
  fibre.state = FibreState::kReturned;
  engine.runnable_mask &= ~(1u << engine.current);
  if (engine.settings.trace) std::printf("%6" PRIu64 "  %-12s returns\n", engine.steps, fibre.name);
  --engine.processes[fibre.process].fibres;  // what it stored last may still be in its buffer
  leave();
  std::abort();
}

void conductor_entry() {
  engine.scenario->setup();
  while (true) {
    const unsigned next = next_fibre(engine.runnable_mask, engine.random.next());
    if (next == kNobody) break;
    continue_fibre(next);
  }
  if (engine.runnable_mask != 0) {
    fail("stuck: %s waits for something that nobody will do", engine.fibres[nth_bit(engine.runnable_mask, 0)].name);
  }
  for (unsigned i = 0; i < engine.fibre_count; ++i) make_all_visible(i);
  engine.scenario->finish();
  void* unused = nullptr;
  maru_sim_switch(&unused, engine.main_stack_pointer);
  std::abort();
}

void choose_policy(Random& random) {
  static constexpr uint32_t kDrainWeights[] = {128, 64, 16, 4, 0};
  engine.drain_weight = kDrainWeights[random.below(5)];
  static constexpr uint32_t kSwitchWeights[] = {128, 64, 32, 16, 8, 4};
  engine.switch_weight = kSwitchWeights[random.below(6)];
  const uint32_t which = random.below(8);
  engine.policy = which < 1   ? Policy::kUniform
                  : which < 3 ? Policy::kSticky
                  : which < 5 ? Policy::kPriorities
                              : Policy::kStalls;
  static constexpr uint32_t kStallWeights[] = {2, 4, 8, 16};
  engine.stall_weight = kStallWeights[random.below(4)];
  engine.demotion_count = random.below(kDemotionsMax + 1);
  for (unsigned i = 0; i < kDemotionsMax; ++i) engine.demotions[i] = random.magnitude(11);
  engine.lowest_priority = uint64_t(1) << 62;
}

}  // namespace

Outcome run_schedule(const Scenario& scenario, const Settings& settings) {
  Outcome outcome;
  engine.scenario = &scenario;
  engine.settings = settings;
  engine.outcome = &outcome;
  engine.random = Random(settings.seed);
  engine.random.next();
  engine.fibre_count = 0;
  engine.runnable_mask = engine.waiting_mask = engine.pending_mask = 0;
  engine.exclusive_count = 0;
  engine.current = kNobody;
  engine.unseen = 0;
  for (Process& process : engine.processes) process = {};
  engine.deaths = 0;
  engine.steps = engine.run_length = 0;
  engine.watch_begin = engine.watch_end = nullptr;
  engine.watch = nullptr;
  engine.namer = nullptr;
  engine.host_of_process = nullptr;
  engine.lines_lost = nullptr;
  engine.dead_hosts = 0;
  forget_lines();
  const uint32_t model = engine.random.below(3);
  engine.memory_model = settings.memory_model >= 0 ? MemoryModel(settings.memory_model)
                        : model < 2                ? MemoryModel::kTso
                                                   : MemoryModel::kRelaxed;
  choose_policy(engine.random);

  engine.conductor.start(conductor_entry);
  maru_sim_switch(&engine.main_stack_pointer, engine.conductor.stack_pointer);
  outcome.steps = engine.steps;
  outcome.deaths = engine.deaths;
  outcome.memory_model = engine.memory_model;
  return outcome;
}

// -- for scenarios ----------------------------------------------------------------------------------------------------

Random& chance() { return engine.random; }

unsigned spawn(const char* name, unsigned process, void (*body)(void*), void* argument) {
  if (engine.fibre_count == kFibresMax || process >= kProcessesMax) {
    fail("the scenario needs more than %u fibres or %u processes", kFibresMax, kProcessesMax);
  }
  const unsigned index = engine.fibre_count++;
  Fibre& fibre = engine.fibres[index];
  fibre.name = name;
  fibre.process = process;
  fibre.body = body;
  fibre.argument = argument;
  fibre.state = FibreState::kRunnable;
  fibre.priority = engine.random.next() | uint64_t(1) << 63;
  fibre.stalled_until = 0;
  fibre.sequence = 0;
  fibre.visible_sequence = 0;
  fibre.buffered = 0;
  fibre.stack.start(fibre_entry);
  engine.runnable_mask |= 1u << index;
  engine.processes[process].exists = true;
  ++engine.processes[process].fibres;
  return index;
}

void allow_deaths(unsigned process_mask, unsigned deaths_allowed) {
  const unsigned count = engine.random.below(deaths_allowed + 1);
  for (unsigned i = 0; i < count && process_mask != 0; ++i) {
    const unsigned n = engine.random.below(unsigned(__builtin_popcount(process_mask)));
    const unsigned victim = nth_bit(process_mask, n);
    process_mask &= ~(1u << victim);
    engine.processes[victim].steps_to_death = engine.random.magnitude(9);
  }
}

void allow_host_death(unsigned host_mask) {
  if (engine.random.chance(4)) return;
  uint32_t candidates = 0;
  for (unsigned process = 0; process < kProcessesMax; ++process) {
    if (engine.processes[process].exists && (host_mask >> engine.host_of_process(process) & 1) != 0)
      candidates |= 1u << process;
  }
  if (candidates == 0) return;
  Process& victim =
      engine.processes[nth_bit(candidates, engine.random.below(unsigned(__builtin_popcount(candidates))))];
  victim.steps_to_death = engine.random.magnitude(10);
  victim.takes_host = true;
}

void die_here() {
  die();
  std::abort();
}

bool process_died(unsigned process) { return engine.processes[process].died; }
bool process_ended(unsigned process) {
  const Process& p = engine.processes[process];
  const bool ended = p.exists && (p.died || p.fibres == 0);
  if (ended) settle_process(process);  // whoever learns it learns it from the kernel
  return ended;
}
unsigned deaths() { return engine.deaths; }

void yield() {
  if (direct()) return;
  engine.fibres[engine.current].priority = --engine.lowest_priority;
  point();
}

void wait_until(bool (*condition)(void*), void* argument) {
  if (engine.current == kNobody) fail("setup and finish cannot wait");
  make_all_visible(engine.current);
  Fibre& fibre = engine.fibres[engine.current];
  fibre.state = FibreState::kWaiting;
  fibre.condition = condition;
  fibre.condition_argument = argument;
  engine.waiting_mask |= 1u << engine.current;
  leave();
}

void wait_for_process(unsigned process) {
  wait_until([](void* argument) { return process_ended(unsigned(reinterpret_cast<uintptr_t>(argument))); },
             reinterpret_cast<void*>(uintptr_t(process)));
}

void settle() {
  if (!direct()) make_all_visible(engine.current);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(engine.outcome->message, sizeof engine.outcome->message, format, arguments);
  va_end(arguments);
  engine.outcome->failed = true;
  if (engine.settings.trace) std::printf("%6" PRIu64 "  FAILS: %s\n", engine.steps, engine.outcome->message);
  void* unused = nullptr;
  maru_sim_switch(&unused, engine.main_stack_pointer);
  std::abort();
}

void watch(const void* begin, const void* end, Watch function) {
  engine.watch_begin = static_cast<const char*>(begin);
  engine.watch_end = static_cast<const char*>(end);
  engine.watch = function;
}

void name_words(Namer namer) { engine.namer = namer; }

void note(const char* format, ...) {
  if (!engine.settings.trace) return;
  std::printf("%6" PRIu64 "  %-12s : ", engine.steps,
              engine.current == kNobody ? "-" : engine.fibres[engine.current].name);
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

Unseen::Unseen() { ++engine.unseen; }
Unseen::~Unseen() { --engine.unseen; }

MemoryModel memory_model() { return engine.memory_model; }
unsigned current_process() { return engine.current == kNobody ? kNobody : engine.fibres[engine.current].process; }
uint64_t steps() { return engine.steps; }
bool mutant(unsigned id) { return engine.settings.mutant == id; }

}  // namespace maru::sim
