#include "tests/tiers/redis_process.h"

#include "tests/support/wait_until.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::test {

namespace {

// MARU_TEST_REDIS_SERVER names another server, such as a Valkey.
std::string program() {
  const char* const given = std::getenv("MARU_TEST_REDIS_SERVER");
  return given ? given : "/usr/bin/redis-server";
}

bool listens(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return connected;
}

}  // namespace

bool RedisProcess::is_installed() { return ::access(program().c_str(), X_OK) == 0; }

RedisProcess::RedisProcess(const std::string& directory, std::vector<std::string> more)
    : directory_(directory), socket_path_(directory + "/redis.sock"), more_(std::move(more)) {
  start();
}

void RedisProcess::start() {
  std::vector<std::string> command = {program(),  "--port", "0", "--unixsocket", socket_path_, "--dir",
                                      directory_, "--save", "",  "--appendonly", "no"};
  command.insert(command.end(), more_.begin(), more_.end());
  ::unlink(socket_path_.c_str());
  process_ = std::make_unique<ChildProcess>(command, directory_ + "/redis.log");
  if (!wait_until([&] { return listens(socket_path_); })) throw std::runtime_error("redis-server does not listen");
}

}  // namespace maru::test
