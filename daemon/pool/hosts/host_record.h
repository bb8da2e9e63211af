// How the record of a host reads to people.
#pragma once

#include "libmaru/shm/region/host_claim.h"
#include "maru/format/control_region.h"

#include <cstdint>
#include <string>

namespace maru::daemon {

std::string name_in(const format::HostRecord& record);
std::string boot_id_text(uint64_t high, uint64_t low);
const char* state_name(shm::HostState state);
// The id of a machine, keyed with a secret: that id is no business of the pool's readers.
uint64_t machine_hash(const std::string& text, uint64_t secret);

}  // namespace maru::daemon
