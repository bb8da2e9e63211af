#pragma once

#include "maru/maru.h"

#define MARU_TEXT_OF(x) #x
#define MARU_TEXT(x) MARU_TEXT_OF(x)

namespace maru::daemon {

inline constexpr const char* kVersionText =
    MARU_TEXT(MARU_VERSION_MAJOR) "." MARU_TEXT(MARU_VERSION_MINOR) "." MARU_TEXT(MARU_VERSION_PATCH);

}  // namespace maru::daemon
