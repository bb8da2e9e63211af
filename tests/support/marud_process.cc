#include "tests/support/marud_process.h"

#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/support/wait_until.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace maru::test {
namespace {

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() ? '?' : text[end + 2];
}

// The inodes of a process' sockets.
std::set<std::string> sockets_of(pid_t pid) {
  constexpr std::string_view kSocket = "socket:[";
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with(kSocket)) inodes.insert(target.substr(kSocket.size(), target.size() - kSocket.size() - 1));
  }
  return inodes;
}

// Whether the kernel's list of Unix sockets has one of these inodes, the seventh word of each line.
bool is_any_open(const std::set<std::string>& inodes) {
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    std::istringstream words(line);
    std::string word;
    for (int i = 0; i < 7; ++i) words >> word;
    if (words && inodes.contains(word)) return true;
  }
  return false;
}

}  // namespace

std::string marud_program() {
  const char* path = std::getenv("MARU_TEST_MARUD");
  if (!path || !*path) throw std::runtime_error("MARU_TEST_MARUD must name the marud to test");
  return path;
}

MarudProcess::MarudProcess(std::vector<PoolWish> pools, uint32_t adopt_grace_ms, const Prepare& prepare)
    : socket_path_(directory_.file("marud.sock")),
      config_path_(directory_.file("marud.toml")),
      log_path_(directory_.file("marud.log")) {
  std::ofstream config(config_path_);
  config << "[daemon]\nsocket = \"" << socket_path_ << "\"\nstate_dir = \"" << directory_.file("state")
         << "\"\nlog_level = \"debug\"\nadopt_grace_ms = " << adopt_grace_ms << "\n";
  if (prepare) prepare(directory_);
  for (PoolWish& pool : pools) {
    for (size_t at; (at = pool.more.find("DEV/")) != std::string::npos;)
      pool.more.replace(at, 4, directory_.file("dax/dev/"));
    config << "\n[[pool]]\nname = \"" << pool.name << "\"\n";
    if (pool.in_file || pool.in_two_files)
      config << "backend = \"file\"\npath = \"" << pool_file(pool.name) << "\"\n";
    else
      config << "backend = \"" << (pool.on_device ? "dax" : "memory") << "\"\n";
    if (pool.in_two_files) config << "control_path = \"" << control_file(pool.name) << "\"\n";
    if (!pool.on_device) config << "size = " << pool.bytes << "\n";
    config << "page_bytes = " << pool.page_bytes << "\nregion_bytes = " << pool.region_bytes
           << "\nmax_regions_per_instance = " << pool.max_regions_per_instance
           << "\nchecksums = " << (pool.checksums ? "true" : "false") << "\n";
    if (pool.lanes != 0) config << "lanes = " << pool.lanes << "\n";
    if (pool.pins != 0) config << "pins = " << pool.pins << "\n";
    config << "high_watermark = " << pool.high_watermark << "\n" << pool.more;
    if (!pool.users.empty()) config << "users = [" << pool.users << "]\n";
  }
  config.close();
  start();
}

MarudProcess::~MarudProcess() {
  if (process_) stop();
  if (::testing::Test::HasFailure()) {
    const std::string text = log();
    constexpr size_t kShown = 8000;
    std::fprintf(stderr, "-- end of marud's log --\n%s\n",
                 text.size() > kShown ? text.substr(text.size() - kShown).c_str() : text.c_str());
  }
}

void MarudProcess::start() {
  process_ =
      std::make_unique<ChildProcess>(std::vector<std::string>{marud_program(), "--config", config_path_}, log_path_);
  // Its own pid must answer: the sockets of a marud that was killed live on for a moment, until the kernel has taken down its
  // io_uring, and connections to them are accepted and then reset.
  const bool is_ready = wait_until([&] { return !process_->is_running() || answers_as(pid()); });
  if (!is_ready || !process_->is_running()) {
    const std::string text = log();
    process_.reset();
    throw std::runtime_error("marud did not start:\n" + text);
  }
}

bool MarudProcess::answers_as(pid_t pid) const {
  try {
    return ask({{"command", "status"}}).at("pid") == pid;
  } catch (const std::runtime_error&) {
    return false;
  }
}

void MarudProcess::stop() {
  if (!process_) return;
  process_->signal(SIGCONT);
  process_->signal(SIGTERM);
  const auto ended = process_->wait();
  if (!ended)
    ADD_FAILURE() << "marud did not end after SIGTERM";
  else if (ended->by_signal || ended->code != 0)
    ADD_FAILURE() << "marud " << ended->text() << "\n" << log();
  process_.reset();
}

void MarudProcess::kill() {
  if (!process_->is_running()) ADD_FAILURE() << "marud ended before it was killed: " << process_->wait()->text();
  const std::set<std::string> sockets = sockets_of(pid());
  process_.reset();
  // The kernel closes marud's connections when it takes the io_uring apart, some milliseconds after the process has ended.
  // Until then each client is connected, to no marud.
  EXPECT_TRUE(wait_until([&] { return !is_any_open(sockets); })) << "a connection to a killed marud stays";
}

void MarudProcess::suspend() {
  process_->signal(SIGSTOP);
  EXPECT_TRUE(wait_until([&] { return state_of(pid()) == 'T'; })) << "marud does not stop";
}

void MarudProcess::resume() { process_->signal(SIGCONT); }

nlohmann::json MarudProcess::ask(const nlohmann::json& request) const {
  auto socket = wire::connect_to(socket_path_);
  if (!socket) throw std::runtime_error("cannot ask marud: " + socket.error().text());
  const std::string text = request.dump();
  const auto packet = wire::encode(wire::Type::kAdmin, 1, 0, std::as_bytes(std::span(text.data(), text.size())));
  if (auto sent = wire::send_packet(socket->get(), packet, -1, far_too_long_ms()); !sent)
    throw std::runtime_error("cannot ask marud: " + sent.error().text());
  auto reply = wire::receive_packet(socket->get(), far_too_long_ms());
  if (!reply) throw std::runtime_error("marud does not answer " + text + ": " + reply.error().text());
  const auto header = wire::decode_reply(reply->bytes);
  if (!header) throw std::runtime_error("marud's answer to " + text + ": " + header.error().text());
  const auto payload = wire::payload_of(reply->bytes);
  const std::string body(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (header->status < 0) return {{"refused", -header->status}, {"text", body}};
  return nlohmann::json::parse(body);
}

nlohmann::json MarudProcess::pool_status(const std::string& pool) const {
  const nlohmann::json status = ask({{"command", "status"}});
  for (const nlohmann::json& one : status.at("pools"))
    if (one.at("name") == pool) return one;
  throw std::runtime_error("marud has no pool " + pool);
}

std::string MarudProcess::log() const {
  std::ifstream file(log_path_);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool MarudProcess::has_logged(const std::string& text) const {
  return wait_until([&] { return log().find(text) != std::string::npos; });
}

}  // namespace maru::test
