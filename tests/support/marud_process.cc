#include "tests/support/marud_process.h"

#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/support/wait_until.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <poll.h>
#include <sstream>
#include <stdexcept>

namespace maru::test {
namespace {

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() ? '?' : text[end + 2];
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
  const FileDescriptor connection = state_of(pid()) == 'T' ? FileDescriptor() : answered_connection();
  process_.reset();
  // The kernel closes marud's connections when it takes the io_uring apart, some milliseconds after the process has ended.
  // Until then clients are connected, to no marud.
  pollfd end{connection.get(), 0, 0};
  if (connection.is_open()) {
    EXPECT_EQ(::poll(&end, 1, int(far_too_long_ms())), 1) << "a connection to a killed marud stays";
  }
}

// Not open if marud does not answer soon.
FileDescriptor MarudProcess::answered_connection() const {
  constexpr uint32_t kSoonMs = 1000;
  auto socket = wire::connect_to(socket_path_, kSoonMs);
  if (!socket || !wire::send_packet(socket->get(), wire::encode(wire::Type::kPing, 1, 0, {}), -1, kSoonMs) ||
      !wire::receive_packet(socket->get(), kSoonMs))
    return {};
  return std::move(*socket);
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
