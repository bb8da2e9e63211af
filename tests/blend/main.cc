// The blend suite: googletest, or the process that a test has killed (--role ACTION SOCKET STEP).
#include "tests/blend/deaths.h"

#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>

int main(int count, char** arguments) {
  if (count == 5 && std::strcmp(arguments[1], "--role") == 0)
    return maru::test::run_dying(arguments[2], arguments[3], std::strtoull(arguments[4], nullptr, 10));
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
