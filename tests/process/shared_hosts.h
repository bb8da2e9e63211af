// A marud that plays one of the hosts of a shared pool, which is a file, and what the tests of several hosts have in common.
#pragma once

#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/support/child_process.h"
#include "tests/support/marud_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wait_until.h"

#include <csignal>
#include <cstdio>
#include <fstream>
#include <gtest/gtest.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace maru::test {

using nlohmann::json;

inline constexpr const char* kBoot[] = {"11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222",
                                        "44444444-4444-4444-8444-444444444444"};
inline constexpr const char* kNextBoot = "33333333-3333-4333-8333-333333333333";

// A marud that plays one of the hosts.
class Host {
 public:
  enum class Start : uint8_t { kWholly, kBegin };
  Host(const TemporaryDirectory& directory, uint32_t number, const std::string& more = "", uint64_t bytes = 16u << 20,
       Start how = Start::kWholly)
      : number_(number), name_(directory.file("host" + std::to_string(number))), boot_id_(kBoot[number]) {
    std::ofstream(name_ + ".toml")
        << "[daemon]\nsocket = \"" << socket_path() << "\"\nstate_dir = \"" << name_
        << ".state\"\nlog_level = \"debug\"\n\n[[pool]]\nname = \"default\"\nbackend = \"file\"\n"
        << "path = \"" << directory.file("pool") << "\"\nsize = " << bytes << "\npage_bytes = 4096\n"
        << "region_bytes = 1048576\nlanes = 16\npins = 1024\nhigh_watermark = 1\n"
        << "profile = \"shared\"\ncoherent = true\n"
        << (more.find("hosts = ") == std::string::npos ? "hosts = 2\n" : "") << more;
    begin();
    if (how == Start::kWholly) await();
  }
  ~Host() {
    if (::testing::Test::HasFailure()) std::fprintf(stderr, "-- host %u --\n%s\n", number_, log().c_str());
  }

  std::string socket_path() const { return name_ + ".sock"; }
  pid_t pid() const { return process_->pid(); }

  void start() {
    begin();
    await();
  }
  void begin() {
    process_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{marud_program(), "--config", name_ + ".toml", "--boot-id", boot_id_, "--machine-id",
                                 "abcdef0" + std::to_string(number_)},
        name_ + ".log");
  }
  bool is_running() { return process_->is_running(); }
  // Until it serves.
  void await() {
    const bool is_ready = wait_until([&] {
      if (!process_->is_running()) return true;
      const json status = try_ask({{"command", "status"}});
      return status.is_object() && status.value("pid", 0) == pid();
    });
    if (!is_ready || !process_->is_running()) throw std::runtime_error("marud did not start:\n" + log());
  }
  void boot_again() {
    boot_id_ = kNextBoot;
    start();
  }
  void kill() { process_->kill(); }
  void signal(int number) { process_->signal(number); }
  std::optional<ChildProcess::Ended> stop() {
    process_->signal(SIGTERM);
    return process_->wait();
  }

  json try_ask(const json& request) const {
    auto socket = wire::connect_to(socket_path());
    if (!socket) return nullptr;
    const std::string text = request.dump();
    const auto packet = wire::encode(wire::Type::kAdmin, 1, 0, std::as_bytes(std::span(text.data(), text.size())));
    if (!wire::send_packet(socket->get(), packet, -1, far_too_long_ms())) return nullptr;
    auto reply = wire::receive_packet(socket->get(), far_too_long_ms());
    if (!reply) return nullptr;
    const auto header = wire::decode_reply(reply->bytes);
    if (!header) return nullptr;
    const auto payload = wire::payload_of(reply->bytes);
    const std::string body(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (header->status < 0) return {{"refused", -header->status}, {"text", body}};
    return json::parse(body);
  }
  json ask(const json& request) const {
    json reply = try_ask(request);
    if (reply.is_null()) throw std::runtime_error("host " + std::to_string(number_) + " does not answer");
    return reply;
  }
  json host(uint32_t number) const { return ask({{"command", "host.list"}}).at("hosts").at(number); }
  std::string state_of(uint32_t number) const { return host(number).at("state"); }
  bool sees(uint32_t number, const std::string& state) const {
    return wait_until([&] { return state_of(number) == state; });
  }
  uint64_t violations() const { return ask({{"command", "check"}, {"quiesce", true}}).at("violations").size(); }

  std::string log() const {
    std::stringstream text;
    text << std::ifstream(name_ + ".log").rdbuf();
    return text.str();
  }
  bool has_logged(const std::string& text) const {
    return wait_until([&] { return log().find(text) != std::string::npos; });
  }

 private:
  uint32_t number_;
  std::string name_, boot_id_;
  std::unique_ptr<ChildProcess> process_;
};

class Hosts : public ::testing::Test {
 protected:
  // Short, so that the tests are; the machine may still be slow, so no test demands that a host is *not* suspect.
  const std::string watch_ = "suspect_after_ms = 1500\n";
  // For tests where a wrong suspicion has consequences.
  const std::string patient_watch_ = "suspect_after_ms = " + std::to_string(far_too_long_ms() / 10) + "\n";
  TemporaryDirectory directory_;
};

}  // namespace maru::test
