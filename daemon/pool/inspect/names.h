// Names of states and reasons, as replies and logs have them.
#pragma once

#include "libmaru/shm/region/page_word.h"

namespace maru::daemon {

const char* page_state_name(shm::PageState state);

}  // namespace maru::daemon
