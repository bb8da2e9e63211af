// Inside of the engine: its state, shared by the scheduler (engine.cc) and the simulated memory (memory.cc).
#pragma once

#include "engine.h"
#include "fibre.h"
#include "maru/format/atomic_word.h"

#include <cstdint>

namespace maru::sim {

// More than x86 has (about 70 stores) finds nothing that these do not; less would hide what a long buffer hides.
constexpr unsigned kBufferStores = 32;

struct BufferedStore {
  void* address;
  uint64_t value;
  uint32_t sequence;  // of the fibre's stores, for the order in which they were made
  uint8_t bytes;
  bool release;    // waits for everything before it
  bool exclusive;  // half of a read-modify-write: nobody else may change the word before this is visible
};

enum class FibreState : uint8_t { kUnused, kRunnable, kWaiting, kReturned, kDead };

struct Fibre {
  FibreStack stack;
  const char* name;
  unsigned process;
  void (*body)(void*);
  void* argument;
  FibreState state;
  bool (*condition)(void*);
  void* condition_argument;
  uint64_t priority;          // for Policy::kPriorities
  uint64_t stalled_until;     // step; for Policy::kStalls
  uint32_t sequence;          // of the next store
  uint32_t visible_sequence;  // every store below this must survive a death
  unsigned buffered;
  BufferedStore buffer[kBufferStores];
};

struct Process {
  uint64_t steps_to_death;  // 0: does not die
  bool takes_host;          // all processes of its host die with it
  unsigned fibres;          // that have not returned
  bool exists;
  bool died;
};

enum class Policy : uint8_t { kUniform, kSticky, kPriorities, kStalls };
constexpr unsigned kDemotionsMax = 6;

struct Engine {
  const Scenario* scenario;
  Settings settings;
  Outcome* outcome;
  Random random;

  Fibre fibres[kFibresMax];
  unsigned fibre_count;
  uint32_t runnable_mask;  // runnable or waiting
  uint32_t waiting_mask;
  uint32_t pending_mask;     // fibres with buffered stores
  unsigned exclusive_count;  // buffered stores of that kind, in all fibres
  unsigned current;          // index of the running fibre, kNobody for setup and finish
  unsigned unseen;           // > 0: accesses are direct

  Process processes[kProcessesMax];
  unsigned deaths;

  MemoryModel memory_model;
  Policy policy;
  uint32_t drain_weight;   // in 256: chance per step that some buffer gives up a store
  uint32_t switch_weight;  // in 256, for kSticky and kStalls
  uint32_t stall_weight;   // in 256, for kStalls
  uint64_t demotions[kDemotionsMax];
  unsigned demotion_count;
  uint64_t lowest_priority;
  uint64_t steps;
  uint64_t run_length;  // steps since somebody else ran, for kPriorities

  unsigned (*host_of_process)(unsigned process);  // null: one host, whose caches nobody loses
  void (*lines_lost)(unsigned host);
  unsigned dead_hosts;  // bit by host

  const char* watch_begin;
  const char* watch_end;
  Watch watch;
  Namer namer;

  FibreStack conductor;  // runs setup and finish
  void* main_stack_pointer;
  void* conductor_stack_pointer;
};

extern Engine engine;

// -- memory.cc --------------------------------------------------------------------------------------------------------

// Makes the store at `index` of a fibre's buffer visible, and before it whatever must be visible earlier.
void make_visible(unsigned owner, unsigned index);
void make_all_visible(unsigned owner);
void trace_access(const char* what, const Fibre& fibre, const void* address, uint64_t value, const char* detail);

// -- lines.cc ---------------------------------------------------------------------------------------------------------

void forget_lines();
// Before a word changes for everybody, by a process; kNobody: from outside, straight into memory.
void line_written(const void* address, unsigned process);
void line_read(const void* address);  // by the running fibre
void note_plain_stores();             // of the running fibre, until now
void lose_lines(unsigned host);

// -- engine.cc --------------------------------------------------------------------------------------------------------

// A point between two accesses of the running fibre: others may go on, stores may become visible, its process may die.
void point();
// Whether accesses act on memory at once: nobody runs, or somebody looks from outside.
inline bool direct() { return engine.current == kNobody || engine.unseen > 0; }

}  // namespace maru::sim
