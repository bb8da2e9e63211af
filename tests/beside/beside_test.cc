// The room that programs beside marud share.
#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/beside/http_server.h"
#include "daemon/beside/program.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wait_until.h"

#include <arpa/inet.h>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace maru::daemon::beside {
namespace {

using test::TemporaryDirectory;

// -- handlers ---------------------------------------------------------------------------------------------------------

// Whether the kernel has put this process's thread to sleep.
bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string number, name, state;
  file >> number >> name >> state;
  return state == "S";
}

// A call hangs in the handler, and the handler's owner wants to end. Later calls wait for the owner: otherwise the owner would
// wait as long as there is a call at any time.
TEST(HttpHandlers, CallsThatComeAfterTheEndOfAHandlerDoNotHoldItUp) {
  HttpHandlers handlers;
  std::atomic<int> calls = 0;
  std::promise<void> may_end;
  const auto gate = may_end.get_future().share();
  handlers.set([&, gate](const HttpCall&) -> std::optional<HttpReply> {
    ++calls;
    gate.wait();
    return HttpReply();
  });
  const auto run_and_sleep = [](std::atomic<pid_t>& id, const std::function<void()>& work) {
    std::jthread thread([&id, work] {
      id = ::gettid();
      work();
    });
    EXPECT_TRUE(test::wait_until([&] { return id != 0 && is_asleep(id); }));
    return thread;
  };
  std::atomic<pid_t> ids[3] = {};
  std::optional<HttpReply> late = HttpReply();
  {
    const std::jthread hanging = run_and_sleep(ids[0], [&] { (void)handlers.call({}); });
    const std::jthread owner = run_and_sleep(ids[1], [&] { handlers.set({}); });
    const std::jthread later = run_and_sleep(ids[2], [&] { late = handlers.call({}); });
    EXPECT_EQ(calls, 1) << "a later call went before the owner";
    may_end.set_value();
  }
  EXPECT_FALSE(late) << "the handler has ended";
  EXPECT_EQ(calls, 1);
}

// -- numbers ----------------------------------------------------------------------------------------------------------

TEST(Counters, AreTextThatPrometheusReads) {
  Counters counters;
  counters.counter("maru_x_sent_total", "What was sent.", {{"stream", "a\"b\\c\nd"}}).add(3);
  counters.gauge("maru_x_waiting", "What waits.").set(7);
  counters.counter("maru_x_sent_total", "What was sent.", {{"stream", "other"}}).add();
  EXPECT_EQ(counters.text(),
            "# HELP maru_x_sent_total What was sent.\n# TYPE maru_x_sent_total counter\n"
            "maru_x_sent_total{stream=\"a\\\"b\\\\c\\nd\"} 3\nmaru_x_sent_total{stream=\"other\"} 1\n"
            "# HELP maru_x_waiting What waits.\n# TYPE maru_x_waiting gauge\nmaru_x_waiting 7\n");
}

TEST(Counters, OfOneNameAndLabelsAreOne) {
  Counters counters;
  counters.counter("maru_x_total", "X.", {{"a", "1"}}).add(2);
  counters.counter("maru_x_total", "X.", {{"a", "1"}}).add(3);
  EXPECT_EQ(counters.counter("maru_x_total", "X.", {{"a", "1"}}).value(), 5u);
}

TEST(Counters, LoseNothingOfManyThreads) {
  Counters counters;
  constexpr int kThreads = 4, kEach = 10'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) counters.counter("maru_x_total", "X.").add();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters.counter("maru_x_total", "X.").value(), uint64_t(kThreads) * kEach);
}

TEST(Durations, AreBucketsThatAddUp) {
  Counters counters;
  Durations& durations = counters.durations("maru_x_seconds", "X.", {{"a", "1"}});
  for (const double seconds : {0.000'005, 0.05, 0.05, 1000.0}) durations.add(seconds);
  const std::string text = counters.text();
  for (const char* line : {"maru_x_seconds_bucket{a=\"1\",le=\"1e-05\"} 1\n", "le=\"0.01\"} 1\n", "le=\"0.1\"} 3\n",
                           "le=\"100\"} 3\n", "le=\"+Inf\"} 4\n", "maru_x_seconds_count{a=\"1\"} 4\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

// -- health -----------------------------------------------------------------------------------------------------------

TEST(Health, TellsEachTroubleOnce) {
  Health health;
  EXPECT_EQ(health.json(), R"({"reasons":[],"status":"healthy"})");
  EXPECT_TRUE(health.set("pool a", "it is gone"));
  EXPECT_FALSE(health.set("pool a", "it is gone"));
  EXPECT_EQ(health.json(), R"({"reasons":["pool a: it is gone"],"status":"degraded"})");
  EXPECT_EQ(health.http_status(), 200);
  health.set("all", "nothing works", Health::Weight::kUnhealthy);
  EXPECT_EQ(health.http_status(), 503);
  EXPECT_TRUE(health.clear("all"));
  EXPECT_TRUE(health.clear("pool a"));
  EXPECT_FALSE(health.clear("pool a"));
  EXPECT_EQ(health.http_status(), 200);
}

// -- HTTP -------------------------------------------------------------------------------------------------------------

std::string talk(int socket, const std::string& request) {
  EXPECT_EQ(::send(socket, request.data(), request.size(), MSG_NOSIGNAL), ssize_t(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t got; (got = ::recv(socket, bytes, sizeof(bytes), 0)) > 0;) answer.append(bytes, size_t(got));
  return answer;
}

std::string ask_tcp(const std::string& address, const std::string& method, const std::string& path) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(uint16_t(std::stoi(address.substr(address.rfind(':') + 1))));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  return talk(socket.get(), method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

std::string ask_unix(const std::string& file, const std::string& path, const std::string& method = "GET",
                     const std::string& body = {}) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un where = {};
  where.sun_family = AF_UNIX;
  std::strncpy(where.sun_path, file.c_str(), sizeof(where.sun_path) - 1);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  return talk(socket.get(), method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body);
}

TEST(Http, AnswersOnBothSockets) {
  TemporaryDirectory directory;
  Counters counters;
  counters.counter("maru_x_total", "X.").add(42);
  Health health;
  HttpHandlers handlers;
  const std::string path = directory.file("http.sock");
  auto server = HttpServer::start({path, "127.0.0.1:0"}, counters, health, handlers);
  ASSERT_TRUE(server) << server.error().text();
  const std::string& address = (*server)->tcp_address();
  EXPECT_NE(ask_tcp(address, "GET", "/metrics").find("maru_x_total 42\n"), std::string::npos);
  EXPECT_NE(ask_unix(path, "/metrics").find("maru_x_total 42\n"), std::string::npos);
  EXPECT_NE(ask_tcp(address, "GET", "/healthcheck").find("200 OK"), std::string::npos);
  health.set("all", "nothing works", Health::Weight::kUnhealthy);
  EXPECT_NE(ask_unix(path, "/healthcheck").find("503 "), std::string::npos);
  EXPECT_NE(ask_tcp(address, "GET", "/nothing").find("404 "), std::string::npos);
  EXPECT_NE(ask_tcp(address, "DELETE", "/metrics").find("405 "), std::string::npos);
  EXPECT_NE(ask_tcp(address, "nonsense", "").find("40"), std::string::npos);
}

TEST(Http, AsksTheProgramForOtherPaths) {
  TemporaryDirectory directory;
  Counters counters;
  Health health;
  HttpHandlers handlers;
  const std::string path = directory.file("http.sock");
  auto server = HttpServer::start({path, "127.0.0.1:0"}, counters, health, handlers);
  ASSERT_TRUE(server) << server.error().text();
  EXPECT_NE(ask_unix(path, "/own").find("404 "), std::string::npos) << "before there is a handler";
  handlers.set([](const HttpCall& call) -> std::optional<HttpReply> {
    if (!call.path.starts_with("/own")) return std::nullopt;
    return HttpReply{202, call.method + ' ' + call.path + ' ' + call.body + (call.may_change ? " unix" : " tcp")};
  });
  const std::string put = ask_unix(path, "/own/a%2Fb", "PUT", "{\"x\": 1}");
  EXPECT_NE(put.find("202 "), std::string::npos) << put;
  EXPECT_NE(put.find("PUT /own/a%2Fb {\"x\": 1} unix"), std::string::npos) << put;
  EXPECT_NE(ask_tcp((*server)->tcp_address(), "GET", "/own").find("GET /own  tcp"), std::string::npos);
  EXPECT_NE(ask_unix(path, "/own", "PUT", std::string(5000, 'x')).find("413 "), std::string::npos);
  EXPECT_NE(ask_unix(path, "/metrics").find("200 OK"), std::string::npos);
  handlers.set({});
  EXPECT_NE(ask_unix(path, "/own").find("404 "), std::string::npos);
}

TEST(Http, NobodyWaitsForAHandlerThatWaits) {
  TemporaryDirectory directory;
  Counters counters;
  Health health;
  HttpHandlers handlers;
  const std::string path = directory.file("http.sock");
  auto server = HttpServer::start({path, "127.0.0.1:0"}, counters, health, handlers);
  ASSERT_TRUE(server) << server.error().text();
  std::promise<void> is_waiting, may_end;
  handlers.set([&, goes_on = may_end.get_future().share()](const HttpCall& call) -> std::optional<HttpReply> {
    if (call.path == "/quick") return HttpReply{200, "quick"};
    if (call.path != "/slow") return std::nullopt;
    is_waiting.set_value();
    goes_on.wait();
    return HttpReply{200, "slow"};
  });
  std::thread slow([&] { EXPECT_NE(ask_unix(path, "/slow").find("slow"), std::string::npos); });
  is_waiting.get_future().wait();
  EXPECT_NE(ask_unix(path, "/metrics").find("200 OK"), std::string::npos);
  EXPECT_NE(ask_unix(path, "/quick").find("quick"), std::string::npos);
  EXPECT_NE(ask_tcp((*server)->tcp_address(), "GET", "/quick").find("quick"), std::string::npos);
  may_end.set_value();
  slow.join();
}

TEST(Http, TakesASocketThatNobodyListensOnAndNoOther) {
  TemporaryDirectory directory;
  Counters counters;
  Health health;
  HttpHandlers handlers;
  const std::string path = directory.file("http.sock");
  {
    FileDescriptor left(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un where = {};
    where.sun_family = AF_UNIX;
    std::strncpy(where.sun_path, path.c_str(), sizeof(where.sun_path) - 1);
    ASSERT_EQ(::bind(left.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  }
  auto server = HttpServer::start({path, ""}, counters, health, handlers);
  ASSERT_TRUE(server) << server.error().text();
  auto second = HttpServer::start({path, ""}, counters, health, handlers);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EADDRINUSE);
  EXPECT_NE(ask_unix(path, "/healthcheck").find("200 OK"), std::string::npos) << "the first one goes on";
}

// -- the program ------------------------------------------------------------------------------------------------------

struct Ended {
  int status;
  std::string out, error;
};

// A program that has a table [own] with a number, and serves until it is stopped.
Ended run(std::vector<std::string> words, const std::function<Result<void>(Service&)>& serve = {}) {
  int value = 0;
  const Program program = {"maru-test", "usage: maru-test\n",
                           [&](ConfigTable& root, std::vector<ConfigProblem>&) {
                             if (auto own = root.table("own")) {
                               if (const auto number = own->integer("number", 1, 9)) value = int(*number);
                               own->refuse_unknown();
                             }
                           },
                           serve ? serve : [](Service&) -> Result<void> { return {}; }};
  words.insert(words.begin(), "maru-test");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = run_program(program, int(words.size()), arguments.data());
  std::fflush(stdout);
  return {status, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

std::string config_in(const TemporaryDirectory& directory, const std::string& text) {
  const std::string path = directory.file("config.toml");
  std::ofstream(path) << text;
  return path;
}

TEST(Program, SaysWhatIsWrongWithItsCommandLine) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{}, "found no configuration, expected --config FILE"},
      {{"--config"}, "found \"--config\" without a value"},
      {{"--nonsense"}, "found \"--nonsense\", expected an option"},
      {{"--config", "x", "more"}, "found \"more\", expected only options"},
      {{"--config", "x", "--log-level", "loud"}, "--log-level: found \"loud\", expected debug, info, warning or error"},
  };
  for (const auto& [words, text] : cases) {
    const Ended result = run(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.error.find(text), std::string::npos) << result.error;
  }
  EXPECT_EQ(run({"--help"}).out, "usage: maru-test\n");
  EXPECT_EQ(run({"--version"}).out.substr(0, 10), "maru-test ");
}

TEST(Program, SaysAllThatIsWrongWithItsConfigurationInOrder) {
  TemporaryDirectory directory;
  const std::string path = config_in(
      directory, "[own]\nnumber = 10\n[daemon]\nlog_level = \"loud\"\n[http]\nlisten = \"0.0.0.0:1\"\n[more]\n");
  const Ended result = run({"--config", path, "--check-config"});
  EXPECT_EQ(result.status, 1);
  const std::string begin = path + ":";
  std::string expected;
  expected += begin + "2: own.number: found 10, expected a whole number from 1 to 9\n";
  expected +=
      begin + "4: daemon.log_level: found \"loud\", expected one of \"debug\", \"info\", \"warning\", \"error\"\n";
  expected += begin +
              "6: http.listen: found \"0.0.0.0:1\", expected an address of this machine alone, such as "
              "\"127.0.0.1:9102\" or \"[::1]:9102\"\n";
  expected += begin + "7: more: found an unknown key, expected one of: daemon, http, own\n";
  EXPECT_EQ(result.error, expected);
  EXPECT_EQ(run({"--config", config_in(directory, "[own]\nnumber = 3\n"), "--check-config"}).out, "OK\n");
  EXPECT_EQ(run({"--config", directory.file("none"), "--check-config"}).status, 1);
}

TEST(Program, EndsBySignalAndByItself) {
  TemporaryDirectory directory;
  const std::string path = config_in(directory, "");
  // In a process of its own: the log begins once in each.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Ended by_signal = run({"--config", path}, [](Service& service) {
      ::raise(SIGTERM);
      return service.run([] { return true; });
    });
    const Ended by_itself = run({"--config", path}, [](Service& service) {
      service.stop();
      return service.run([] { return true; });
    });
    const Ended failed = run({"--config", path}, [](Service&) -> Result<void> { return failure(EIO, "do it"); });
    ::_exit(by_signal.status == 0 && by_itself.status == 0 && failed.status == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace maru::daemon::beside
