// The process that deaths_test.cc has killed.
#pragma once

#include <cstdint>
#include <string>

namespace maru::test {

// Does the action, and dies at this step.
int run_dying(const std::string& action, const std::string& socket_path, uint64_t step);

}  // namespace maru::test
