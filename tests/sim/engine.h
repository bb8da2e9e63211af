// The simulator's engine: simulated processes on one thread, under a memory that is as weak as real ones. The essay is at
// the top of engine.cc. The accesses themselves arrive through the functions that include/maru/format/atomic_word.h
// declares (maru::sim::on_load and so on).
#pragma once

#include "random.h"

#include <cstddef>
#include <cstdint>

namespace maru::sim {

inline constexpr unsigned kFibresMax = 16;
inline constexpr unsigned kProcessesMax = 16;
inline constexpr unsigned kNobody = ~0u;

enum class MemoryModel : uint8_t {
  kTso,         // x86: stores become visible later, in order
  kRelaxed,     // stores to different words become visible in any order that release stores allow
  kSequential,  // no buffers at all: what a naive simulator would do; for comparing only
};

struct Settings {
  uint64_t seed = 0;
  bool trace = false;
  unsigned mutant = 0;           // 0: the code as it is
  int memory_model = -1;         // a MemoryModel, or -1: the seed decides between the first two
  uint64_t steps_max = 200'000;  // a schedule that needs more is a failure: somebody waits for ever
};

struct Scenario {
  const char* name;
  const char* about;  // one line: what must hold
  void (*setup)();    // formats memory, spawns the first fibres; nothing else runs meanwhile
  void (*finish)();   // after every fibre ended and every store became visible
  // The following may be null.
  void (*on_death)(unsigned process);  // a process died; its fibres will not run again and its stores are settled
};

struct Outcome {
  bool failed = false;
  char message[512] = {};
  uint64_t steps = 0;
  unsigned deaths = 0;
  MemoryModel memory_model = MemoryModel::kTso;
};

// Runs one schedule of a scenario. The same settings give the same schedule, step by step.
Outcome run_schedule(const Scenario& scenario, const Settings& settings);

// -- for scenarios ----------------------------------------------------------------------------------------------------

// Chance for what the scenario itself varies (how many rounds, which key); part of what the seed decides.
Random& chance();

// A new fibre. `name` and `argument` must outlive the schedule. Fibres of one process die together. May be called by
// setup and by fibres.
unsigned spawn(const char* name, unsigned process, void (*body)(void*), void* argument = nullptr);

// Lets up to `deaths` of the processes in `process_mask` die, each at a step of its own. Whether and when is the seed's.
void allow_deaths(unsigned process_mask, unsigned deaths);

// Hosts. Each process belongs to one; the caches of a host are its own. From here on (to be called when setup has written what
// it writes) each line of the tracked memory that is written is dirty in its writer's caches until it is flushed, until
// another host reads or writes it, or until chance writes it back. A host that dies takes its dirty lines with it, as far as
// chance wants: each goes back to what was last written back. `lost` is called after that.
void play_hosts(unsigned (*host_of_process)(unsigned process), void (*lost)(unsigned host));
void track_lines(void* begin, size_t bytes);  // before play_hosts; at most two ranges, of whole lines
// What is written there by plain stores is dirty in the same way, from the next access on of the fibre that wrote it. For
// memory of which nobody else reads such lines before they are flushed.
void lose_plain_stores();  // before play_hosts
// Lets at most one of the hosts in the mask die, with all of its processes at once.
void allow_host_death(unsigned host_mask);
bool host_died(unsigned host);

// The calling fibre's process is killed here and now.
[[noreturn]] void die_here();

bool process_died(unsigned process);
bool process_ended(unsigned process);  // died, or all of its fibres returned
unsigned deaths();

// Gives the others a chance; a loop that waits for somebody must call it.
void yield();
// Sleeps until the condition holds. If nobody else can run while it does not, the schedule fails as stuck.
void wait_until(bool (*condition)(void*), void* argument);
void wait_for_process(unsigned process);
// Everything the calling fibre has stored becomes visible, as when it sends a message or makes a system call.
void settle();

// Ends the schedule as a failure; `format` is printf's.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Calls `function` whenever a word in [begin, end) changes for everybody, with the old and the new value.
using Watch = void (*)(const void* address, uint64_t before, uint64_t after);
void watch(const void* begin, const void* end, Watch function);

// Names for the trace: writes the name of the word at `address`, and what `value` means there, into the two buffers of
// kNameBytes. The latest namer wins.
inline constexpr size_t kNameBytes = 96;
using Namer = void (*)(const void* address, uint64_t value, char* name, char* meaning);
void name_words(Namer namer);
// A line of the scenario's own in the trace; costs nothing without --trace.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));

// While one of these lives, accesses are direct: no scheduling point, no store buffer, no death. For observers that look
// at everything between two steps, such as the auditor.
class Unseen {
 public:
  Unseen();
  ~Unseen();
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

MemoryModel memory_model();
unsigned current_process();  // kNobody in setup and finish
uint64_t steps();

}  // namespace maru::sim
