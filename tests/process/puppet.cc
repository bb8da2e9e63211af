#include "tests/process/puppet.h"

#include "tests/support/test_client.h"

#include <cstring>
#include <map>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

bool send_json(int fd, const json& value) {
  const std::string text = value.dump();
  return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size());
}

json receive_json(int fd) {
  std::string text(1u << 16, 0);
  const ssize_t size = ::recv(fd, text.data(), text.size(), 0);
  if (size <= 0) return nullptr;
  return json::parse(text.substr(0, size_t(size)));
}

json obey(TestClient& client, std::map<std::string, maru_view>& held, std::vector<maru_buffer>& buffers,
          const json& request) {
  const std::string what = request.at("do");
  const std::string key = request.value("key", "");
  if (what == "store")
    return {{"result", client.store(key, request.at("text").get<std::string>(), request.value("parent", ""),
                                    request.value("ttl_ms", uint64_t{0}))}};
  if (what == "retrieve") {
    maru_view view;
    const int result = client.retrieve(key, &view);
    if (result != 0) return {{"result", result}};
    held[key] = view;
    return {{"result", 0}, {"text", std::string(static_cast<const char*>(view.data), view.bytes)}};
  }
  if (what == "release") {
    const int result = client.release(held.at(key));
    held.erase(key);
    return {{"result", result}};
  }
  if (what == "read held")
    return {{"result", 0}, {"text", std::string(static_cast<const char*>(held.at(key).data), held.at(key).bytes)}};
  if (what == "delete") return {{"result", client.remove(key)}};
  if (what == "exists") return {{"result", client.exists(key)}};
  if (what == "store many") {  // keys PREFIX + number, each with itself as text
    uint64_t stored = 0;
    for (uint64_t i = 0; i < request.at("count").get<uint64_t>(); ++i) {
      const std::string text = key + std::to_string(i);
      std::string name = text;
      stored += client.store_near(name, text) == 0;
    }
    return {{"result", stored}};
  }
  if (what == "alloc") {
    buffers.resize(request.at("buffers").get<size_t>());
    return {{"result", maru_alloc_batch(client, request.at("bytes").get<uint64_t>(), buffers.size(), buffers.data())}};
  }
  if (what == "lane") return {{"result", client.geometry().lane}};
  if (what == "limit memory") {  // nothing more can be mapped; "no": as before
    rlimit limit{};
    ::getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = request.value("no", false) ? limit.rlim_max : 1;
    return {{"result", ::setrlimit(RLIMIT_AS, &limit)}};
  }
  if (what == "detach") {
    client.detach();
    return {{"result", 0}};
  }
  throw std::runtime_error("a puppet cannot " + what);
}

}  // namespace

Puppet::Puppet(const std::string& socket_path, const std::string& pool) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
  strings_.reset(ends[0]);
  const FileDescriptor other(ends[1]);
  process_ = std::make_unique<ChildProcess>(
      std::vector<std::string>{own_program(), "--role", "puppet", socket_path, pool, std::to_string(other.get())}, "",
      std::vector<int>{other.get()});
  const json greeting = receive_json(strings_.get());
  if (greeting.is_null() || greeting.at("result") != 0) throw std::runtime_error("the puppet could not attach");
}

json Puppet::ask(const json& request) {
  if (!send_json(strings_.get(), request)) throw std::runtime_error("the puppet is gone");
  json reply = receive_json(strings_.get());
  if (reply.is_null()) throw std::runtime_error("the puppet ended at " + request.dump());
  return reply;
}

int run_puppet(int argument_count, char** arguments) {
  if (argument_count != 3) return 2;
  const int strings = std::atoi(arguments[2]);
  TestClient client(arguments[0], arguments[1]);
  std::map<std::string, maru_view> held;
  std::vector<maru_buffer> buffers;
  send_json(strings, {{"result", 0}});
  while (true) {
    const json request = receive_json(strings);
    if (request.is_null()) return 0;
    if (!send_json(strings, obey(client, held, buffers, request))) return 0;
  }
}

}  // namespace maru::test
