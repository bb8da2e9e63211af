// Pools that come and go while marud and its clients run: drained without losing what somebody reads, removed when the clients
// have left, and added again.
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/puppet.h"
#include "tests/support/marud_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <utility>

namespace maru::test {
namespace {

using nlohmann::json;

PoolWish second_pool(bool in_file) {
  PoolWish pool;
  pool.name = "second";
  pool.bytes = 4u << 20;
  pool.in_file = in_file;
  return pool;
}

class Hotplug : public ::testing::TestWithParam<bool> {
 protected:
  Hotplug() : marud_({PoolWish{}, second_pool(GetParam())}) {}

  json ask(const char* command, json more = json::object()) const {
    more["command"] = std::string("device.") + command;
    if (!more.contains("name") && !more.contains("toml")) more["name"] = "second";
    return marud_.ask(more);
  }
  // The row of the pool; null when it is gone.
  json row(const std::string& pool = "second") const {
    const json list = ask("list");
    for (const json& one : list.at("devices"))
      if (one.at("pool") == pool) return one;
    return nullptr;
  }
  bool is_gone() const { return row().is_null(); }
  static std::string name(uint64_t i) { return "k" + std::to_string(i); }

  MarudProcess marud_;
};

TEST_P(Hotplug, PinnedBlockStaysReadableAndItsReleaseEndsTheDrain) {
  TestClient client(marud_.socket_path(), "second");
  for (uint64_t i = 0; i < 50; ++i) ASSERT_EQ(client.store(name(i), name(i)), 0);
  ASSERT_EQ(client.store("child", "below", "k7"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("child", &view), 0);
  EXPECT_EQ(ask("drain").value("condition", ""), "draining");
  EXPECT_TRUE(wait_until([&] {
    const json now = row();
    return now.value("left_blocks", 0) == 2 && now.value("left_pages", 0) == 2;  // the pinned one and its parent
  })) << row().dump();
  EXPECT_EQ(row().value("drained", true), false);
  EXPECT_EQ(client.text("child"), "below") << "reads go on";
  EXPECT_EQ(client.text("k7"), "k7");
  EXPECT_EQ(client.exists("k8"), 0);
  EXPECT_EQ(client.store("new", "text"), -ESHUTDOWN);
  EXPECT_EQ(client.release(view), 0);
  EXPECT_TRUE(wait_until([&] { return row().value("drained", false); })) << row().dump();
  EXPECT_EQ(row().value("left_pages", 1), 0);
  // And back.
  EXPECT_EQ(ask("cancel").value("condition", ""), "serving");
  EXPECT_EQ(client.store("new", "text"), 0);
  EXPECT_EQ(client.text("new"), "text");
  EXPECT_EQ(marud_.ask({{"command", "check"}, {"pool", "second"}, {"quiesce", true}}).at("found"), 0);
}

TEST_P(Hotplug, DrainSurvivesTheDeathOfMarud) {
  TestClient client(marud_.socket_path(), "second");
  ASSERT_EQ(client.store("k", "text"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("k", &view), 0);
  ask("drain");
  marud_.kill();
  marud_.start();
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  EXPECT_TRUE(wait_until([&] { return row().value("condition", "") == "draining"; })) << row().dump();
  EXPECT_EQ(client.store("new", "text"), -ESHUTDOWN);
  EXPECT_EQ(client.text("k"), "text");
  EXPECT_EQ(client.release(view), 0);
  EXPECT_TRUE(wait_until([&] { return row().value("drained", false); })) << row().dump();
  EXPECT_EQ(row("default").value("condition", ""), "waiting") << "nothing happens to the other, which has no client";
}

TEST_P(Hotplug, ClientLeavesWhenItsLastViewIsReleased) {
  Puppet other(marud_.socket_path(), "second");
  TestClient client(marud_.socket_path(), "second"), bystander(marud_.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  ASSERT_EQ(other.store("theirs", "other text"), 0);
  ASSERT_EQ(bystander.store("k", "here"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("theirs", &view), 0);
  const json asked = ask("remove", {{"deadline_ms", far_too_long_ms()}, {"discard", true}});
  EXPECT_EQ(asked.value("clients", 0), 2) << asked.dump();
  // The other one holds nothing and goes at once.
  EXPECT_TRUE(wait_until([&] { return row().value("clients", 0) == 1; })) << row().dump();
  EXPECT_EQ(other.exists("theirs"), -ESHUTDOWN);
  // This one hears of it in a thread of its own, in its own time.
  ASSERT_TRUE(wait_until([&] { return client.exists("k") == -ESHUTDOWN; }));
  EXPECT_EQ(client.store("new", "text"), -ESHUTDOWN);
  maru_view refused;
  EXPECT_EQ(client.retrieve("k", &refused), -ESHUTDOWN);
  EXPECT_EQ(std::string(static_cast<const char*>(view.data), view.bytes), "other text") << "its view is valid";
  int result = 0;
  EXPECT_EQ(TestClient::try_attach(marud_.socket_path(), "second", &result), nullptr);
  EXPECT_EQ(result, -ESHUTDOWN);
  EXPECT_EQ(client.release(view), 0);
  EXPECT_TRUE(wait_until([&] { return is_gone(); })) << row().dump();
  EXPECT_TRUE(marud_.has_logged("is removed"));
  EXPECT_EQ(client.exists("k"), -ESHUTDOWN);
  EXPECT_EQ(bystander.text("k"), "here");
  TestClient::try_attach(marud_.socket_path(), "second", &result);
  EXPECT_EQ(result, -ENOENT);

  // The device is free for others, and what a file holds is still there.
  if (GetParam()) {
    const FileDescriptor file(::open(marud_.pool_file("second").c_str(), O_RDWR | O_CLOEXEC));
    struct flock range = {};
    range.l_type = F_WRLCK;
    EXPECT_EQ(::fcntl(file.get(), F_OFD_SETLK, &range), 0) << "marud still has it";
  }
  EXPECT_EQ(ask("add").value("added", json()), json::array({"second"}));
  TestClient again(marud_.socket_path(), "second");
  EXPECT_EQ(again.text("theirs"), GetParam() ? std::optional<std::string>("other text") : std::nullopt);
  EXPECT_EQ(again.store("k2", "text"), 0);
}

// How often the threads of a process but its first have gone to sleep.
uint64_t sleeps_of_threads(pid_t pid) {
  uint64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    if (task.path().filename() == std::to_string(pid)) continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("voluntary_ctxt_switches:")) sum += std::stoull(line.substr(line.find(':') + 1));
  }
  return sum;
}

// A key that the library stops at when it reads it, in a handler of SIGSEGV, until it may go on. One at a time.
class HeldKey {
 public:
  explicit HeldKey(const std::string& text) : bytes_(text.size()) {
    page_ = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memcpy(page_, text.data(), bytes_);
    ::mprotect(page_, kBytes, PROT_NONE);
    ::sem_init(&reached_, 0, 0);
    ::sem_init(&may_go_on_, 0, 0);
    the_one_ = this;
    struct sigaction action = {};
    action.sa_handler = [](int) {
      ::sem_post(&the_one_->reached_);
      while (::sem_wait(&the_one_->may_go_on_) != 0) {  // ends: go_on()
      }
      ::mprotect(the_one_->page_, kBytes, PROT_READ);
    };
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~HeldKey() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(page_, kBytes);
  }
  maru_key key() const { return {page_, uint32_t(bytes_), MARU_KEY_BYTES, 0}; }
  void wait_until_reached() {
    while (::sem_wait(&reached_) != 0) {  // ends: the call reads its key
    }
  }
  void go_on() { ::sem_post(&may_go_on_); }

 private:
  static constexpr size_t kBytes = 4096;
  static inline HeldKey* the_one_ = nullptr;
  char* page_;
  size_t bytes_;
  sem_t reached_, may_go_on_;
  struct sigaction before_;
};

// A call that began before marud asked for the pool.
class CallUnderWay {
 public:
  using Store = std::function<int(const maru_key&, const maru_store_options&)>;
  explicit CallUnderWay(Store store) : store_(std::move(store)) {
    thread_ = std::thread([this] {
      const maru_key key = key_of("under way"), parent = held_.key();
      maru_store_options options = {};
      options.size = sizeof(options);
      options.parent_key = &parent;
      result_ = store_(key, options);
    });
    held_.wait_until_reached();
  }
  ~CallUnderWay() {
    if (thread_.joinable()) result();
  }
  int result() {
    held_.go_on();
    thread_.join();
    return result_;
  }

 private:
  Store store_;
  HeldKey held_{"k"};
  int result_ = 0;
  std::thread thread_;
};

TEST_P(Hotplug, NoViewComesOfACallThatWasUnderWay) {
  TestClient client(marud_.socket_path(), "second");
  ASSERT_EQ(client.store("k", "text"), 0);
  maru_view held, view = {};
  ASSERT_EQ(client.retrieve("k", &held), 0);
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client, 100, &buffer), 0);
  CallUnderWay call([&](const maru_key& key, const maru_store_options& options) {
    return maru_store_pinned(client, &key, &buffer, &options, &view);
  });
  ASSERT_FALSE(ask("remove", {{"deadline_ms", far_too_long_ms()}, {"discard", true}}).contains("error"));
  ASSERT_TRUE(wait_until([&] { return client.exists("k") == -ESHUTDOWN; }));
  EXPECT_EQ(call.result(), -ESHUTDOWN);
  EXPECT_EQ(view.pin, 0u);
  EXPECT_EQ(client.statistics().pins, 1u);
  EXPECT_EQ(client.release(held), 0);
  EXPECT_TRUE(wait_until([&] { return is_gone(); }));
  EXPECT_EQ(maru_abort(client, &buffer), 0) << "it went with the pool";
}

TEST_P(Hotplug, ACallUnderWaySaysThatThePoolHasGone) {
  TestClient client(marud_.socket_path(), "second");
  ASSERT_EQ(client.store("k", "text"), 0);
  CallUnderWay call([&](const maru_key& key, const maru_store_options& options) {
    return maru_store_copy(client, &key, "text", 4, &options, nullptr);
  });
  ASSERT_FALSE(ask("remove", {{"deadline_ms", far_too_long_ms()}, {"discard", true}}).contains("error"));
  EXPECT_TRUE(wait_until([&] { return is_gone(); }));
  EXPECT_EQ(call.result(), -ESHUTDOWN);
}

TEST_P(Hotplug, AClientThatCouldNotLeaveTriesAgain) {
  if (kHasAddressSanitizer || kHasThreadSanitizer) GTEST_SKIP() << "a sanitizer ends without memory";
  Puppet client(marud_.socket_path(), "second");
  ASSERT_EQ(client.store("k", "text"), 0);
  ASSERT_EQ(client.retrieve("k").at("result"), 0);
  ask("remove", {{"deadline_ms", far_too_long_ms()}, {"discard", true}});
  ASSERT_TRUE(wait_until([&] { return client.exists("k") == -ESHUTDOWN; }));
  ASSERT_EQ(client.result({{"do", "limit memory"}}), 0);
  ASSERT_EQ(client.release("k"), 0);
  // Its session thread looks now and then, has tried by then, and would sleep for good if it did not try again.
  const uint64_t sleeps = sleeps_of_threads(client.process().pid());
  EXPECT_TRUE(wait_until([&] { return sleeps_of_threads(client.process().pid()) > sleeps + 3; }));
  EXPECT_EQ(row().value("clients", 0), 1);
  EXPECT_EQ(client.ask({{"do", "limit memory"}, {"no", true}}).at("result"), 0);
  EXPECT_TRUE(wait_until([&] { return is_gone(); })) << row().dump();
}

TEST_P(Hotplug, APoolThatIsBeingRemovedGivesNoNewLane) {
  TestClient client(marud_.socket_path(), "second");
  ASSERT_EQ(client.store("k", "text"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("k", &view), 0);
  ask("remove", {{"deadline_ms", far_too_long_ms()}, {"discard", true}});
  auto socket = wire::connect_to(marud_.socket_path());
  ASSERT_TRUE(socket);
  for (const uint32_t lane : {1u, 7u}) {  // another's, and nobody's
    wire::AttachRequest attach{};
    std::strcpy(attach.pool, "second");
    attach.previous_lane = lane;
    attach.previous_generation = 77;
    ASSERT_TRUE(wire::send_packet(socket->get(), wire::encode(wire::Type::kAttach, lane, 0, wire::bytes_of(attach)), -1,
                                  far_too_long_ms()));
    const auto reply = wire::receive_packet(socket->get(), far_too_long_ms());
    ASSERT_TRUE(reply);
    const auto header = wire::decode_reply(reply->bytes);
    ASSERT_TRUE(header);
    EXPECT_EQ(header->status, -ESHUTDOWN) << "lane " << lane;
  }
  EXPECT_EQ(row().value("clients", 0), 1) << row().dump();
  client.release(view);
  EXPECT_TRUE(wait_until([&] { return is_gone(); })) << row().dump();
}

TEST_P(Hotplug, StoppedClientIsNamedAtTheDeadlineAndEndedOnlyIfToldSo) {
  Puppet stopped(marud_.socket_path(), "second");
  ASSERT_EQ(stopped.store("k", "text"), 0);
  stopped.process().signal(SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(stopped.process().pid(), &status, WUNTRACED), stopped.process().pid());
  ask("remove", {{"deadline_ms", 100}, {"discard", true}});
  EXPECT_TRUE(wait_until([&] { return row().value("condition", "") == "serving"; })) << row().dump();
  EXPECT_NE(row().value("note", "").find(std::to_string(stopped.process().pid())), std::string::npos) << row().dump();
  EXPECT_TRUE(stopped.process().is_running());
  ask("remove", {{"deadline_ms", 100}, {"discard", true}, {"fence", true}});
  EXPECT_TRUE(wait_until([&] { return is_gone(); })) << row().dump();
  const auto ended = stopped.process().wait();
  EXPECT_TRUE(ended && ended->by_signal && ended->code == SIGKILL);
}

TEST_P(Hotplug, PoolsOfTheConfigurationStartWithSighup) {
  ask("remove", {{"discard", true}});
  EXPECT_TRUE(wait_until([&] { return is_gone(); }));
  const std::string config = marud_.directory().file("marud.toml");
  std::ofstream(config, std::ios::app)
      << "\n[[pool]]\nname = \"third\"\nbackend = \"memory\"\nsize = \"64MiB\"\nlanes = 16\n";
  ASSERT_EQ(::kill(marud_.pid(), SIGHUP), 0);
  EXPECT_TRUE(wait_until([&] {
    const json third = row("third");
    return third.is_object() && third.value("condition", "") == "serving";
  })) << marud_.log();
  EXPECT_TRUE(is_gone()) << "what an administrator removed does not come back by itself";
  TestClient client(marud_.socket_path(), "third");
  EXPECT_EQ(client.store("k", "text"), 0);
  EXPECT_EQ(client.text("k"), "text");
}

INSTANTIATE_TEST_SUITE_P(Of, Hotplug, ::testing::Values(false, true),
                         [](const auto& which) { return which.param ? "FilePool" : "MemoryPool"; });

TEST(HotplugAlone, WrongRequestsAreRefusedAndChangeNothing) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  const auto refused = [&](json request) {
    const json reply = marud.ask(request);
    return reply.contains("refused") ? reply.at("refused").get<int>() : 0;
  };
  EXPECT_EQ(refused({{"command", "device.drain"}, {"name", "none"}}), ENOENT);
  EXPECT_EQ(refused({{"command", "device.add"}, {"name", "none"}}), ENOENT);
  EXPECT_EQ(refused({{"command", "device.add"}, {"name", "default"}}), EEXIST);
  EXPECT_EQ(refused({{"command", "device.add"}, {"toml", "[[pool]]\nname = 3\n"}}), EINVAL);
  const std::string pool = "[[pool]]\nname = \"far\"\nbackend = \"memory\"\nsize = \"64MiB\"\nlanes = 16\n";
  for (const std::string other : {"[daemon]\n", "[http]\n", "[limits]\npins = 3\n", "[[limit]]\nuser = 0\npins = 3\n"})
    EXPECT_EQ(refused({{"command", "device.add"}, {"toml", pool + other}}), EINVAL) << other << " would have no effect";
  EXPECT_EQ(
      refused(
          {{"command", "device.add"},
           {"toml",
            "[[pool]]\nname = \"far\"\nbackend = \"file\"\npath = \"/nowhere/pool\"\nsize = \"64MiB\"\nlanes = 16\n"}}),
      ENOENT);
  EXPECT_EQ(refused({{"command", "device.remove"}, {"name", "default"}}), ENOTEMPTY) << "its blocks would be lost";
  EXPECT_EQ(refused({{"command", "device.what"}, {"name", "default"}}), EOPNOTSUPP);
  EXPECT_EQ(marud.ask({{"command", "device.list"}}).at("devices").size(), 1u);
  EXPECT_EQ(client.text("k"), "text");
}

TEST(HotplugAlone, DrainEndsWhileClientsStoreAndRead) {
  PoolWish pool;
  pool.bytes = 8u << 20;
  MarudProcess marud({pool});
  Puppet one(marud.socket_path()), two(marud.socket_path());
  ASSERT_GT(one.ask({{"do", "store many"}, {"key", "v"}, {"count", 900}}).at("result"), 0);
  ASSERT_GT(two.ask({{"do", "store many"}, {"key", "w"}, {"count", 900}}).at("result"), 0);
  EXPECT_EQ(marud.ask({{"command", "device.drain"}, {"name", "default"}}).value("condition", ""), "draining");
  (void)one.ask({{"do", "store many"}, {"key", "y"}, {"count", 300}});
  (void)two.ask({{"do", "store many"}, {"key", "z"}, {"count", 300}});
  EXPECT_TRUE(wait_until([&] {
    return marud.ask({{"command", "device.list"}}).at("devices").at(0).value("drained", false);
  })) << marud.ask({{"command", "device.list"}}).dump();
  EXPECT_EQ(marud.pool_status().at("blocks"), 0);
  EXPECT_EQ(one.store("late", "text"), -ESHUTDOWN);
}

}  // namespace
}  // namespace maru::test
