// --role keeper SOCKET SEED BOARD_FD WORKER KEYS
#include "tests/process/keeper.h"

#include "tests/process/board.h"
#include "tests/process/roles.h"
#include "tests/support/block_content.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace maru::test {
namespace {

// While marud is suspended a request that needs it must come back soon: the reading goes on meanwhile.
constexpr uint32_t kRequestMs = 100;

class Keeper {
 public:
  Keeper(TestClient& client, Board& board, uint32_t worker, uint64_t keys, uint64_t seed)
      : client_(client), board_(board), me_(board->worker[worker]), worker_(worker), keys_(keys), random_(seed) {}

  void step() {
    if (me_.kept.load() < keys_) {
      if (store(me_.kept.load())) me_.kept.fetch_add(1);
    } else {
      replace(random_.below(keys_ / kKeeperChanging) * kKeeperChanging);
    }
    for (int i = 0; i < 4; ++i) {
      const auto whose = uint32_t(random_.below(kWorkersMax));
      if (const uint64_t kept = board_->worker[whose].kept.load(); kept > 0) read(whose, random_.below(kept));
    }
    me_.epochs.store(maru_daemon_epoch(client_));
    me_.operations.fetch_add(1);
  }

 private:
  [[noreturn]] void fail(const char* what, const std::string& key, int result) {
    std::fprintf(stderr, "keeper %u: %s (key \"%s\", result %d, epoch %llu)\n", worker_, what, key.c_str(), result,
                 static_cast<unsigned long long>(maru_daemon_epoch(client_)));
    std::exit(3);
  }

  // Whether marud has memory for us is its business; that it is away is not an error of the store.
  static bool is_marud_away(int result) {
    return result == -ENOTCONN || result == -ETIMEDOUT || result == -ECONNREFUSED || result == -ENOENT ||
           result == -ECONNRESET || result == -EPIPE || result == -EAGAIN;
  }

  bool store(uint64_t i) {
    const std::string name = keeper_key(worker_, i);
    maru_buffer buffer;
    const int allocated = maru_alloc(client_, 200 + random_.below(1500), &buffer);
    if (is_marud_away(allocated)) return false;
    if (allocated != 0) fail("alloc", name, allocated);
    BlockContent::write(buffer.data, buffer.bytes, name, random_.next());
    const maru_key key = key_of(name);
    const int stored = maru_store(client_, &key, &buffer, nullptr, nullptr);
    if (stored != 0) fail("store", name, stored);
    me_.stores.fetch_add(1);
    return true;
  }

  void replace(uint64_t i) {
    const std::string name = keeper_key(worker_, i);
    const int there = client_.exists(name);
    if (there == 0) {
      store(i);
      return;
    }
    if (const int result = client_.remove(name); result != 0) fail("delete", name, result);
    if (client_.text(name)) fail("a deleted block is found", name, 0);
    store(i);
  }

  void read(uint32_t whose, uint64_t i) {
    const std::string name = keeper_key(whose, i);
    maru_view view;
    const int result = client_.retrieve(name, &view);
    if (result == -ENOENT && i % kKeeperChanging == 0) return;
    if (result != 0) fail("a block that was stored is not found", name, result);
    if (const char* problem = BlockContent::problem(view.data, view.bytes, name)) fail(problem, name, 0);
    if (client_.release(view) != 0) fail("release", name, 0);
    me_.hits.fetch_add(1);
  }

  TestClient& client_;
  Board& board_;
  BoardWords::Worker& me_;
  uint32_t worker_;
  uint64_t keys_;
  Random random_;
};

}  // namespace

int run_keeper(int argument_count, char** arguments) {
  if (argument_count != 5) return 2;
  Board board(std::atoi(arguments[2]));
  const auto worker = uint32_t(std::atoi(arguments[3])) % kWorkersMax;
  TestClient client(arguments[0], "default", kRequestMs);
  Keeper keeper(client, board, worker, std::strtoull(arguments[4], nullptr, 10),
                std::strtoull(arguments[1], nullptr, 10));
  while (board->stop.load() == 0) keeper.step();
  return 0;
}

}  // namespace maru::test
