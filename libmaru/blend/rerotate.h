// maru_rerotate() with a way of the caller's choice.
#pragma once

#include "libmaru/blend/turn_rows.h"
#include "maru/rope.h"

namespace maru::blend {

int rerotate(const maru_rope& rope, const maru_rerotation& keys, TurnWay way, maru_rope_reason* reason);

}  // namespace maru::blend
