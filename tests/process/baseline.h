// What must be true of a pool when nobody uses it: nothing pinned, nothing unfinished, every page accounted for, no invariant
// broken, and every block readable and whole.
#pragma once

#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"

#include <string>

namespace maru::test {

// Waits until marud has taken back what dead clients held, then looks at everything. Reports what is wrong as failures of
// the running test. `map` is the only client left.
void expect_baseline(const MarudProcess& marud, const ControlMap& map, const std::string& pool = "default");

// Reads every block of the pool through a client of its own and checks its content against its key. Returns how many.
uint64_t expect_intact_blocks(const MarudProcess& marud, const ControlMap& map, const std::string& pool = "default");

}  // namespace maru::test
