// Administration of real processes' blocks: who pins what and for how long, one key in full, trees that go, and marudctl
// itself, also over a file.
#include "tests/process/puppet.h"
#include "tests/support/child_process.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

class Admin : public ::testing::Test {
 protected:
  // Runs marudctl; what it prints is in output_.
  int marudctl(std::vector<std::string> arguments, const MarudProcess& marud) {
    const char* program = std::getenv("MARU_TEST_MARUDCTL");
    if (!program) throw std::runtime_error("MARU_TEST_MARUDCTL must name the marudctl to test");
    const std::string path = marud.directory().file("marudctl.out");
    ::unlink(path.c_str());
    // Without a terminal, whoever runs the tests.
    arguments.insert(arguments.begin(), {"/bin/sh", "-c", "exec \"$@\" < /dev/null", "sh", program, "--timeout-ms",
                                         "120000", "--socket", marud.socket_path()});
    const auto ended = ChildProcess(arguments, path).wait();
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    output_ = text.str();
    return ended && !ended->by_signal ? ended->code : -1;
  }
  static size_t count_of(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
    return count;
  }
  std::string output_;
};

// Each slot of each lane is read for that.
TEST_F(Admin, ClientsThatMayHoldManyPinsAreListedInParts) {
  MarudProcess marud({PoolWish{.bytes = 64u << 20, .pins = 1u << 16}});
  std::vector<std::unique_ptr<TestClient>> clients;
  while (clients.size() < 5) clients.push_back(std::make_unique<TestClient>(marud.socket_path()));
  maru_view view;
  ASSERT_EQ(clients[0]->store("held", "payload"), 0);
  ASSERT_EQ(clients[4]->retrieve("held", &view), 0);
  size_t rows = 0, pins = 0, parts = 0;
  json request = {{"command", "clients"}};
  for (json next; parts == 0 || !next.is_null(); ++parts) {
    const json reply = marud.ask(request);
    ASSERT_FALSE(reply.at("clients").empty());
    EXPECT_LE(reply.at("clients").size(), 1u) << "a lane has more slots than a part reads";
    rows += reply.at("clients").size();
    for (const json& client : reply.at("clients")) pins += client.at("pins").get<size_t>();
    request["cursor"] = next = reply.value("next", json());
  }
  EXPECT_EQ(parts, 5u);
  EXPECT_EQ(rows, clients.size());
  EXPECT_EQ(pins, 1u);
  EXPECT_EQ(marudctl({"--json", "clients"}, marud), 0);
  EXPECT_EQ(json::parse(output_).at("clients").size(), clients.size()) << "marudctl asks on";
}

TEST_F(Admin, OfManyWhoPinABlockSomeAreNamedAndTheRestIsCounted) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit most = {before.rlim_max, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &most), 0);
  {
    MarudProcess marud({PoolWish{.lanes = 256, .pins = 64}});
    std::vector<std::unique_ptr<TestClient>> clients;
    while (clients.size() < 203)
      clients.push_back(std::make_unique<TestClient>(marud.socket_path(), "default", far_too_long_ms(),
                                                     MARU_ATTACH_NO_SESSION_THREAD));
    ASSERT_EQ(clients[0]->store("popular", "payload"), 0);
    maru_view view;
    for (const auto& client : clients) ASSERT_EQ(client->retrieve("popular", &view), 0);
    EXPECT_EQ(marudctl({"blocks", "popular"}, marud), 0) << output_;
    EXPECT_NE(output_.find("\nand 3 more that pin it\n"), std::string::npos) << output_;
    EXPECT_EQ(marudctl({"--json", "blocks", "popular"}, marud), 0) << output_;
    EXPECT_EQ(json::parse(output_).at("pinned_by").size(), 200u);
    EXPECT_EQ(json::parse(output_).at("pinned_by_count"), clients.size());
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Text as it is, other bytes as hexadecimal digits, much of either cut with a note; also of an incomplete character at the cut.
TEST_F(Admin, MetadataIsShownAsTextOrAsDigits) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  const auto store = [&](const char* name, const std::string& text) {
    const maru_metadata metadata = {text.data(), uint32_t(text.size()), 0};
    maru_store_options options{};
    options.size = sizeof(options);
    options.metadata = &metadata;
    const maru_key key = key_of(name);
    return maru_store_copy(client, &key, "x", 1, &options, nullptr);
  };
  const auto shown = [&](const char* name) {
    EXPECT_EQ(marudctl({"--json", "blocks", name}, marud), 0) << output_;
    return json::parse(output_);
  };
  std::string euros;
  for (int i = 0; i < 400; ++i) euros += "\u20ac";  // 1,200 bytes, of which the 1,024th is inside a character
  ASSERT_EQ(store("text", "{\"layers\": [0, 3]}\n"), 0);
  ASSERT_EQ(store("bytes", std::string("\0\x01\xff", 3)), 0);
  ASSERT_EQ(store("like digits", "0x01"), 0);
  ASSERT_EQ(store("long", std::string(65'536, 'm')), 0);
  ASSERT_EQ(store("euros", euros), 0);
  ASSERT_EQ(store("none", ""), 0);
  EXPECT_EQ(shown("text").at("metadata"), "{\"layers\": [0, 3]}\n");
  EXPECT_EQ(shown("text").at("metadata_bytes"), 19);
  EXPECT_EQ(shown("text").at("length_bytes"), 1);
  EXPECT_FALSE(shown("text").contains("metadata_shown_bytes"));
  EXPECT_EQ(shown("bytes").at("metadata"), "0x0001ff");
  EXPECT_EQ(shown("like digits").at("metadata"), "0x30783031");
  EXPECT_EQ(shown("long").at("metadata"), std::string(1024, 'm'));
  EXPECT_EQ(shown("long").at("metadata_shown_bytes"), 1024);
  EXPECT_EQ(shown("euros").at("metadata"), euros.substr(0, 1023));
  EXPECT_FALSE(shown("none").contains("metadata"));
  EXPECT_EQ(marudctl({"blocks", "text"}, marud), 0) << output_;
  EXPECT_NE(output_.find("metadata size  19 B"), std::string::npos) << output_;
  EXPECT_NE(output_.find("metadata       {\"layers\": [0, 3]}"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"blocks", "long"}, marud), 0) << output_;
  EXPECT_NE(output_.find("metadata is cut: the first 1 KiB of 64 KiB"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"--json", "blocks"}, marud), 0) << output_;
  const json listed = json::parse(output_);
  for (const json& row : listed.at("blocks")) EXPECT_FALSE(row.contains("metadata")) << row;
}

TEST_F(Admin, PinsSayWhoHoldsThemAndForHowLong) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("held", "payload"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("held", &view), 0);
  json pin;
  // Ages are looked at now and then.
  ASSERT_TRUE(wait_until([&] {
    const json pins = marud.ask({{"command", "pins"}}).at("pins");
    if (pins.size() != 1) return false;
    pin = pins[0];
    return !pin.at("age_ms").is_null() && pin.at("age_ms") > 0;
  })) << pin;
  EXPECT_EQ(pin.at("key"), "held");
  EXPECT_EQ(pin.at("pid"), ::getpid());
  EXPECT_EQ(pin.at("uid"), ::getuid());
  EXPECT_FALSE(pin.at("command").get<std::string>().empty());
  EXPECT_EQ(client.release(view), 0);
  EXPECT_TRUE(marud.ask({{"command", "pins"}}).at("pins").empty());
}

TEST_F(Admin, TreesGoAsFarAsNobodyHoldsThem) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  for (const auto& [key, parent] :
       {std::pair{"root", ""}, {"left", "root"}, {"leaf", "left"}, {"right", "root"}, {"other", ""}})
    ASSERT_EQ(client.store(key, key, parent), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("right", &view), 0);
  json reply = marud.ask({{"command", "delete_tree"}, {"key", "root"}});
  EXPECT_EQ(reply.value("deleted_blocks", 0), 2) << reply;
  EXPECT_EQ(client.exists("right"), 1);
  EXPECT_EQ(client.exists("root"), 1) << "its child is held";
  EXPECT_EQ(client.exists("leaf"), 0);
  EXPECT_EQ(client.release(view), 0);
  EXPECT_EQ(marudctl({"delete-tree", "root"}, marud), 0) << output_;
  EXPECT_EQ(client.exists("root"), 0);
  EXPECT_EQ(client.exists("other"), 1);
  EXPECT_EQ(marudctl({"delete-tree", "root"}, marud), 1) << output_;
  EXPECT_TRUE(marud.has_logged("\"delete_tree\" on pool \"default\": {\"deleted_blocks\":2"))
      << "the consequence is logged";
}

TEST_F(Admin, ABlockOfATenantIsShownInFull) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  uint64_t tenant = 0;
  ASSERT_EQ(maru_tenant(client, "salt", 4, &tenant), 0);
  const maru_key key = key_of("k", tenant);
  ASSERT_EQ(maru_store_copy(client, &key, "x", 1, nullptr, nullptr), 0);
  EXPECT_EQ(marudctl({"blocks", "k"}, marud), 1);
  const std::string id = std::to_string(tenant);
  for (const std::string& named : {id, "id:" + id, std::string("salt")}) {
    EXPECT_EQ(marudctl({"--json", "blocks", "k", "--tenant", named}, marud), 0) << output_;
    EXPECT_EQ(json::parse(output_).at("tenant"), id) << "text: a number would lose its last digits elsewhere";
    EXPECT_FALSE(json::parse(output_).contains("tenant_name")) << "nobody has told marud";
    EXPECT_EQ(marudctl({"--json", "blocks", "--tenant", named}, marud), 0) << output_;
    EXPECT_EQ(json::parse(output_).at("blocks").size(), 1u) << named;
  }
  EXPECT_EQ(marud.ask({{"command", "blocks"}, {"tenant", tenant}}).at("blocks").size(), 1u) << "the number itself";
  EXPECT_EQ(marudctl({"quota", "set", "id:" + id, "--soft", "1GiB"}, marud), 1) << output_;
  EXPECT_NE(output_.find("nobody has told marud the name of this tenant, by which"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"--json", "quota", "set", "salt", "--soft", "1GiB"}, marud), 0) << output_;
  EXPECT_EQ(json::parse(output_).at("id"), id);
  EXPECT_EQ(marudctl({"--json", "quota", "get", "id:" + id}, marud), 0) << output_;
  EXPECT_EQ(json::parse(output_).at("tenant"), "salt");
  EXPECT_EQ(marudctl({"--json", "blocks", "k", "--tenant", "salt"}, marud), 0) << output_;
  EXPECT_EQ(json::parse(output_).at("tenant_name"), "salt");
  EXPECT_EQ(marudctl({"blocks"}, marud), 0) << output_;
  EXPECT_NE(output_.find("  salt\n"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"blocks", "--tenant", "other"}, marud), 0) << output_;
  EXPECT_EQ(marudctl({"blocks", "--tenant", std::string(65, 'x')}, marud), 1) << output_;
}

TEST_F(Admin, TheStatusOfSeveralPoolsSaysOfEachWhatItHolds) {
  PoolWish other;
  other.name = "other";
  MarudProcess marud({PoolWish{}, other});
  TestClient one(marud.socket_path()), two(marud.socket_path(), "other");
  ASSERT_EQ(one.store("a", "text"), 0);
  ASSERT_EQ(two.store("a", "text"), 0);
  ASSERT_EQ(two.store("b", "text"), 0);
  EXPECT_EQ(marud.pool_status("default").at("blocks"), 1);
  EXPECT_EQ(marud.pool_status("other").at("blocks"), 2);
  const json alone = marud.ask({{"command", "status"}, {"pool", "other"}}).at("pools");
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].at("blocks"), 2);
  const std::string metrics = marud.ask({{"command", "metrics"}, {"pool", "other"}}).at("metrics");
  EXPECT_NE(metrics.find("maru_blocks{pool=\"other\"} 2\n"), std::string::npos) << metrics;
}

TEST_F(Admin, APoolThatIsNotNamedIsNotTouched) {
  PoolWish other;
  other.name = "other";
  MarudProcess marud({PoolWish{}, other});
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "v"), 0);
  EXPECT_EQ(marud.ask({{"command", "clear"}, {"pool", 5}}).value("refused", 0), EINVAL);
  EXPECT_EQ(marud.ask({{"command", "clear"}, {"pool", "other"}}).value("deleted_blocks", -1), 0);
  EXPECT_EQ(client.exists("k"), 1);
  EXPECT_EQ(marud.ask({{"command", "status"}, {"pool", "other"}}).at("pools").size(), 1u);
  EXPECT_EQ(marudctl({"--pool", "absent", "status"}, marud), 1) << output_;
  EXPECT_EQ(marudctl({"--pool", "default", "clear", "--yes"}, marud), 0) << output_;
  EXPECT_EQ(client.exists("k"), 0);
}

TEST_F(Admin, FilesAreChecked) {
  PoolWish pool;
  pool.in_file = true;
  MarudProcess marud({pool});
  {
    TestClient client(marud.socket_path());
    for (int i = 0; i < 100; ++i) ASSERT_EQ(client.store("k" + std::to_string(i), "v", i % 10 ? "k0" : ""), 0);
    EXPECT_EQ(marudctl({"check", "--quiesce"}, marud), 0) << output_;
    EXPECT_EQ(marudctl({"check"}, marud), 0) << output_;
  }
  EXPECT_EQ(marudctl({"check", "--file", marud.pool_file("default")}, marud), 0) << output_;
  EXPECT_NE(output_.find("a marud serves it"), std::string::npos) << output_;
  marud.stop();
  EXPECT_EQ(marudctl({"check", "--file", marud.pool_file("default")}, marud), 0) << output_;
  EXPECT_EQ(output_.find("a marud serves it"), std::string::npos) << output_;
  // Half of it is not a pool any more.
  ASSERT_EQ(::truncate(marud.pool_file("default").c_str(), off_t(pool.bytes / 2)), 0);
  EXPECT_EQ(marudctl({"check", "--file", marud.pool_file("default")}, marud), 1) << output_;
  EXPECT_NE(
      output_.find("found " + std::to_string(pool.bytes / 2) + " bytes of a pool of " + std::to_string(pool.bytes)),
      std::string::npos)
      << output_;
  EXPECT_NE(output_.find("bring the whole file back"), std::string::npos) << output_;
}

TEST_F(Admin, TwoFilesAreCheckedTogether) {
  PoolWish pool;
  pool.in_two_files = true;
  MarudProcess marud({pool});
  {
    TestClient client(marud.socket_path());
    for (int i = 0; i < 100; ++i) ASSERT_EQ(client.store("k" + std::to_string(i), "v", i % 10 ? "k0" : ""), 0);
  }
  const std::string control = marud.control_file("default"), pages = marud.pool_file("default");
  EXPECT_EQ(marudctl({"check", "--file", control, "--pages", pages}, marud), 0) << output_;
  EXPECT_NE(output_.find("a marud serves it"), std::string::npos) << output_;
  marud.stop();
  EXPECT_EQ(marudctl({"check", "--file", control, "--pages", pages}, marud), 0) << output_;
  EXPECT_EQ(marudctl({"check", "--file", control}, marud), 1);
  EXPECT_NE(output_.find("name that with --pages"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"check", "--file", pages}, marud), 1);
  EXPECT_NE(output_.find("expected its control region"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"check", "--pages", pages}, marud), 2) << output_;
  EXPECT_EQ(marudctl({"check", "--file", control, "--pages", control}, marud), 1) << output_;
  const auto pages_bytes = off_t(std::filesystem::file_size(pages));
  ASSERT_EQ(::truncate(pages.c_str(), off_t(pool.bytes / 2)), 0);
  EXPECT_EQ(marudctl({"check", "--file", control, "--pages", pages}, marud), 1);
  EXPECT_NE(output_.find("as its label says"), std::string::npos) << output_;
  ASSERT_EQ(::truncate(pages.c_str(), pages_bytes), 0);
  const uint64_t control_bytes = pool.bytes - uint64_t(pages_bytes);
  ASSERT_EQ(::truncate(control.c_str(), off_t(control_bytes - 4096)), 0);
  EXPECT_EQ(marudctl({"check", "--file", control, "--pages", pages}, marud), 1);
  EXPECT_NE(output_.find("expected the " + std::to_string(control_bytes) + " that the pool has beside its pages"),
            std::string::npos)
      << output_;
}

TEST_F(Admin, OverduePinsAreLoggedOnceAndStay) {
  PoolWish wish;
  wish.more = "pin_overdue_ms = 50\n";
  MarudProcess marud({wish});
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("first", "payload"), 0);
  ASSERT_EQ(client.store("second", "payload"), 0);
  maru_view first, second;
  ASSERT_EQ(client.retrieve("first", &first), 0);
  ASSERT_TRUE(wait_until([&] { return marud.pool_status().at("pins_overdue") == 1; }));
  EXPECT_TRUE(marud.has_logged("has pinned block first of pool \"default\""));
  EXPECT_EQ(marudctl({"pins", "--overdue"}, marud), 0) << output_;
  EXPECT_NE(output_.find("first"), std::string::npos) << output_;
  json clients = marud.ask({{"command", "clients"}}).at("clients");
  ASSERT_EQ(clients.size(), 1u);
  EXPECT_EQ(clients[0].at("pins_overdue"), 1);
  EXPECT_GE(clients[0].at("oldest_pin_ms"), 50);
  // Many looks later.
  ASSERT_EQ(client.retrieve("second", &second), 0);
  ASSERT_TRUE(wait_until([&] { return marud.pool_status().at("pins_overdue") == 2; }));
  EXPECT_TRUE(marud.has_logged("has pinned block second"));
  EXPECT_EQ(count_of(marud.log(), "has pinned block first"), 1u) << marud.log();
  const std::string long_key(300, 'x');
  maru_view third;
  ASSERT_EQ(client.store(long_key, "payload"), 0);
  ASSERT_EQ(client.retrieve(long_key, &third), 0);
  ASSERT_TRUE(wait_until([&] { return marud.pool_status().at("pins_overdue") == 3; }));
  EXPECT_TRUE(marud.has_logged("has pinned block " + std::string(128, 'x') + "... of pool"));
  EXPECT_EQ(client.release(third), 0);
  marud.ask({{"command", "evict"}, {"pages", 10000}});
  EXPECT_EQ(client.exists("first"), 1);
  EXPECT_EQ(std::string(static_cast<const char*>(first.data), first.bytes), "payload");
  EXPECT_EQ(client.release(first), 0);
  EXPECT_EQ(client.release(second), 0);
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("pins_overdue") == 0; }));
  EXPECT_EQ(marud.pool_status().at("pins_overdue_total"), 3);
  EXPECT_EQ(marudctl({"pins", "--overdue"}, marud), 0);
  EXPECT_EQ(output_, "no pin is overdue\n");
}

TEST_F(Admin, AFencedClientEndsAndTheOthersLive) {
  MarudProcess marud;
  Puppet stuck(marud.socket_path()), other(marud.socket_path());
  ASSERT_EQ(stuck.store("theirs", "payload"), 0);
  ASSERT_EQ(stuck.retrieve("theirs").at("result"), 0);
  ASSERT_EQ(other.retrieve("theirs").at("result"), 0);
  const std::string pid = std::to_string(stuck.process().pid());
  const auto pins = [&] { return marud.ask({{"command", "pins"}}).at("pins"); };
  ASSERT_EQ(pins().size(), 2u);

  EXPECT_EQ(marudctl({"client", "fence", "--pid", pid}, marud), 2) << "nobody was asked";
  EXPECT_NE(output_.find("--yes"), std::string::npos) << output_;
  EXPECT_TRUE(stuck.process().is_running());
  EXPECT_EQ(marudctl({"client", "fence"}, marud), 2) << output_;
  EXPECT_EQ(marudctl({"client", "fence", "3", "--pid", pid}, marud), 2) << output_;
  EXPECT_EQ(marudctl({"client", "fence", "--pid", std::to_string(::getpid()), "--yes"}, marud), 1)
      << "the test is no client";
  EXPECT_NE(output_.find("is no client"), std::string::npos) << output_;

  EXPECT_EQ(marudctl({"client", "fence", "--pid", pid, "--yes"}, marud), 0) << output_;
  EXPECT_NE(output_.find("was ended"), std::string::npos) << output_;
  EXPECT_NE(output_.find("is taken back: 1 pin, 1 region;"), std::string::npos) << output_;
  const auto ended = stuck.process().wait();
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->by_signal && ended->code == SIGKILL) << ended->text();
  EXPECT_TRUE(marud.has_logged("asked to fence process " + pid));
  ASSERT_TRUE(wait_until([&] { return pins().size() == 1; })) << pins();
  EXPECT_EQ(pins()[0].at("pid"), other.process().pid());
  EXPECT_EQ(other.ask({{"do", "read held"}, {"key", "theirs"}}).at("text"), "payload");
  EXPECT_EQ(other.exists("theirs"), 1) << "what it had stored stays";
  EXPECT_EQ(marudctl({"client", "fence", "--pid", pid, "--yes"}, marud), 1);
  EXPECT_NE(output_.find("it has ended"), std::string::npos) << output_;

  const int lane = other.result({{"do", "lane"}});
  EXPECT_EQ(marudctl({"--json", "client", "fence", std::to_string(lane), "--yes"}, marud), 0) << output_;
  const json fenced = json::parse(output_);
  EXPECT_EQ(fenced.at("pid"), other.process().pid());
  EXPECT_EQ(fenced.at("taken_back"), true);
  ASSERT_EQ(fenced.at("lanes").size(), 1u);
  EXPECT_EQ(fenced.at("lanes")[0].at("pins"), 1);
  EXPECT_TRUE(other.process().wait().has_value());
  EXPECT_TRUE(wait_until([&] { return pins().empty(); }));
}

// The number of a process says nothing about which process it was.
TEST_F(Admin, AFenceMeansOneLifeOfAProcess) {
  MarudProcess marud;
  Puppet puppet(marud.socket_path());
  const json client = marud.ask({{"command", "clients"}}).at("clients")[0];
  json request = {{"command", "client.fence"},
                  {"pid", client.at("pid")},
                  {"start_time", client.at("start_time").get<uint64_t>() + 1}};
  EXPECT_EQ(marud.ask(request).value("refused", 0), ESRCH);
  EXPECT_EQ(marud.ask({{"command", "client.fence"}}).value("refused", 0), EINVAL);
  EXPECT_TRUE(puppet.process().is_running());
}

TEST_F(Admin, PoliciesAreChangedWithoutLosingBlocks) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  for (int i = 0; i < 50; ++i) ASSERT_EQ(client.store("k" + std::to_string(i), "v"), 0);
  EXPECT_EQ(marudctl({"policy", "show"}, marud), 0);
  EXPECT_NE(output_.find("policy      lru\n"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"policy", "set", "s3fifo", "--option", "probation=0.25"}, marud), 0) << output_;
  EXPECT_NE(output_.find("was lru and is s3fifo (probation=0.25)"), std::string::npos) << output_;
  EXPECT_NE(output_.find("until marud restarts"), std::string::npos) << output_;
  EXPECT_NE(output_.find("policy_options = { probation = 0.25 }"), std::string::npos) << output_;
  EXPECT_EQ(marud.pool_status().at("policy"), "s3fifo");
  EXPECT_EQ(marud.pool_status().at("policy_options").at("probation"), "0.25");
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.exists("k" + std::to_string(i)), 1);
  EXPECT_EQ(marudctl({"policy", "set", "guess"}, marud), 1);
  EXPECT_NE(output_.find("guess"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"policy", "set", "s3fifo", "--option", "probation=2"}, marud), 1) << output_;
  EXPECT_EQ(marudctl({"policy", "set", "s3fifo", "--option", "probation"}, marud), 2) << output_;
  EXPECT_EQ(marudctl({"policy"}, marud), 2);
  EXPECT_NE(output_.find("show, set"), std::string::npos) << output_;
  EXPECT_EQ(marud.pool_status().at("policy"), "s3fifo") << "a refusal changes nothing";
}

TEST_F(Admin, QuotasAreSetAndShown) {
  MarudProcess marud;
  EXPECT_EQ(marudctl({"quota", "set", "alice", "--soft", "1MiB", "--hard", "none"}, marud), 0) << output_;
  EXPECT_EQ(marudctl({"quota", "list"}, marud), 0);
  EXPECT_NE(output_.find("alice"), std::string::npos) << output_;
  EXPECT_NE(output_.find("mode: any"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"--json", "quota", "get", "alice"}, marud), 0) << output_;
  EXPECT_EQ(json::parse(output_).at("soft_bytes"), 1u << 20);
  EXPECT_EQ(json::parse(output_).at("hard_bytes"), 0);
  EXPECT_EQ(marudctl({"quota", "set", "alice"}, marud), 2) << output_;
  EXPECT_EQ(marudctl({"quota", "set", "alice", "--soft", "much"}, marud), 2) << output_;
  EXPECT_EQ(marudctl({"quota", "set", "alice", "--soft", "2MiB", "--hard", "1MiB"}, marud), 1);
  EXPECT_NE(output_.find("soft limit 2 MiB, expected at most the hard one, which is 1 MiB"), std::string::npos)
      << output_;
  EXPECT_EQ(marudctl({"quota", "default", "--hard", "2MiB"}, marud), 0);
  EXPECT_NE(output_.find("soft no limit, hard 2 MiB"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"quota", "mode", "listed"}, marud), 0);
  EXPECT_NE(output_.find("mode: listed"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"quota", "mode", "some"}, marud), 2);
  EXPECT_EQ(marudctl({"--pool", "nosuch", "clients"}, marud), 1);
  EXPECT_NE(output_.find("expected one of default"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"quota", "remove", "alice"}, marud), 0) << output_;
  EXPECT_EQ(marudctl({"quota", "remove", "alice"}, marud), 1) << output_;
}

// What a file system has no room for is not promised, and a failed beginning leaves nothing behind.
TEST_F(Admin, AFileThatDoesNotFitIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("pool"), output = directory.file("marud.log");
  constexpr int kServed = -2;
  const auto run = [&](const std::vector<std::string>& options) {
    ::unlink(output.c_str());
    std::vector<std::string> command = {marud_program(), "--socket", directory.file("marud.sock")};
    command.insert(command.end(), options.begin(), options.end());
    const auto ended = ChildProcess(command, output).wait(far_too_long() / 4);
    std::stringstream text;
    text << std::ifstream(output).rdbuf();
    output_ = text.str();
    if (!ended) return kServed;
    return ended->by_signal ? -1 : ended->code;
  };
  struct statvfs room = {};
  ASSERT_EQ(::statvfs(directory.path().c_str(), &room), 0);
  if (room.f_blocks == 0) GTEST_SKIP() << "this file system has no limit";
  const uint64_t gib = (uint64_t(room.f_bfree) * room.f_frsize >> 30) + 2;
  EXPECT_EQ(run({"--file", path, "--size", std::to_string(gib) + "GiB", "--lanes", "2"}), 1);
  EXPECT_NE(output_.find("make room"), std::string::npos) << output_;
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the file was left behind";
  // Each of two would fit alone.
  const std::string control = directory.file("control"), config = directory.file("marud.toml");
  // Other tests free memory meanwhile: a marud that served since then proves nothing.
  int code = kServed;
  for (int times = 0; times < 3 && code == kServed; ++times) {
    for (const std::string& left : {path, control, directory.file("state")}) std::filesystem::remove_all(left);
    ASSERT_EQ(::statvfs(directory.path().c_str(), &room), 0);
    const uint64_t mib = (uint64_t(room.f_bfree) * room.f_frsize >> 20) + 64;
    std::ofstream(config) << "[[pool]]\nname = \"default\"\nbackend = \"file\"\npath = \"" << path
                          << "\"\ncontrol_path = \"" << control << "\"\nsize = \"" << mib << "MiB\"\n";
    code = run({"--config", config, "--state-dir", directory.file("state")});
  }
  EXPECT_EQ(code, 1);
  EXPECT_NE(output_.find("make room"), std::string::npos) << output_;
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the file was left behind";
  EXPECT_NE(::access(control.c_str(), F_OK), 0) << "the file was left behind";
}

// A client that gave up waiting knows nothing of the lane that it is given afterwards.
TEST_F(Admin, AMissingConfirmationIsAWrongCommandLine) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  EXPECT_EQ(marudctl({"clear"}, marud), 2) << output_;
  EXPECT_EQ(marudctl({"device", "remove", "default"}, marud), 2) << output_;
  EXPECT_NE(output_.find("confirm with --yes"), std::string::npos) << output_;
  EXPECT_EQ(marudctl({"device", "remove", "nobody"}, marud), 1) << output_;
  EXPECT_EQ(client.text("k"), "text");
}

TEST_F(Admin, ALaneThatNobodyLearnedOfIsFreeAgain) {
  MarudProcess marud;
  marud.suspend();
  maru_attach_options options = {};
  options.size = sizeof(options);
  options.socket_path = marud.socket_path().c_str();
  options.timeout_ms = 20;
  for (int i = 0; i < 3; ++i) {
    maru_client* client = nullptr;
    EXPECT_EQ(maru_attach(&options, &client), -ETIMEDOUT);
  }
  marud.resume();
  EXPECT_TRUE(marud.has_logged("it never learned of lane"));
  EXPECT_TRUE(wait_until([&] { return marud.ask({{"command", "clients"}}).at("clients").empty(); }))
      << marud.ask({{"command", "clients"}});
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("lanes").at("live") == 0; }));
}

// The records of two marud would be mixed up, and the memory of one taken for lost.
TEST_F(Admin, ASecondMarudDoesNotShareTheStateDirectory) {
  MarudProcess marud;
  const std::string output = marud.directory().file("second.log");
  ChildProcess second({marud_program(), "--memory", "1GiB", "--socket", marud.directory().file("second.sock"),
                       "--state-dir", marud.directory().file("state")},
                      output);
  const auto ended = second.wait();
  ASSERT_TRUE(ended && !ended->by_signal);
  EXPECT_EQ(ended->code, 1);
  std::stringstream text;
  text << std::ifstream(output).rdbuf();
  EXPECT_NE(text.str().find("another marud does"), std::string::npos) << text.str();
}

}  // namespace
}  // namespace maru::test
