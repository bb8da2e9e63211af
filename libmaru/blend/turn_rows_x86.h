// The ways of turn_rows.h for processors with AVX2 and with AVX-512.
#pragma once

#include "libmaru/blend/turn_rows.h"

namespace maru::blend {

// Null where this processor lacks a needed instruction.
TurnWay avx2_turn_way(uint32_t dtype);
TurnWay avx512_turn_way(uint32_t dtype);

}  // namespace maru::blend
