// The tier in Redis when the server goes away, stands still, is full, or knows nobody.
#include "libmaru/base/file_descriptor.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/redis_process.h"
#include "tests/tiers/tier_user.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>

namespace maru::test {
namespace {

FileDescriptor listen_at(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  FileDescriptor door(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(door.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(door.get(), 1), 0);
  return door;
}

class Resp : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisProcess::is_installed()) GTEST_SKIP() << "there is no redis-server";
  }
  void start(std::vector<std::string> more = {}) {
    redis_ = std::make_unique<RedisProcess>(directory_.path(), std::move(more));
  }
  tierd::TierOptions options(tierd::TierOptions more = {}) {
    more.emplace_back("socket", redis_->socket_path());
    return more;
  }

  // The status of redis-cli.
  int redis(const std::string& command) {
    return std::system(("redis-cli -e -s " + redis_->socket_path() + " " + command + " > /dev/null").c_str());
  }

  TemporaryDirectory directory_;
  std::unique_ptr<RedisProcess> redis_;
};

TEST_F(Resp, ItComesBackAfterTheServerHasGone) {
  start();
  const auto tier = open_or_throw("resp", options());
  TierUser user(*tier);
  const TierEntry entry = {"attributes", std::string(50'000, 'x'), 9};
  ASSERT_EQ(user.store("key", entry), 0);
  redis_->kill();
  EXPECT_LT(user.lookup("key").result, 0);
  EXPECT_EQ(tier->health().is_ready, 0u);
  EXPECT_NE(tier->health().text[0], 0);
  redis_->start();
  ASSERT_TRUE(wait_until([&] { return user.store("key", entry) == 0; }));
  EXPECT_EQ(user.load("key"), entry);
  EXPECT_EQ(tier->health().is_ready, 1u);
}

TEST_F(Resp, AServerThatStandsStillIsLeftAndComesBack) {
  start();
  const auto tier = open_or_throw("resp", options({{"timeout_ms", "100"}, {"connect_timeout_ms", "100"}}));
  TierUser user(*tier);
  const TierEntry entry = {"attributes", std::string(50'000, 'x'), 9};
  ASSERT_TRUE(wait_until([&] { return user.store("key", entry) == 0; }));  // a busy machine exceeds the deadline, too
  redis_->signal(SIGSTOP);
  EXPECT_EQ(user.lookup("key").result, -ETIMEDOUT);
  redis_->signal(SIGCONT);
  ASSERT_TRUE(wait_until([&] { return user.load("key") == entry; }));
}

TEST_F(Resp, WrongPasswordsAndUsersAreRefused) {
  start({"--requirepass", "secret"});
  const auto refusal = [&](tierd::TierOptions more) {
    const auto tier = tierd::Tier::open("resp", options(std::move(more)));
    return tier ? std::string() : tier.error().text();
  };
  EXPECT_NE(refusal({{"password", "wrong"}}).find("correct user, password or database"), std::string::npos);
  EXPECT_NE(refusal({{"user", "nobody"}, {"password", "secret"}}).find("correct user"), std::string::npos);
  EXPECT_NE(refusal({}).find("NOAUTH"), std::string::npos) << refusal({});
  EXPECT_EQ(refusal({{"password", "secret"}}), "");
  EXPECT_EQ(refusal({{"user", "default"}, {"password", "secret"}}), "");
}

TEST_F(Resp, AFullServerIsAFullTier) {
  start({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  const auto tier = open_or_throw("resp", options());
  TierUser user(*tier);
  const TierEntry entry = {"attributes", std::string(400'000, 'x'), 9};
  int result = 0;
  for (int i = 0; i < 20 && result == 0; ++i) result = user.store("key " + std::to_string(i), entry);
  EXPECT_EQ(result, -ENOSPC);
  EXPECT_EQ(user.load("key 0"), entry);
}

TEST_F(Resp, AChunkThatTheServerEvictedIsAMiss) {
  start();
  const auto tier = open_or_throw("resp", options({{"chunk_bytes", "4096"}, {"ttl_ms", "60000"}}));
  TierUser user(*tier);
  const TierEntry entry = {"attributes", std::string(50'000, 'x'), 9};
  ASSERT_EQ(user.store("key", entry), 0);
  ASSERT_EQ(user.load("key"), entry);
  EXPECT_EQ(std::system(("redis-cli -s " + redis_->socket_path() +
                         " eval \"for _, k in ipairs(redis.call('keys', 'maru:c*')) do redis.call('del', k) break "
                         "end\" 0 > /dev/null")
                            .c_str()),
            0);
  int result = 0;
  EXPECT_FALSE(user.load("key", &result));
  EXPECT_EQ(result, -ENOENT);
}

TEST_F(Resp, ADeletionTakesADamagedEntryAway) {
  start();
  const auto tier = open_or_throw("resp", options());
  TierUser user(*tier);
  ASSERT_EQ(std::system(("redis-cli -s " + redis_->socket_path() + " set maru:hkey damaged > /dev/null").c_str()), 0);
  EXPECT_EQ(user.lookup("key").result, -EBADMSG);
  EXPECT_EQ(user.remove("key"), 0);
  EXPECT_EQ(user.lookup("key").result, -ENOENT);
}

// The server may evict a payload and keep its head: the census takes the head away, too, since its reading of heads would keep
// them for ever.
TEST_F(Resp, AListCountsNoEntryWithoutItsPayload) {
  start();
  {
    const auto tier = open_or_throw("resp", options({{"chunk_bytes", "4096"}}));
    TierUser user(*tier);
    for (const char* const key : {"whole", "evicted"})
      ASSERT_EQ(user.store(key, {"attributes", std::string(50'000, key[0]), 9}), 0);
  }
  ASSERT_EQ(
      redis("eval \"for _, k in ipairs(redis.call('keys', 'maru:c*evicted')) do redis.call('del', k) break end\" 0"),
      0);
  const auto tier = open_or_throw("resp", options());
  EXPECT_EQ(tier->usage().entries, 1u);
  EXPECT_EQ(tier->usage().entry_bytes, 50'010u);
  TierUser user(*tier);
  EXPECT_EQ(user.lookup("evicted").result, -ENOENT);
  EXPECT_EQ(user.lookup("whole").result, 0);
}

TEST_F(Resp, KeysOfOtherProgramsAreNoEntries) {
  start();
  const auto fill = open_or_throw("resp", options({{"prefix", "a*b[c]?\\:"}}));
  for (int i = 0; i < 700; ++i) ASSERT_EQ(TierUser(*fill).store("key " + std::to_string(i), {"", "x", 0}), 0);
  ASSERT_EQ(redis("mset 'a*b[c]?\\:h' x 'a*b[c]?\\:hshort' x aXbcd:hother x"), 0);
  ASSERT_EQ(redis("lpush 'a*b[c]?\\:hlist' x"), 0);
  EXPECT_EQ(open_or_throw("resp", options({{"prefix", "a*b[c]?\\:"}}))->usage().entries, 700u);
  EXPECT_EQ(open_or_throw("resp", options())->usage().entries, 0u);
  const auto bounded = open_or_throw("resp", options({{"prefix", "a*b[c]?\\:"}, {"list_memory", "65536"}}));
  EXPECT_NE(std::string(bounded->health().text).find("list_memory"), std::string::npos) << bounded->health().text;
  EXPECT_EQ(bounded->health().is_ready, 1u);
}

TEST_F(Resp, AUserThatMayNotListIsToldSoAndServed) {
  start();
  ASSERT_EQ(redis("acl setuser plain on '>secret' '~*' +@all -scan"), 0);
  const auto tier = open_or_throw("resp", options({{"user", "plain"}, {"password", "secret"}}));
  EXPECT_NE(std::string(tier->health().text).find("allow SCAN"), std::string::npos) << tier->health().text;
  EXPECT_EQ(tier->health().is_ready, 1u);
  TierUser user(*tier);
  EXPECT_EQ(user.store("key", {"", "x", 0}), 0);
  EXPECT_EQ(user.load("key"), (TierEntry{"", "x", 0}));
}

// Without persistence it comes back empty.
TEST_F(Resp, AServerThatComesBackIsListedAgain) {
  start();
  const auto tier = open_or_throw("resp", options());
  TierUser user(*tier);
  ASSERT_EQ(user.store("key", {"", "x", 0}), 0);
  EXPECT_EQ(tier->usage().entries, 1u);
  redis_->kill();
  redis_->start();
  EXPECT_TRUE(wait_until([&] { return tier->usage().entries == 0 && tier->health().is_ready == 1; }));
}

// It says that all is stored before all has been sent: nothing that comes from it can be believed.
TEST_F(Resp, AnswersBeforeTheQuestionAreNotBelieved) {
  const std::string path = directory_.path() + "/hasty.sock";
  const FileDescriptor door = listen_at(path);
  std::atomic<bool> is_over = false;
  std::jthread server([&] {
    const FileDescriptor client(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char room[1024];
    (void)!::recv(client.get(), room, sizeof room, 0);
    for (const char* const answer : {"+PONG\r\n", "+OK\r\n+OK\r\n"}) {
      (void)!::send(client.get(), answer, std::strlen(answer), MSG_NOSIGNAL);
      (void)!::recv(client.get(), room, sizeof room, 0);  // the beginning of the store; the rest is never read
    }
    is_over.wait(false);
  });
  {
    const auto tier = open_or_throw("resp", {{"socket", path}, {"list", "false"}});
    TierUser user(*tier);
    EXPECT_EQ(user.store("key", {"attributes", std::string(64u << 20, 'x'), 9}), -EIO);
  }
  is_over = true;
  is_over.notify_all();
}

// Two thousand million answers in one: the library would take 16 GiB for them.
TEST_F(Resp, AListThatIsTooLongEndsTheConnection) {
  const std::string path = directory_.path() + "/boastful.sock";
  const FileDescriptor door = listen_at(path);
  std::jthread server([&] {
    const FileDescriptor client(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char room[1024];
    for (const std::string_view answer : {"+PONG\r\n", "*2147483647\r\n"})
      if (::recv(client.get(), room, sizeof room, 0) > 0)
        (void)!::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    (void)!::recv(client.get(), room, sizeof room, 0);  // its end
  });
  const auto tier = open_or_throw("resp", {{"socket", path}, {"list", "false"}});
  EXPECT_EQ(TierUser(*tier).lookup("key").result, -EIO);
}

// Three answers to one question: the other two must not become answers to the next question.
TEST_F(Resp, AnswersThatAreTooManyEndTheConnection) {
  const std::string path = directory_.path() + "/talkative.sock";
  const FileDescriptor door = listen_at(path);
  std::jthread server([&] {
    const FileDescriptor client(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char room[1024];
    for (const std::string_view answer : {"+PONG\r\n", "$-1\r\n$-1\r\n$-1\r\n", "-ERR of the second question\r\n"})
      if (::recv(client.get(), room, sizeof room, 0) > 0)
        (void)!::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  });
  const auto tier = open_or_throw("resp", {{"socket", path}, {"list", "false"}});
  TierUser user(*tier);
  EXPECT_EQ(user.lookup("first").result, -ENOENT);
  EXPECT_NE(user.lookup("second").result, -ENOENT) << "an answer to no question was believed";
}

// The list has failed, and three of its answers are still to come: they are none to the questions of the next list.
TEST_F(Resp, TheNextListWaitsForTheAnswersOfAListThatFailed) {
  const std::string path = directory_.path() + "/refusing.sock";
  const FileDescriptor door = listen_at(path);
  std::string early;
  {
    std::jthread server([&] {
      const FileDescriptor client(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char room[4096];
      const auto hear = [&](int flags = 0) { return ::recv(client.get(), room, sizeof room, flags); };
      const auto say = [&](std::string_view text) {
        (void)!::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
      };
      if (hear() > 0) say("+PONG\r\n");
      if (hear() > 0)
        say("*2\r\n$1\r\n0\r\n*4\r\n$7\r\nmaru:h1\r\n$7\r\nmaru:h2\r\n$7\r\nmaru:h3\r\n$7\r\nmaru:h4\r\n");
      if (hear() > 0) say("-BUSY for a moment\r\n");
      // Long enough for several turns of the tier's thread. A machine that is slower finds less.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (const ssize_t bytes = hear(MSG_DONTWAIT); bytes > 0) early.assign(room, size_t(bytes));
      say("$-1\r\n$-1\r\n$-1\r\n");
      while (hear() > 0) say("-ERR over\r\n");
    });
    const auto tier = open_or_throw("resp", {{"socket", path}});
  }
  EXPECT_EQ(early, "");
}

}  // namespace
}  // namespace maru::test
