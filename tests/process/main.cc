// The process suite: googletest, or one of the processes that a test starts.
#include "tests/process/roles.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <gtest/gtest.h>

namespace {

struct Role {
  const char* name;
  int (*run)(int, char**);
};
constexpr Role kRoles[] = {
    {"puppet", maru::test::run_puppet},       {"churner", maru::test::run_churner},
    {"keeper", maru::test::run_keeper},       {"hot-path", maru::test::run_hot_path},
    {"attach-as", maru::test::run_attach_as}, {"connect-often", maru::test::run_connect_often},
    {"ask-as", maru::test::run_ask_as},       {"read-as", maru::test::run_read_as},
    {"store-as", maru::test::run_store_as},   {"vandal", maru::test::run_vandal},
    {"scribbler", maru::test::run_scribbler}, {"tenant-worker", maru::test::run_tenant_worker},
    {"aimer", maru::test::run_aimer},
};

}  // namespace

int main(int count, char** arguments) {
  if (count >= 3 && std::strcmp(arguments[1], "--role") == 0) {
    for (const Role& role : kRoles) {
      if (std::strcmp(arguments[2], role.name) != 0) continue;
      try {
        return role.run(count - 3, arguments + 3);
      } catch (const std::exception& exception) {
        std::fprintf(stderr, "%s: %s\n", role.name, exception.what());
        return 4;
      }
    }
    return 2;
  }
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
