// What operators see of adapters: marudctl, HTTP and metrics, beside a program that uses the library as it is installed.
#include "maru/adapters.hpp"
#include "tests/adapters/set_fixture.h"

#include <cstring>
#include <fstream>
#include <sstream>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

PoolWish with_http() {
  PoolWish pool;
  pool.more = "\n[http]\n";
  return pool;
}

class AdapterOperators : public ::testing::Test {
 protected:
  AdapterOperators() {
    maru_geometry geometry = {};
    geometry.size = sizeof(geometry);
    EXPECT_EQ(maru_get_geometry(client_, &geometry), 0);
    register_ = "/dev/shm/maru-adapters." + std::to_string(::geteuid()) + ".";
    constexpr char kDigits[] = "0123456789abcdef";
    for (const uint8_t byte : geometry.uuid) register_ += {kDigits[byte >> 4], kDigits[byte & 15]};
    auto opened = Adapters::open(client_);
    EXPECT_TRUE(opened.ok()) << opened.reason();
    adapters_ = std::move(*opened);
    for (const char* name : {"much", "little", "never"}) {
      const std::string folder = marud_.directory().file(name);
      write_adapter(folder, wish_named(name));
      EXPECT_TRUE(adapters_.load(name, folder).ok());
    }
  }
  ~AdapterOperators() override {
    adapters_ = {};
    std::filesystem::remove(register_);
    std::filesystem::remove(register_ + ".totals");
  }

  Adapter use(const char* name, maru_adapter_want want = MARU_ADAPTER_ANY) {
    auto adapter = adapters_.acquire(name, want);
    EXPECT_TRUE(adapter.ok()) << adapter.reason();
    return std::move(*adapter);
  }
  std::string marudctl(std::vector<std::string> words, int status = 0) {
    const std::string said = marud_.directory().file("said");
    std::ofstream(said, std::ios::trunc).close();
    words.insert(words.begin(), {std::getenv("MARU_TEST_MARUDCTL"), "--socket", marud_.socket_path()});
    const auto ended = ChildProcess(words, said).wait();
    EXPECT_TRUE(ended && !ended->by_signal && ended->code == status);
    std::stringstream text;
    text << std::ifstream(said).rdbuf();
    return text.str();
  }
  json list() { return json::parse(marudctl({"--json", "adapters"}), nullptr, false); }
  static json row_of(const json& said, const std::string& name) {
    for (const json& row : said["adapters"])
      if (row["adapter"] == name) return row;
    return {};
  }
  std::string get(const std::string& target) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, marud_.directory().file("http.sock").c_str());
    const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // The socket listens before a thread accepts.
    EXPECT_TRUE(wait_until(
        [&] { return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0; }));
    const std::string request = "GET " + target + " HTTP/1.1\r\nHost: marud\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL), ssize_t(request.size()));
    std::string reply;
    char room[4096];
    for (ssize_t got; (got = ::read(socket.get(), room, sizeof(room))) > 0;) reply.append(room, size_t(got));
    return reply.substr(std::min(reply.size(), reply.find("\r\n\r\n") + 4));
  }

  MarudProcess marud_{{with_http()}};
  TestClient client_{marud_.socket_path()};
  std::string register_;
  Adapters adapters_;
};

TEST_F(AdapterOperators, MarudctlShowsFormsUsesAndPins) {
  const Adapter held = use("much", MARU_ADAPTER_EXACT);
  for (int i = 0; i < 3; ++i) use("much");
  use("little");
  const json said = list();
  ASSERT_TRUE(said.is_object());
  ASSERT_EQ(said["adapters"].size(), 3u);
  EXPECT_EQ(said["adapters"][0]["adapter"], "much");
  const json much = row_of(said, "much"), little = row_of(said, "little"), never = row_of(said, "never");
  EXPECT_EQ(much["form"], "hot");
  EXPECT_EQ(much["uses"], 4);
  EXPECT_EQ(much["pins"], 1);
  EXPECT_EQ(much["rank"], 8);
  EXPECT_EQ(much["uid"], ::geteuid());
  EXPECT_GT(much["pool_bytes"], 0);
  EXPECT_EQ(little["form"], "warm");
  EXPECT_EQ(little["pins"], 0);
  EXPECT_EQ(never["form"], "cold");
  EXPECT_EQ(never["pool_bytes"], 0);
  ASSERT_EQ(said["users"].size(), 1u);
  EXPECT_EQ(said["users"][0]["acquires_hot"], 3);
  EXPECT_EQ(said["users"][0]["acquires_cold"], 2);
  EXPECT_EQ(said["users"][0]["hot_ratio"], 0.6);
  EXPECT_EQ(said["users"][0]["loads"], 2);
  const std::string text = marudctl({"adapters"});
  EXPECT_NE(text.find("little"), std::string::npos) << text;
  EXPECT_NE(text.find("3 adapters, 1 HOT"), std::string::npos) << text;
  EXPECT_NE(text.find("60.0 % of uses found HOT"), std::string::npos) << text;
  const std::string cut = marudctl({"adapters", "--limit", "1"});
  EXPECT_EQ(cut.find("little"), std::string::npos) << cut;
  EXPECT_NE(cut.find("... and more"), std::string::npos) << cut;
}

TEST_F(AdapterOperators, WhatMarudHasEvictedIsSaid) {
  use("much", MARU_ADAPTER_EXACT);
  marud_.ask({{"command", "clear"}});
  EXPECT_EQ(row_of(list(), "much")["form"], "evicted");
}

TEST_F(AdapterOperators, FilesThatAreNoRegistersAreRefused) {
  EXPECT_NE(marudctl({"adapters", marud_.directory().file("nothing")}, 1).find("cannot open the register"),
            std::string::npos);
  const std::string other = marud_.directory().file("other");
  std::ofstream(other) << std::string(8192, 'x');
  EXPECT_NE(marudctl({"adapters", other}).find("is no register"), std::string::npos);
  // Cut off behind its head.
  std::filesystem::copy_file(register_, other, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(other, 4096);
  EXPECT_NE(marudctl({"adapters", other}).find("is damaged"), std::string::npos);
}

TEST_F(AdapterOperators, HttpAndMetricsHaveTheTotals) {
  use("much", MARU_ADAPTER_EXACT);
  use("much");
  const json said = json::parse(get("/adapters?pool=default"), nullptr, false);
  ASSERT_TRUE(said.is_object() && said.contains("adapters")) << said.dump();
  ASSERT_EQ(said["adapters"].size(), 1u);
  EXPECT_EQ(said["adapters"][0]["pool"], "default");
  EXPECT_EQ(said["adapters"][0]["hot_adapters"], 1);
  EXPECT_EQ(said["adapters"][0]["hot_ratio"], 0.5);
  const std::string metrics = get("/metrics"), labels = "pool=\"default\",uid=\"" + std::to_string(::geteuid()) + "\"";
  for (const std::string& line :
       {"maru_adapter_acquires_total{" + labels + ",tier=\"hot\"} 1", "maru_adapters_registered{" + labels + "} 3",
        "maru_adapter_loads_total{" + labels + "} 1", std::string("# TYPE maru_adapter_promotions_total counter")})
    EXPECT_NE(metrics.find(line + "\n"), std::string::npos) << line;
}

// Another user's file under this user's name, or this user's under another, is not shown.
TEST_F(AdapterOperators, OnlyFilesOfTheUserThatTheyNameCount) {
  const size_t at = register_.find("adapters.") + 9;
  const std::string other =
      register_.substr(0, at) + "4294967000" + register_.substr(register_.find('.', at)) + ".totals";
  std::filesystem::copy_file(register_ + ".totals", other);
  const json said = json::parse(get("/adapters"), nullptr, false);
  std::filesystem::remove(other);
  ASSERT_EQ(said["adapters"].size(), 1u) << said.dump();
}

}  // namespace
}  // namespace maru::test
