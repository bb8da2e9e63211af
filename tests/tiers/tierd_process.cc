#include "tests/tiers/tierd_process.h"

#include "libmaru/base/file_descriptor.h"
#include "libmaru/prefetch/message.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/socket.h>
#include <sys/un.h>

namespace maru::test {

namespace {

FileDescriptor connect_to(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {far_too_long_ms() / 1000, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) socket.reset();
  return socket;
}

std::string read_to_end(int socket, size_t bytes_max = SIZE_MAX) {
  std::string all;
  char room[4096];
  while (all.size() < bytes_max) {
    const ssize_t got = ::recv(socket, room, std::min(sizeof room, bytes_max - all.size()), 0);
    if (got <= 0) break;
    all.append(room, size_t(got));
  }
  return all;
}

}  // namespace

TierdProcess::TierdProcess(const MarudProcess& marud, const std::string& tiers, const std::string& more)
    : marud_(marud),
      socket_path_(marud.directory().file("tier.sock")),
      config_path_(marud.directory().file("tierd.toml")),
      log_path_(marud.directory().file("tierd.log")),
      http_path_(marud.directory().file("tierd.http")) {
  std::string text = more + "\n" + tiers;
  // A disk or a server that stands still for seconds on a busy machine fails no test.
  for (const std::string kind : {"kind = \"file\"\n", "kind = \"resp\"\n", "kind = \"s3\"\n"})
    for (size_t at = 0; (at = text.find(kind, at)) != std::string::npos; at += kind.size()) {
      const std::string table = text.substr(at, text.find("[[tier]]", at) - at);
      if (table.find("load_timeout_ms") == std::string::npos)
        text.insert(at + kind.size(),
                    "load_timeout_ms = " + std::to_string(std::min(far_too_long_ms(), 600'000u)) + "\n");
    }
  for (size_t at; (at = text.find("DIR")) != std::string::npos;) text.replace(at, 3, marud.directory().path());
  std::ofstream(config_path_) << "[daemon]\nlog_level = \"debug\"\n[http]\nsocket = \"" << http_path_
                              << "\"\n[pool]\nsocket = \"" << marud.socket_path() << "\"\n[prefetch]\nsocket = \""
                              << socket_path_ << "\"\n"
                              << text;
}

void TierdProcess::start() {
  const char* const program = std::getenv("MARU_TEST_TIERD");
  if (!program) throw std::runtime_error("MARU_TEST_TIERD must name the maru-tierd to test");
  process_ = std::make_unique<ChildProcess>(std::vector<std::string>{program, "--config", config_path_}, log_path_);
  const bool answers = wait_until([&] { return !process_->is_running() || !list().is_null(); });
  if (!answers || !process_->is_running()) throw std::runtime_error("maru-tierd does not answer: " + log());
}

void TierdProcess::stop() {
  process_->signal(SIGTERM);
  const auto ended = process_->wait();
  EXPECT_TRUE(ended) << "maru-tierd does not end\n" << log();
  EXPECT_EQ(ended ? ended->text() : "", "ended with status 0") << log();
  process_.reset();
}

void TierdProcess::kill() {
  process_->kill();
  process_.reset();
}

bool TierdProcess::suspend() {
  process_->signal(SIGSTOP);
  return wait_until([&] {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid()) + "/task")) {
      std::ifstream file(thread.path() / "stat");
      const std::string stat{std::istreambuf_iterator<char>(file), {}};
      if (const size_t name_end = stat.rfind(')'); stat.compare(name_end + 1, 2, " T") != 0) return false;
    }
    return true;
  });
}

std::string TierdProcess::log() const {
  std::ifstream file(log_path_);
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json TierdProcess::ask(uint32_t kind, const std::string& name) const {
  using namespace maru::prefetch;
  const FileDescriptor socket = connect_to(socket_path_);
  if (!socket.is_open()) return nullptr;
  const MessageHeader question = {kMessageMagic, kind, 0, uint32_t(name.size())};
  std::string message(reinterpret_cast<const char*>(&question), sizeof question);
  message += name;
  if (::send(socket.get(), message.data(), message.size(), MSG_NOSIGNAL) != ssize_t(message.size())) return nullptr;
  const std::string head = read_to_end(socket.get(), sizeof(MessageHeader));
  if (head.size() != sizeof(MessageHeader)) return nullptr;
  MessageHeader answer;
  std::memcpy(&answer, head.data(), sizeof answer);
  return nlohmann::json::parse(read_to_end(socket.get(), answer.bytes), nullptr, false);
}

nlohmann::json TierdProcess::list() const { return ask(maru::prefetch::kListTiers); }

bool TierdProcess::has_entries(uint64_t entries, size_t index) const {
  return wait_until([&] {
    const nlohmann::json all = list();
    return all.is_object() && all["tiers"][index]["entries"] == entries && all["queued"] == 0;
  });
}

uint64_t TierdProcess::metric(const std::string& name) const {
  const FileDescriptor socket = connect_to(http_path_);
  if (!socket.is_open()) return 0;
  const std::string question = "GET /metrics HTTP/1.0\r\n\r\n";
  (void)!::send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL);
  std::istringstream text(read_to_end(socket.get()));
  for (std::string line; std::getline(text, line);)
    if (line.starts_with(name + " ")) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  return 0;
}

std::pair<int, nlohmann::json> TierdProcess::http(const std::string& method, const std::string& path,
                                                  const std::string& body) const {
  const FileDescriptor socket = connect_to(http_path_);
  if (!socket.is_open()) return {0, nullptr};
  const std::string question =
      method + " " + path + " HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  (void)!::send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL);
  const std::string answer = read_to_end(socket.get());
  const size_t end = answer.find("\r\n\r\n"), code = answer.find(' ');
  if (end == std::string::npos || code == std::string::npos) return {0, nullptr};
  return {std::atoi(answer.c_str() + code), nlohmann::json::parse(answer.substr(end + 4), nullptr, false)};
}

Prefetch::Prefetch(const TierdProcess& tierd, const std::vector<std::string>& keys, uint32_t deadline_ms,
                   uint32_t policy, uint32_t compute_us) {
  std::vector<maru_key> asked;
  for (const std::string& key : keys) asked.push_back({key.data(), uint32_t(key.size()), MARU_KEY_BYTES, 0});
  maru_prefetch_options options = {};
  options.size = sizeof(options);
  options.socket_path = tierd.socket_path().c_str();
  options.deadline_ms = std::min<uint32_t>(deadline_ms, 60'000);
  options.policy = policy;
  options.compute_us = compute_us;
  status_.size = sizeof(status_);
  begun_ = maru_prefetch(asked.data(), asked.size(), &options, &ticket_);
}

int Prefetch::wait(int timeout_ms) { return begun_ != 0 ? begun_ : maru_prefetch_wait(ticket_, timeout_ms, &status_); }
int Prefetch::poll_status() { return begun_ != 0 ? begun_ : maru_prefetch_status(ticket_, &status_); }

}  // namespace maru::test
