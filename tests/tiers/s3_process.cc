#include "tests/tiers/s3_process.h"

#include "libmaru/base/file_descriptor.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <sys/socket.h>

namespace maru::test {

S3Process::S3Process(const std::string& directory, std::vector<std::string> more, bool has_tls)
    : directory_(directory), more_(std::move(more)), has_tls_(has_tls) {
  if (has_tls_) {
    const std::string key = directory_ + "/key.pem";
    const std::string command =
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext "
        "subjectAltName=IP:127.0.0.1 -keyout " +
        key + " -out " + certificate_path() + " 2>&1 >/dev/null | grep -i error";
    if (std::system(command.c_str()) == 0) throw std::runtime_error("openssl makes no certificate");
    more_.insert(more_.end(), {"--certificate", certificate_path(), "--key", key});
  }
  start();
}

void S3Process::start() {
  const char* const server = std::getenv("MARU_TEST_S3_SERVER");
  if (!server) throw std::runtime_error("MARU_TEST_S3_SERVER must name tests/tiers/s3_server.py");
  const std::string log = directory_ + "/s3.log";
  std::ofstream(log, std::ios::trunc).close();
  std::vector<std::string> command = {"/usr/bin/python3", server, "--secret", kSecret, "--port", std::to_string(port_)};
  command.insert(command.end(), more_.begin(), more_.end());
  process_ = std::make_unique<ChildProcess>(command, log);
  const bool listens = wait_until([&] {
    std::ifstream file(log);
    return bool(file >> port_ >> orders_port_) || !process_->is_running();
  });
  if (!listens || !process_->is_running())
    throw std::runtime_error("the S3 server of the tests does not listen: " + log);
}

std::string S3Process::endpoint(const std::string& host) const {
  return (has_tls_ ? "https://" : "http://") + host + ":" + std::to_string(port_);
}

tierd::TierOptions S3Process::options(tierd::TierOptions more) const {
  const tierd::TierOptions usual = {{"endpoint", endpoint()},
                                    {"bucket", "blocks"},
                                    {"region", "eu-west-1"},
                                    {"access_key_id", "AKIATEST"},
                                    {"secret_access_key", kSecret}};
  for (const auto& [name, value] : usual)
    if (std::none_of(more.begin(), more.end(), [&](const auto& option) { return option.first == name; }))
      more.emplace_back(name, value);
  return more;
}

std::string S3Process::tell(const std::string& order) const {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(orders_port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("the S3 server of the tests has gone");
  const std::string request =
      "POST /- HTTP/1.1\r\nConnection: close\r\nContent-Length: " + std::to_string(order.size()) + "\r\n\r\n" + order;
  (void)!::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char room[4096];
  for (ssize_t got = 0; (got = ::recv(socket.get(), room, sizeof room, 0)) > 0;) answer.append(room, size_t(got));
  return answer;
}

uint64_t S3Process::count(const std::string& name) const {
  const std::string all = tell("counts"), wanted = "\"" + name + "\": ";
  const size_t at = all.find(wanted);
  return at == std::string::npos ? 0 : std::strtoull(all.c_str() + at + wanted.size(), nullptr, 10);
}

}  // namespace maru::test
