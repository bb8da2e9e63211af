// The negative controls: which wrong variant, and the scenarios that must show it.
#pragma once

#include "tests/sim/mutants.h"

#include <span>

namespace maru::sim {

struct MutantRecord {
  unsigned id;
  const char* name;
  const char* scenarios[4];  // tried in turn; null: no more
};

std::span<const MutantRecord> mutant_records();

}  // namespace maru::sim
