// What may last as long as a disk or a name service likes, and is no reason for marud to let others wait: in each of these
// tests somebody stands still at a file that is a pipe.
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/support/marud_process.h"
#include "tests/support/slow_file.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <memory>
#include <poll.h>
#include <stdexcept>

namespace maru::test {
namespace {

using nlohmann::json;

PoolWish pool_named(const std::string& name, bool in_file = false) {
  PoolWish pool;
  pool.name = name;
  pool.in_file = in_file;
  return pool;
}

template <typename T>
bool is_ready(std::future<T>& one) {
  return wait_until([&] { return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
}

// A pipe in the place of a file that marud is about to write: who opens it stands still until somebody reads.
class SlowNewFile {
 public:
  explicit SlowNewFile(std::string file) : file_(std::move(file)) {
    if (::mkfifo(file_.c_str(), 0600) != 0) throw std::runtime_error("cannot make a pipe");
  }
  ~SlowNewFile() {
    if (!pipe_.is_open()) go_on();
  }
  // What is written there goes nowhere, and cannot be made to last: then marud removes it, and the next one makes a file.
  void go_on() {
    pipe_.reset(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    const auto has_come = [&] {
      pollfd entry = {pipe_.get(), POLLIN, 0};
      return ::poll(&entry, 1, 0) == 1;
    };
    EXPECT_TRUE(wait_until(has_come)) << "nobody writes " << file_;
  }

 private:
  std::string file_;
  FileDescriptor pipe_;
};

// Pools "default" and "other"; what the tests make slow is about the first.
class Aside : public ::testing::Test {
 protected:
  Aside() : marud_({pool_named("default"), pool_named("other", true)}) {
    if (client_.store("k", "text") != 0) throw std::runtime_error("cannot store");
  }
  std::future<json> ask(const json& request) {
    return std::async(std::launch::async, [this, request] { return marud_.ask(request); });
  }
  // The name of a file of the state directory while it is written.
  std::string next_file(const std::string& kind) const {
    return marud_.directory().file("state/pool-" + kind + ".next");
  }
  // Somebody attaches, rents memory and asks for something, and has an answer.
  bool serves_others() {
    auto served = std::make_shared<std::future<bool>>(std::async(std::launch::async, [this] {
      TestClient other(marud_.socket_path(), "other");
      return other.store("k", "text") == 0 && other.text("k") == "text" && marud_.pool_status("other").is_object();
    }));
    if (is_ready(*served)) return served->get();
    left_.push_back(std::move(served));  // it ends when marud goes on, or ends
    return false;
  }

  // After a kill. The kernel closes the connections of marud when it takes the io_uring apart, some milliseconds after the
  // process has ended, and until then the client is connected and hands nothing back.
  int hand_back() {
    const uint64_t before = maru_daemon_epoch(client_);
    int result = 0;
    do {
      result = maru_reattach(client_);
    } while (result == 0 && maru_daemon_epoch(client_) == before);
    return result;
  }

  MarudProcess marud_;
  TestClient client_{marud_.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD};
  std::vector<std::shared_ptr<std::future<bool>>> left_;
};

TEST_F(Aside, MemoryThatWasHandedBackIsLookedThrough) {
  marud_.kill();
  SlowFile limits(marud_.directory().file("state/pool-default.tenants"));  // the pool asks for them when it is there
  marud_.start();
  auto back = std::async(std::launch::async, [this] { return hand_back(); });
  ASSERT_TRUE(limits.is_reached());
  EXPECT_TRUE(serves_others());
  limits.go_on();
  ASSERT_TRUE(is_ready(back));
  EXPECT_EQ(back.get(), 0);
  EXPECT_EQ(client_.text("k"), "text");
  EXPECT_EQ(client_.store("l", "more"), 0);
}

TEST_F(Aside, TheConfigurationIsReadAgain) {
  const std::string path = marud_.directory().file("marud.toml");
  std::string text;
  {
    std::ifstream file(path);
    ASSERT_TRUE(file) << "where is the configuration?";
    std::getline(file, text, '\0');
  }
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ::kill(marud_.pid(), SIGHUP);
  FileDescriptor pipe;
  ASSERT_TRUE(wait_until([&] {
    pipe.reset(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    return pipe.is_open();
  }));
  EXPECT_TRUE(serves_others());
  std::filesystem::remove(path);
  EXPECT_EQ(::write(pipe.get(), text.data(), text.size()), ssize_t(text.size()));
  pipe.reset();
  EXPECT_TRUE(marud_.has_logged("the configuration was read again"));
}

TEST_F(Aside, APoolOfAFileIsWrittenDown) {
  SlowNewFile slow(next_file("more.added"));
  auto added =
      ask({{"command", "device.add"},
           {"toml", "[[pool]]\nname = \"more\"\nbackend = \"memory\"\nsize = \"4MiB\"\npage_bytes = \"4KiB\"\n"}});
  ASSERT_TRUE(wait_until([&] { return marud_.ask({{"command", "device.list"}}).at("devices").size() == 3; }));
  EXPECT_TRUE(serves_others());
  slow.go_on();
  ASSERT_TRUE(is_ready(added));
  EXPECT_NE(added.get().value("refused", 0), 0) << "a pipe cannot be made to last";
  EXPECT_TRUE(wait_until([&] { return marud_.ask({{"command", "device.list"}}).at("devices").size() == 2; }));
}

TEST_F(Aside, MarudEndsWhileAPoolIsWrittenDown) {
  const std::string next = next_file("more.added");
  ASSERT_EQ(::mkfifo(next.c_str(), 0600), 0);  // who opens it stands still as long as marud lasts
  auto added =
      ask({{"command", "device.add"},
           {"toml", "[[pool]]\nname = \"more\"\nbackend = \"memory\"\nsize = \"4MiB\"\npage_bytes = \"4KiB\"\n"}});
  ASSERT_TRUE(wait_until([&] { return marud_.ask({{"command", "device.list"}}).at("devices").size() == 3; }));
  marud_.stop();
  ASSERT_TRUE(is_ready(added));
  EXPECT_THROW(added.get(), std::exception) << "who has asked gets no answer";
  EXPECT_TRUE(marud_.has_logged("stays with its clients")) << "the pools that were there are in order";
  std::filesystem::remove(next);
  marud_.start();
  EXPECT_EQ(maru_reattach(client_), 0);
  EXPECT_EQ(client_.text("k"), "text");
  EXPECT_EQ(marud_.ask({{"command", "device.list"}}).at("devices").size(), 2u);
}

TEST_F(Aside, MarudEndsWhileMemoryThatWasHandedBackIsLookedThrough) {
  marud_.kill();
  SlowFile limits(marud_.directory().file("state/pool-default.tenants"));
  marud_.start();
  auto back = std::async(std::launch::async, [this] { return hand_back(); });
  ASSERT_TRUE(limits.is_reached());
  marud_.stop();
  EXPECT_TRUE(marud_.has_logged("pool \"default\" is not open yet, and is cut off where it is"));
  ASSERT_TRUE(is_ready(back));
  EXPECT_NE(back.get(), 0);
  limits.end();
  marud_.start();
  ASSERT_TRUE(wait_until([&] { return maru_reattach(client_) == 0; }));
  EXPECT_EQ(client_.text("k"), "text");
}

TEST_F(Aside, ThatAPoolIsDrainedIsWrittenDown) {
  const json drain = {{"command", "device.drain"}, {"name", "default"}};
  const json cancel = {{"command", "device.cancel"}, {"name", "default"}};
  SlowNewFile slow(next_file("default.draining"));
  auto drained = ask(drain);
  ASSERT_TRUE(wait_until([&] { return marud_.ask(cancel).value("refused", 0) == EBUSY; }));
  EXPECT_TRUE(serves_others());
  EXPECT_EQ(client_.store("l", "more"), 0) << "it is not drained yet";
  EXPECT_EQ(marud_.ask({{"command", "device.remove"}, {"name", "default"}}).value("refused", 0), EBUSY);
  slow.go_on();
  ASSERT_TRUE(is_ready(drained));
  EXPECT_NE(drained.get().value("refused", 0), 0) << "a pipe cannot be made to last";
  EXPECT_EQ(marud_.ask({{"command", "device.list"}}).at("devices").at(0).at("condition"), "serving");
  EXPECT_EQ(marud_.ask(drain).value("condition", ""), "draining");
  EXPECT_EQ(marud_.ask(cancel).value("condition", ""), "serving");
}

TEST_F(Aside, LimitsOfTenantsAreWrittenDownOneAfterTheOther) {
  const auto set = [](const std::string& tenant, uint64_t hard) {
    return json{{"command", "quota.set"}, {"pool", "default"}, {"tenant", tenant}, {"hard", hard}};
  };
  const json list = {{"command", "quota.list"}, {"pool", "default"}};
  SlowNewFile slow(next_file("default.tenants"));
  auto first = ask(set("a", 1 << 20)), second = ask(set("b", 2 << 20));
  EXPECT_TRUE(serves_others());
  const json before = marud_.ask(list);
  for (const json& row : before.at("tenants")) EXPECT_EQ(row.value("hard_bytes", 0), 0) << row.dump();
  slow.go_on();
  ASSERT_TRUE(is_ready(first) && is_ready(second));
  const json one = first.get(), two = second.get();
  EXPECT_NE(one.contains("refused"), two.contains("refused")) << one << two << ": one of them met the pipe";
  EXPECT_EQ(marud_.ask(set("c", 3 << 20)).value("hard_bytes", 0), 3 << 20);
  marud_.kill();
  marud_.start();
  ASSERT_EQ(hand_back(), 0);
  std::vector<uint64_t> limits;
  const json kept = marud_.ask(list);
  for (const json& row : kept.at("tenants"))
    if (row.value("hard_bytes", 0) != 0) limits.push_back(row["hard_bytes"]);
  std::sort(limits.begin(), limits.end());
  EXPECT_EQ(limits, (std::vector<uint64_t>{one.contains("refused") ? 2u << 20 : 1u << 20, 3u << 20}));
}

// Pool "more", which comes while marud runs, and goes. It takes some turns to see that it holds no blocks.
class AsideOfAPoolThatGoes : public Aside {
 protected:
  AsideOfAPoolThatGoes() { EXPECT_EQ(marud_.ask(add_).value("refused", 0), 0); }

  bool is_there() const { return marud_.ask({{"command", "device.list"}}).at("devices").size() == 3; }
  // A connection that marud has answered.
  FileDescriptor connect() const {
    auto socket = wire::connect_to(marud_.socket_path());
    if (!socket) throw std::runtime_error(socket.error().text());
    if (!wire::send_packet(socket->get(), wire::encode(wire::Type::kPing, 1, 0, {}), -1, int(far_too_long_ms())) ||
        !wire::receive_packet(socket->get(), far_too_long_ms()))
      throw std::runtime_error("marud does not answer");
    return std::move(*socket);
  }
  static void send(const FileDescriptor& socket, const json& request) {
    const std::string text = request.dump();
    const auto packet = wire::encode(wire::Type::kAdmin, 1, 0, std::as_bytes(std::span(text.data(), text.size())));
    EXPECT_TRUE(wire::send_packet(socket.get(), packet, -1, int(far_too_long_ms())));
  }
  static bool is_answered(const FileDescriptor& socket) {
    return wire::receive_packet(socket.get(), far_too_long_ms()).has_value();
  }

  const json add_ = {
      {"command", "device.add"},
      {"toml", "[[pool]]\nname = \"more\"\nbackend = \"memory\"\nsize = \"512MiB\"\npage_bytes = \"4KiB\"\n"}};
};

// Else the next pool of this name would be another writer of its files.
TEST_F(AsideOfAPoolThatGoes, WaitsForLimitsOfItsTenantsToBeWrittenDown) {
  const FileDescriptor administrator = connect();
  SlowNewFile slow(next_file("more.tenants"));
  send(administrator, {{"command", "quota.set"}, {"pool", "more"}, {"tenant", "a"}, {"hard", 1 << 20}});
  EXPECT_EQ(marud_.ask({{"command", "device.remove"}, {"name", "more"}, {"discard", true}}).value("refused", 0), 0);
  EXPECT_TRUE(serves_others());
  EXPECT_TRUE(is_there());
  EXPECT_NE(marud_.ask(add_).value("refused", 0), 0);
  slow.go_on();
  EXPECT_TRUE(is_answered(administrator));
  EXPECT_TRUE(wait_until([&] { return !is_there(); }));
  EXPECT_EQ(marud_.ask(add_).value("refused", 0), 0);
}

TEST_F(AsideOfAPoolThatGoes, WaitsForThatItIsDrainedToBeWrittenDown) {
  const FileDescriptor first = connect(), second = connect();
  SlowNewFile slow(next_file("more.draining"));
  // In the same turn or the next one: before it is clear that it may go, it is about to be drained.
  marud_.suspend();
  send(first, {{"command", "device.remove"}, {"name", "more"}});
  send(second, {{"command", "device.drain"}, {"name", "more"}});
  marud_.resume();
  EXPECT_TRUE(is_answered(first));
  EXPECT_TRUE(serves_others());
  EXPECT_TRUE(is_there());
  slow.go_on();
  EXPECT_TRUE(is_answered(second));
  EXPECT_TRUE(wait_until([&] { return !is_there(); }));
  EXPECT_FALSE(std::filesystem::exists(marud_.directory().file("state/pool-more.draining")));
}

TEST_F(AsideOfAPoolThatGoes, IsClosedAndForgottenByAThread) {
  SlowFile slow(marud_.directory().file("state/pool-more.added.slow"));
  EXPECT_EQ(marud_.ask({{"command", "device.remove"}, {"name", "more"}, {"discard", true}}).value("refused", 0), 0);
  ASSERT_TRUE(slow.is_reached());
  EXPECT_TRUE(serves_others());
  EXPECT_TRUE(is_there());
  EXPECT_EQ(marud_.ask({{"command", "device.cancel"}, {"name", "more"}}).value("refused", 0), EBUSY);
  EXPECT_NE(marud_.ask(add_).value("refused", 0), 0);
  slow.go_on();
  EXPECT_TRUE(wait_until([&] { return !is_there(); }));
  EXPECT_EQ(marud_.ask(add_).value("refused", 0), 0);
}

TEST_F(AsideOfAPoolThatGoes, DoesNotKeepMarudFromItsEnd) {
  SlowFile slow(marud_.directory().file("state/pool-more.added.slow"));
  EXPECT_EQ(marud_.ask({{"command", "device.remove"}, {"name", "more"}, {"discard", true}}).value("refused", 0), 0);
  ASSERT_TRUE(slow.is_reached());
  marud_.stop();
  slow.end();
  marud_.start();
  EXPECT_TRUE(is_there()) << "it was not forgotten";
}

}  // namespace
}  // namespace maru::test
