// The names of media that routers know. A router that meets another name may drop the event, or count the block as one in a
// GPU's memory, which is worse.
#pragma once

#include <string>
#include <string_view>

namespace maru::eventd {

// A sentence of warning about this medium for the blocks of a pool; empty: none is needed.
std::string medium_warning(std::string_view medium);

// "CPU, CPU_PINNED, ...".
std::string known_media();

// Dynamo's name for the tier of a medium: "device", "host_pinned", "disk" or "external".
std::string_view dynamo_tier(std::string_view medium);

}  // namespace maru::eventd
