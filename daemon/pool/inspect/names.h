// Names of states and reasons, as replies and logs have them.
#pragma once

#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/region/page_word.h"

#include <cstddef>
#include <string>

namespace maru::daemon {

const char* page_state_name(shm::PageState state);
// The first bytes of a key in quotation marks, as JSON writes text.
std::string quoted_key(const shm::KeyBytes& key, size_t bytes_max);

}  // namespace maru::daemon
