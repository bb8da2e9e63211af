// Rolls the hashes of windows in several stretches of a prompt, side by side.
#pragma once

#include "libmaru/blend/chunk_names.h"

#include <cstddef>
#include <cstdint>

namespace maru::blend {

inline constexpr size_t kLanes = 8;  // stretches

// Stretch k has the windows from k * stretch on, and as many rows. The first row of each has its hash already; the words of
// the space are there, too.
using RollStretches = void(const RollingHash& hash, const uint32_t* tokens, size_t stretch, NameBytes* rows);

RollStretches roll_stretches_plain;
// Null where this processor has no AVX-512.
RollStretches* roll_stretches_avx512();
// The faster of them.
RollStretches* best_roll_stretches();

}  // namespace maru::blend
