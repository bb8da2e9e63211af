// The steps of libmaru-blend: its calls of maru.h. A process of a test dies before or after any one of them.
#pragma once

#include <cstdint>

namespace maru::test {

// The process kills itself at the step with this number, counted from 1; 0: it does not.
void die_at_step(uint64_t number);

}  // namespace maru::test
