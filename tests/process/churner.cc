// --role churner SOCKET SEED BOARD_FD WORKER THREADS [POOL]: the threads share one client. With a pool marud may be away at any
// time, and the pool be drained.
#include "tests/process/churner.h"

#include "tests/process/board.h"
#include "tests/process/roles.h"
#include "tests/support/block_content.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <thread>

namespace maru::test {
namespace {

// What requests end with while there is no marud, or its pool is being drained.
bool is_without_marud(int result) {
  static constexpr int kCodes[] = {ENOTCONN,   ETIMEDOUT, ECONNREFUSED, ENOENT,  EAGAIN,
                                   ECONNRESET, EPIPE,     ESHUTDOWN,    EALREADY};
  return std::find(std::begin(kCodes), std::end(kCodes), -result) != std::end(kCodes);
}

class Churner {
 public:
  Churner(TestClient& client, uint64_t seed, bool marud_may_be_away)
      : client_(client), random_(seed), seed_(seed), marud_may_be_away_(marud_may_be_away) {}

  void step() {
    switch (random_.below(16)) {
      case 0:
      case 1:
      case 2: return store_root();
      case 3:
      case 4:
      case 5: return extend_chain();
      case 6:
      case 7:
      case 8: return read(any_key());
      case 9:
      case 10: return release_one();
      case 11: return pin(any_key());
      case 12: return remove(any_key());
      case 13: return ask_for_many();
      case 14: return start_and_abort();
      case 15:
        if (random_.one_in(8)) return remove_tree(random_.below(kChurnChains));
        return remove(churn_link(random_.below(kChurnChains), random_.below(kChurnDepth)));
    }
  }

  void release_all() {
    while (!held_.empty()) release_one();
  }

 private:
  static constexpr size_t kHeldMax = 24;

  struct Held {
    std::string key;
    maru_view view;
  };

  [[noreturn]] void fail(const std::string& what, const std::string& key, int result = 0) {
    std::fprintf(stderr, "churner of seed %llu: %s (key \"%s\", result %d)\n", static_cast<unsigned long long>(seed_),
                 what.c_str(), key.c_str(), result);
    std::_Exit(3);  // other threads are at work
  }
  void expect(const char* doing, const std::string& key, int result, std::initializer_list<int> allowed) {
    if (result >= 0 || (marud_may_be_away_ && is_without_marud(result))) return;
    if (std::find(allowed.begin(), allowed.end(), -result) == allowed.end()) fail(doing, key, result);
  }

  std::string any_key() {
    return random_.one_in(2) ? churn_root(random_.below(kChurnRoots))
                             : churn_link(random_.below(kChurnChains), random_.below(kChurnDepth));
  }
  uint64_t any_bytes() { return BlockContent::kBytesMin + random_.below(random_.one_in(4) ? 3 * 4096 : 2000); }

  void check(const std::string& key, const maru_view& view) {
    if (const char* problem = BlockContent::problem(view.data, view.bytes, key)) fail(problem, key);
  }

  void store_root() {
    const std::string name = churn_root(random_.below(kChurnRoots));
    maru_buffer buffer;
    const int result = maru_alloc(client_, any_bytes(), &buffer);
    expect("alloc", name, result, {ENOSPC});
    if (result != 0) return;
    BlockContent::write(buffer.data, buffer.bytes, name, random_.next());
    const maru_key key = key_of(name);
    maru_store_options options{};
    options.size = sizeof(options);
    options.ttl_ms = random_.one_in(20) ? 1 + random_.below(20) : 0;
    const int stored = maru_store(client_, &key, &buffer, &options, nullptr);
    expect("store", name, stored, {EAGAIN, EXFULL, ENOBUFS});
    if (stored < 0 && maru_abort(client_, &buffer) != 0) fail("abort after a store that failed", name, stored);
  }

  // What an engine does with a prompt: how much is there, read it, store the rest below it.
  void extend_chain() {
    const uint64_t chain = random_.below(kChurnChains);
    const size_t length = 1 + random_.below(kChurnDepth);
    std::vector<std::string> names;
    for (size_t i = 0; i < length; ++i) names.push_back(churn_link(chain, i));
    std::vector<maru_key> keys;
    for (const std::string& name : names) keys.push_back(key_of(name));
    maru_match match;
    const int matched = maru_match_prefix(client_, keys.data(), length, &match);
    expect("match", names[0], matched, {ENOBUFS});
    if (matched != 0) return;
    std::vector<maru_view> views(match.blocks);
    if (match.blocks > 0) {
      const int resolved = maru_resolve(client_, &match, keys.data(), match.blocks, views.data());
      expect("resolve", names[0], resolved, {});
      for (size_t i = 0; i < match.blocks; ++i) check(names[i], views[i]);
    }
    const size_t rest = length - match.blocks;
    std::vector<maru_buffer> buffers(rest);
    int result = rest == 0 ? -ENODATA : maru_alloc_batch(client_, any_bytes(), rest, buffers.data());
    if (rest != 0) expect("alloc", names[0], result, {ENOSPC});
    if (result == 0) {
      for (size_t i = 0; i < rest; ++i)
        BlockContent::write(buffers[i].data, buffers[i].bytes, names[match.blocks + i], random_.next());
      maru_store_options options{};
      options.size = sizeof(options);
      options.parent = match.deepest;
      size_t done = 0;
      result = maru_store_chain(client_, keys.data() + match.blocks, buffers.data(), rest, &options, nullptr, nullptr,
                                &done);
      expect("store a chain", names[0], result, {ENOLINK, EAGAIN, EXFULL, ENOBUFS});
      if (maru_abort_batch(client_, buffers.data() + done, rest - done) != 0) fail("abort the rest", names[0], result);
    }
    if (maru_release_match(client_, &match) != 0) fail("release a match", names[0]);
  }

  void hold(const std::string& key, const maru_view& view) {
    held_.push_back({key, view});
    if (held_.size() > kHeldMax) release_one();
  }

  void read(const std::string& key) {
    maru_view view;
    const int result = client_.retrieve(key, &view);
    expect("retrieve", key, result, {ENOENT, ENOBUFS});
    if (result != 0) return;
    check(key, view);
    hold(key, view);
  }

  void pin(const std::string& key) {
    const maru_key k = key_of(key);
    maru_view view;
    const int result = maru_pin(client_, &k, &view);
    expect("pin", key, result, {ENOENT, ENOBUFS});
    if (result != 0) return;
    maru_view again;
    if (maru_pin_block(client_, view.block, &again) == 0 && maru_unpin(client_, &again) != 0) fail("unpin", key);
    hold(key, view);
  }

  // What was held must be what it was when it was found, whatever the others did to its key.
  void release_one() {
    if (held_.empty()) return;
    const size_t at = random_.below(held_.size());
    if (held_[at].view.data != nullptr) check(held_[at].key, held_[at].view);
    if (const int result = client_.release(held_[at].view); result != 0) fail("release", held_[at].key, result);
    held_.erase(held_.begin() + std::ptrdiff_t(at));
  }

  void remove(const std::string& key) { expect("delete", key, client_.remove(key), {ENOENT, ENOTEMPTY}); }
  void remove_tree(uint64_t chain) {
    const std::string key = churn_link(chain, random_.below(kChurnDepth));
    expect("delete a tree", key, client_.remove_tree(key), {ENOENT, EBUSY});
  }

  void ask_for_many() {
    std::vector<std::string> names;
    for (int i = 0; i < 20; ++i) names.push_back(any_key());
    std::vector<maru_key> keys;
    for (const std::string& name : names) keys.push_back(key_of(name));
    std::vector<uint8_t> present(keys.size());
    expect("exists", names[0], maru_exists_batch(client_, keys.data(), keys.size(), present.data()), {});
    std::vector<maru_view> views(keys.size());
    const int result = maru_retrieve_batch(client_, keys.data(), keys.size(), views.data());
    expect("retrieve many", names[0], result, {ENOBUFS});
    if (result < 0) return;
    for (size_t i = 0; i < keys.size(); ++i)
      if (views[i].block != 0) check(names[i], views[i]);
    if (maru_release_batch(client_, views.data(), views.size()) != 0) fail("release many", names[0]);
  }

  void start_and_abort() {
    maru_buffer buffers[3];
    const size_t n = 1 + random_.below(3);
    const int result = maru_alloc_batch(client_, any_bytes(), n, buffers);
    expect("alloc", "", result, {ENOSPC});
    if (result == 0 && maru_abort_batch(client_, buffers, n) != 0) fail("abort", "");
  }

  TestClient& client_;
  Random random_;
  uint64_t seed_;
  bool marud_may_be_away_;
  std::deque<Held> held_;
};

}  // namespace

int run_churner(int argument_count, char** arguments) {
  if (argument_count != 5 && argument_count != 6) return 2;
  const bool marud_may_be_away = argument_count == 6;
  const std::string socket_path = arguments[0], pool = marud_may_be_away ? arguments[5] : "default";
  const uint64_t seed = std::strtoull(arguments[1], nullptr, 10);
  Board board(std::atoi(arguments[2]));
  BoardWords::Worker& me = board->worker[size_t(std::atoi(arguments[3])) % kWorkersMax];
  // All lanes may be those of killed processes that marud has not reclaimed yet.
  std::unique_ptr<TestClient> client;
  for (int tries = 0; !client; ++tries) {
    int result = 0;
    client = TestClient::try_attach(socket_path, pool, &result);
    if (client) break;
    if (marud_may_be_away && board->stop.load() != 0) return 0;
    if (marud_may_be_away && (is_without_marud(result) || result == -EUSERS)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (result != -EUSERS || tries > 10'000) {
      std::fprintf(stderr, "churner: attach: %d\n", result);
      return 3;
    }
  }
  const auto churn = [&](uint64_t own_seed) {
    Churner churner(*client, own_seed, marud_may_be_away);
    while (board->stop.load() == 0) {
      churner.step();
      me.operations.fetch_add(1);
    }
    churner.release_all();
  };
  std::vector<std::thread> others;
  for (int i = 1; i < std::atoi(arguments[4]); ++i) others.emplace_back(churn, seed + uint64_t(i));
  churn(seed);
  for (std::thread& thread : others) thread.join();
  return 0;
}

}  // namespace maru::test
