// The product's own code under the C++ memory model, by relacy. A play links the sources that the simulator compiles;
// relacy_memory.cc hands their accesses to relacy's atomics. A relaxed load may return old values there, as on no machine that
// the simulator knows, and bytes that nothing orders are a data race.
//
// relacy needs C++17 and replaces new and delete by macros, so only relacy_memory.cc includes it.
#pragma once

#include <cstdint>

namespace maru::relacy {

inline constexpr unsigned kThreads = 4;
inline constexpr unsigned kPayloads = 4;

struct Play {
  const char* name;
  void (*before)();                 // formats memory; accesses are plain here, and in `after`
  void (*thread)(unsigned number);  // of each of kThreads threads
  void (*after)();
};

// Plain bytes of a page: relacy reports a write and another access that nothing orders.
void write_payload(unsigned page, int value);
int read_payload(unsigned page);

// Ends the iteration as a failure if `holds` is false.
void expect(bool holds);

// Runs the play with the wrong variant `mutant` (tests/sim/mutants.h), or with the code as it is for 0, and prints a line.
// True if relacy finds a fault in a wrong variant, and none in the right one.
bool is_as_it_should_be(const Play& play, const char* name, unsigned mutant);

}  // namespace maru::relacy
