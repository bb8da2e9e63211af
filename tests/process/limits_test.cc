// What happens at the limits: no memory, no pin slot, no lane; a child of fork().
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/puppet.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace maru::test {
namespace {

using format::PageState;

PoolWish small_pool() {
  PoolWish pool;
  pool.bytes = 3u << 20;
  pool.region_bytes = 256u << 10;
  pool.pins = 2048;
  pool.lanes = 8;
  return pool;
}

TEST(Limits, EvictedKeysComeBackColdestFirst) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path());
  const uint64_t pages = client.geometry().pages;
  ASSERT_GT(pages, 100u);
  std::set<std::string> evicted, full;
  std::vector<std::string> order;
  for (uint64_t i = 0; i < 2 * pages; ++i) {
    const std::string name = "k" + std::to_string(i);
    const int result = client.store(name, "payload " + std::to_string(i));
    if (result == -EXFULL) full.insert(name);  // rare: both of its buckets are full
    ASSERT_TRUE(result == 0 || result == -EXFULL) << name << ": " << result;
    maru_key_copy key;
    while (maru_next_evicted(client, &key) == 0) {
      order.emplace_back(reinterpret_cast<const char*>(key.data), key.size);
      EXPECT_TRUE(evicted.insert(order.back()).second) << order.back() << " was told twice";
    }
  }
  EXPECT_GE(order.size(), pages / 2);
  EXPECT_EQ(client.statistics().evicted, order.size());
  EXPECT_EQ(client.statistics().evicted_lost, 0u);
  uint64_t present = 0;
  for (uint64_t i = 0; i < 2 * pages; ++i) {
    const std::string key = "k" + std::to_string(i);
    const auto text = client.text(key);
    EXPECT_EQ(text.has_value(), !evicted.contains(key) && !full.contains(key)) << key;
    if (text) {
      EXPECT_EQ(*text, "payload " + std::to_string(i));
    }
    present += text.has_value();
  }
  EXPECT_EQ(present + evicted.size() + full.size(), 2 * pages);
  EXPECT_LE(full.size(), 3u);
  EXPECT_FALSE(evicted.contains("k" + std::to_string(2 * pages - 1))) << "the warmest is there";
  EXPECT_TRUE(evicted.contains("k0")) << "the coldest is not";
}

TEST(Limits, EverythingPinnedIsAnAnswer) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path());
  std::vector<std::string> keys;
  std::vector<maru_view> held;
  int result = 0;
  for (uint64_t i = 0; i <= client.geometry().pages; ++i) {
    std::string key = "k" + std::to_string(i);
    result = client.store_near(key, "pinned");
    if (result != 0) break;
    keys.push_back(key);
    held.emplace_back();
    ASSERT_EQ(client.retrieve(key, &held.back()), 0);
  }
  EXPECT_EQ(result, -ENOSPC);
  EXPECT_GE(held.size(), client.geometry().pages * 9 / 10);
  maru_buffer buffer;
  EXPECT_EQ(maru_alloc(client, 100, &buffer), -ENOSPC);
  // One less, and there is room for one.
  EXPECT_EQ(client.release(held.back()), 0);
  EXPECT_EQ(maru_alloc(client, 100, &buffer), 0);
  held.pop_back();
  for (size_t i = 0; i < held.size(); ++i) ASSERT_EQ(client.text(keys[i]), "pinned") << "a pinned block was evicted";
  EXPECT_EQ(maru_release_batch(client, held.data(), held.size()), 0);
}

TEST(Limits, ParentsAreNeverEvictedBeforeTheirChildren) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path());
  const uint64_t pages = client.geometry().pages;
  constexpr uint64_t kDepth = 8;
  const auto name = [](uint64_t chain, uint64_t depth) {
    return "c" + std::to_string(chain) + "." + std::to_string(depth);
  };
  const uint64_t chains = 2 * pages / kDepth;
  for (uint64_t chain = 0; chain < chains; ++chain)
    for (uint64_t depth = 0; depth < kDepth; ++depth) {
      const int result = client.store(name(chain, depth), "text", depth ? name(chain, depth - 1) : "");
      if (result == -EXFULL) break;  // rare: both of its buckets are full; the chain ends here
      ASSERT_EQ(result, 0);
    }
  for (uint64_t chain = 0; chain < chains; ++chain) {
    bool is_above_there = true;
    for (uint64_t depth = 0; depth < kDepth; ++depth) {
      const bool is_there = client.exists(name(chain, depth)) == 1;
      EXPECT_TRUE(is_above_there || !is_there) << name(chain, depth) << " has lost its parent";
      is_above_there = is_there;
    }
  }
}

TEST(Limits, FullPinsAreNotAMiss) {
  PoolWish pool;
  pool.pins = 64;
  MarudProcess marud({pool});
  TestClient client(marud.socket_path());
  std::vector<maru_view> held;
  int result = 0;
  for (int i = 0; i < 1000 && result == 0; ++i) {
    const std::string key = "k" + std::to_string(i);
    maru_view view;
    result = client.store(key, "text");
    if (result == 0) result = client.retrieve(key, &view);
    if (result == 0) held.push_back(view);
  }
  EXPECT_EQ(result, -ENOBUFS);
  EXPECT_GE(held.size(), 64u);
  EXPECT_GE(client.statistics().pin_full, 1u);
  // What is pinned already can be pinned again; what a slot was freed for, too.
  maru_view again;
  EXPECT_EQ(client.retrieve("k0", &again), 0);
  EXPECT_EQ(client.release(again), 0);
  EXPECT_EQ(maru_release_batch(client, held.data(), held.size()), 0);
  EXPECT_EQ(client.statistics().pins, 0u);
  EXPECT_EQ(client.store("after", "text"), 0);
}

TEST(Limits, LanesRunOutAndComeBack) {
  PoolWish pool;
  pool.lanes = 4;  // three, and marud's own
  MarudProcess marud({pool});
  TestClient first(marud.socket_path()), second(marud.socket_path());
  Puppet third(marud.socket_path());
  const std::string name = "default";
  const maru_attach_options options = attach_options(marud.socket_path(), name);
  maru_client* fourth = nullptr;
  EXPECT_EQ(maru_attach(&options, &fourth), -EUSERS);
  EXPECT_EQ(fourth, nullptr);
  third.process().kill();
  EXPECT_TRUE(wait_until([&] { return maru_attach(&options, &fourth) == 0; })) << "a dead client's lane is lost";
  maru_detach(fourth);
  second.detach();
  EXPECT_EQ(maru_attach(&options, &fourth), 0) << "a detached client's lane is lost";
  maru_detach(fourth);
}

TEST(Limits, UnknownPoolAndSocketAreErrors) {
  MarudProcess marud;
  const std::string pool = "other", nowhere = marud.directory().file("nobody.sock"), known = "default";
  maru_client* client = nullptr;
  const maru_attach_options wrong_pool = attach_options(marud.socket_path(), pool);
  EXPECT_EQ(maru_attach(&wrong_pool, &client), -ENOENT);
  const maru_attach_options wrong_socket = attach_options(nowhere, known);
  EXPECT_EQ(maru_attach(&wrong_socket, &client), -ENOENT);
  EXPECT_EQ(client, nullptr);
}

// Each bit of the child's exit status is one expectation that failed.
int try_everything_in_a_child(maru_client* client, const maru_view& view, const maru_buffer& buffer) {
  const maru_key key = key_of("k");
  int failed = 0;
  maru_view mine;
  if (maru_exists(client, &key) != -ECHILD) failed |= 1;
  if (maru_retrieve(client, &key, &mine) != -ECHILD) failed |= 2;
  if (maru_release(client, &view) != -ECHILD) failed |= 4;
  if (maru_delete(client, &key) != -ECHILD) failed |= 8;
  maru_buffer fresh;
  if (maru_alloc(client, 10, &fresh) != -ECHILD) failed |= 16;
  if (maru_abort(client, &buffer) != -ECHILD) failed |= 32;
  if (maru_reattach(client) != -ECHILD) failed |= 64;
  maru_detach(client);
  return failed;
}

TEST(Fork, ChildIsRefusedAndDisturbsNothing) {
  MarudProcess marud;
  TestClient parent(marud.socket_path());
  ControlMap map(marud.socket_path());
  ASSERT_EQ(parent.store("k", "text"), 0);
  maru_view view;
  ASSERT_EQ(parent.retrieve("k", &view), 0);
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(parent, 100, &buffer), 0);
  const uint64_t reserved = map.count_pages()[PageState::kReserved];

  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(try_everything_in_a_child(parent, view, buffer));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "bits of try_everything_in_a_child";

  // The parent's session, pin and buffer are as before.
  EXPECT_EQ(map.count_pins(parent.geometry().lane), 1u);
  EXPECT_EQ(map.count_pages()[PageState::kReserved], reserved);
  EXPECT_EQ(std::string_view(static_cast<const char*>(view.data), view.bytes), "text");
  const maru_key key = key_of("another");
  EXPECT_EQ(maru_store(parent, &key, &buffer, nullptr, nullptr), 0);
  EXPECT_EQ(parent.release(view), 0);
  EXPECT_EQ(maru_reattach(parent), 0);
}

// A child that attaches for itself gets addresses and a thread handle that its parent's client had, and keeps them.
int attach_in_a_child(maru_client* inherited, const maru_attach_options& options) {
  maru_client* client = nullptr;
  if (maru_attach(&options, &client) != 0) return 1;
  maru_detach(inherited);
  const maru_key key = key_of("child's");
  int failed = 0;
  if (maru_store_copy(client, &key, "text", 4, nullptr, nullptr) != 0) failed |= 2;
  maru_view view;
  if (maru_retrieve(client, &key, &view) != 0) return failed | 4;
  if (std::string_view(static_cast<const char*>(view.data), view.bytes) != "text") failed |= 8;
  if (maru_release(client, &view) != 0) failed |= 16;
  maru_detach(client);
  return failed;
}

TEST(Fork, ChildsOwnClientSurvivesTheEndOfTheInheritedOne) {
  if (kHasThreadSanitizer)
    GTEST_SKIP() << "the thread sanitizer takes a child's thread for its parent's of the same handle";
  MarudProcess marud;
  TestClient parent(marud.socket_path());
  ASSERT_EQ(parent.store("k", "text"), 0);
  const std::string pool = "default";
  const maru_attach_options options = attach_options(marud.socket_path(), pool);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(attach_in_a_child(parent, options));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "bits of attach_in_a_child";
  EXPECT_EQ(parent.text("child's"), "text");
}

// -- attaching that goes wrong ----------------------------------------------------------------------------------------

bool nobody_is_attached(const MarudProcess& marud) { return marud.pool_status().at("lanes").at("live") == 0; }

TEST(Limits, AnAttachWithoutRoomForDescriptorsSaysSoAndKeepsNoLane) {
  MarudProcess marud;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t room : {1, 2, 3}) {  // for the socket; and one of the two that come; and the other
    const int next = ::dup(0);
    ASSERT_GE(next, 0);
    ::close(next);
    rlimit limit = before;
    limit.rlim_cur = rlim_t(next) + room;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    int result = 0;
    EXPECT_EQ(TestClient::try_attach(marud.socket_path(), "default", &result), nullptr);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(result, -EMFILE) << room;
    EXPECT_TRUE(wait_until([&] { return nobody_is_attached(marud); })) << room;
  }
}

TEST(Limits, AnAttachThatWasGivenUpKeepsNoLane) {
  MarudProcess marud;
  const std::string pool = "default";
  maru_attach_options options = attach_options(marud.socket_path(), pool);
  options.timeout_ms = 20;
  maru_client* client = nullptr;
  marud.suspend();
  EXPECT_EQ(maru_attach(&options, &client), -ETIMEDOUT);
  marud.resume();
  EXPECT_TRUE(marud.has_logged("attached to lane"));
  EXPECT_TRUE(wait_until([&] { return nobody_is_attached(marud); }));
}

// Somebody in marud's place who sends everything but the answer.
TEST(Limits, ATimeoutIsThatOfTheWholeCall) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("chatty.sock");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  std::thread chatty([&] {
    const FileDescriptor session(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const auto notice = wire::encode(wire::Type::kRegionTaken, 0, 0, {});
    for (int i = 0; i < 10'000; ++i) {
      if (!wire::send_packet(session.get(), notice, -1, far_too_long_ms())) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const std::string pool = "default";
  maru_attach_options options = attach_options(path, pool);
  options.timeout_ms = 50;
  maru_client* client = nullptr;
  EXPECT_EQ(maru_attach(&options, &client), -ETIMEDOUT);
  chatty.join();
}

std::atomic<int> signals_seen;

// A queue that is full lets nobody in until there is room again.
TEST(Limits, ASignalDoesNotEndConnecting) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("full.sock");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const auto first = wire::connect_to(path);
  ASSERT_TRUE(first);

  struct sigaction action{}, before{};
  action.sa_handler = [](int) { ++signals_seen; };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  signals_seen = 0;
  std::atomic<pid_t> id{0};
  int error = -1;
  std::thread connects([&] {
    id = ::gettid();
    const auto second = wire::connect_to(path, far_too_long_ms());
    error = second ? 0 : second.error().code;
  });
  EXPECT_TRUE(wait_until([&] {
    std::ifstream stat("/proc/self/task/" + std::to_string(id.load()) + "/syscall");
    long number = -1;
    return stat >> number && number == SYS_connect;
  }));
  pthread_kill(connects.native_handle(), SIGUSR1);
  EXPECT_TRUE(wait_until([&] { return signals_seen.load() == 1; }));
  const FileDescriptor taken(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  connects.join();
  EXPECT_EQ(error, 0);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(Limits, MemoryGrantedTooLateIsNotLost) {
  MarudProcess marud({small_pool()});
  TestClient client(marud.socket_path(), "default", 200);
  ControlMap map(marud.socket_path());
  const uint64_t pages = client.geometry().pages;
  const auto store = [&](uint64_t i) {
    std::string key = "k" + std::to_string(i);
    return client.store_near(key, "text");
  };
  for (uint64_t i = 0; i < pages; ++i) {
    int stored = -ETIMEDOUT;  // which a slow machine may take to answer
    EXPECT_TRUE(wait_until([&] { return (stored = store(i)) != -ETIMEDOUT; }));
    ASSERT_EQ(stored, 0) << i;
  }
  // marud does what these ask for, but only after they were given up on.
  maru_buffer buffers[32];
  marud.suspend();
  // It may have done so above, on a slow machine, and evicted for it: what is FREE for that is used up first.
  int last = 0;
  for (uint64_t i = pages; i < 3 * pages && last == 0; ++i) last = store(i);
  ASSERT_EQ(last, -ETIMEDOUT);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(maru_alloc_batch(client, 100, 32, buffers), -ETIMEDOUT);
  marud.resume();
  int result = -ETIMEDOUT;
  EXPECT_TRUE(wait_until([&] { return (result = maru_alloc_batch(client, 100, 32, buffers)) != -ETIMEDOUT; }));
  ASSERT_EQ(result, 0);
  // One of the late answers may still be on its way.
  const auto is_all_known = [&] {
    return map.count_pages()[PageState::kReserved] == 32 + client.statistics().pages_cached;
  };
  EXPECT_TRUE(wait_until(is_all_known)) << "pages that nobody knows of";
  EXPECT_EQ(maru_abort_batch(client, buffers, 32), 0);
}

TEST(Limits, RequestsWithoutMarudSayThatItIsGone) {
  MarudProcess marud;
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  ASSERT_EQ(client.store("k", "text"), 0);
  for (const bool is_socket_left : {true, false}) {
    if (is_socket_left) {
      marud.kill();
    } else {
      marud.start();
      ASSERT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
      marud.stop();
    }
    EXPECT_EQ(client.remove_tree("k"), -ENOTCONN);
    std::vector<maru_buffer> buffers(client.geometry().region_pages + 1);
    EXPECT_EQ(maru_alloc_batch(client, 100, buffers.size(), buffers.data()), -ENOTCONN);
    // The socket of a killed marud goes a moment after the connections to it.
    EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == -ECONNREFUSED; }));
    EXPECT_EQ(client.text("k"), "text");
  }
}

}  // namespace
}  // namespace maru::test
