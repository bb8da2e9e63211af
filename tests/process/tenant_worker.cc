// A worker that stores and deletes blocks of three tenants, and is killed at random instants. It ends with status 3 when a
// call gives what it may not.
#include "tests/process/tenant_worker.h"
#include "tests/process/board.h"
#include "tests/process/roles.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace maru::test {

int run_tenant_worker(int count, char** arguments) {
  if (count != 6) return 2;
  TestClient client(arguments[0]);
  Random random(std::strtoull(arguments[1], nullptr, 0));
  Board board(std::atoi(arguments[2]));
  BoardWords::Worker& mine = board->worker[std::atoi(arguments[3])];
  const uint64_t keys = std::strtoull(arguments[4], nullptr, 0), tenants = std::strtoull(arguments[5], nullptr, 0);
  uint64_t ids[kTenantNames] = {};
  for (size_t i = 0; i < kTenantNames; ++i)
    if (maru_tenant(client, kTenantNameTexts[i], 1, &ids[i]) != 0) return 3;
  const std::string payload(3 * 4096, 'x');
  while (board->stop.load() == 0) {
    const std::string text = "key " + std::to_string(random.below(keys));
    const maru_key key = key_of(text, ids[random.below(tenants)]);
    if (random.one_in(3)) {
      const int result = maru_delete(client, &key);
      if (result != 0 && result != -ENOENT) return 3;
    } else {
      const int result =
          maru_store_copy(client, &key, payload.data(), 1 + random.below(payload.size()), nullptr, nullptr);
      if (result == -EDQUOT)
        ++mine.refused;
      else if (result == 0)
        ++mine.stores;
      else if (result != 1 && result != -ENOSPC && result != -EAGAIN && result != -ENOTCONN && result != -ETIMEDOUT &&
               result != -EXFULL) {
        std::fprintf(stderr, "a store says %d\n", result);
        return 3;
      }
    }
    ++mine.operations;
  }
  return 0;
}

}  // namespace maru::test
