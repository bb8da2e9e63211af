// The kernel's number of this boot. Memory and processes of another boot are gone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace maru::daemon {

// Read once, by the first call; empty if that failed. A marud that lost it later, for want of a descriptor, would take the
// processes of all pools for dead processes of another boot.
const std::string& current_boot_id();
// The same as two words, as pools have it; any fixed mapping will do.
void current_boot_words(uint64_t (&ret_id)[2]);
void boot_words(std::string_view text, uint64_t (&ret_id)[2]);

}  // namespace maru::daemon
