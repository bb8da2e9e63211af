// A process that uses adapters, and ends itself at a step of a move.
#pragma once

#include <string>
#include <vector>

namespace maru::test {

// SOCKET REGISTER NAME ACTION STEP SKIP [INPUT OUTPUT]: does the action, and at the step, after SKIP passes of it, sends
// itself SIGKILL. With STEP "none" it says "done" and its result on its standard output, and waits for the end of its
// input.
int play_mortal(const std::vector<std::string>& arguments);

}  // namespace maru::test
