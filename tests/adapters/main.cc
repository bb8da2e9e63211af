// The adapter suite: googletest, or a process of a test that may die (--role ...; deaths_test.cc).
#include "tests/adapters/mortal.h"

#include <gtest/gtest.h>

int main(int count, char** arguments) {
  if (count > 1 && std::string(arguments[1]) == "--role")
    return maru::test::play_mortal({arguments + 2, arguments + count});
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
