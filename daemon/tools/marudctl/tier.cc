// marudctl tier: storage below a pool. These commands ask maru-tierd, and not marud, on the socket on which clients ask it.
#include "daemon/base/json_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/output.h"
#include "libmaru/prefetch/message.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;
using namespace maru::prefetch;

constexpr const char* kDefaultSocket = "/run/maru-tierd/prefetch.sock";

std::string socket_path(const Arguments& arguments, size_t operand) {
  if (arguments.operands.size() > operand) return arguments.operands[operand];
  const char* const named = std::getenv("MARU_TIER_SOCKET");
  return named && *named ? named : kDefaultSocket;
}

bool receive(int socket, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= size_t(got);
  }
  return true;
}

// Asks maru-tierd. Returns kExitDone and its answer, or says what went wrong and returns the exit status.
int ask(const Arguments& arguments, const std::string& path, uint32_t kind, const std::string& name, json& ret_answer) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return complain(kExitUsage, "the socket \"" + path + "\" has too long a path");
  std::memcpy(address.sun_path, path.data(), path.size());
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return complain(kExitUnreachable, "cannot ask maru-tierd on " + path + ": " + std::strerror(errno) +
                                          " (is maru-tierd running, and has its [prefetch] this socket?)");
  const timeval patience = {time_t(arguments.timeout_ms / 1000), suseconds_t(arguments.timeout_ms % 1000) * 1000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const MessageHeader question = {kMessageMagic, kind, 0, uint32_t(name.size())};
  std::string message(reinterpret_cast<const char*>(&question), sizeof question);
  message += name;
  MessageHeader answer = {};
  if (::send(socket.get(), message.data(), message.size(), MSG_NOSIGNAL) != ssize_t(message.size()) ||
      !receive(socket.get(), &answer, sizeof answer) || answer.magic != kMessageMagic ||
      answer.bytes > kMessageBytesMax)
    return complain(kExitUnreachable, "maru-tierd on " + path + " does not answer (" + std::strerror(errno) + ")");
  std::string text(answer.bytes, 0);
  if (!receive(socket.get(), text.data(), text.size()))
    return complain(kExitUnreachable, "the answer of maru-tierd on " + path + " is cut off");
  ret_answer = daemon::json_of(text);
  if (answer.result == 0 && ret_answer.is_object()) return kExitDone;
  return complain(kExitRefused, ret_answer.is_object() ? ret_answer.value("text", "") : "its answer is not understood");
}

}  // namespace

int tier_list(const Arguments& arguments) {
  json answer;
  if (const int code = ask(arguments, socket_path(arguments, 0), kListTiers, "", answer); code != kExitDone)
    return code;
  if (arguments.json) return print_json(answer), kExitDone;
  print(table_text(
      answer["tiers"],
      {"name", "kind", "entries", "entry_bytes", "physical_bytes", "capacity_bytes", "in_flight", "breaker", "trouble"},
      "maru-tierd has no tier", line_width()));
  print(std::to_string(answer.value("queued", uint64_t{0})) + " blocks of the pool \"" + answer.value("pool", "") +
        "\" wait to be written\n");
  return kExitDone;
}

int tier_drain(const Arguments& arguments) {
  json answer;
  if (const int code = ask(arguments, socket_path(arguments, 0), kDrainTiers, "", answer); code != kExitDone)
    return code;
  if (arguments.json) return print_json(answer), kExitDone;
  print("all that waited is written\n");
  return kExitDone;
}

int tier_clear(const Arguments& arguments) {
  const std::string& name = arguments.operands.front();
  if (!arguments.yes)
    return complain(kExitUsage, "tier clear forgets every entry of the tier \"" + name + "\"; say --yes to do it");
  json answer;
  if (const int code = ask(arguments, socket_path(arguments, 1), kClearTier, name, answer); code != kExitDone)
    return code;
  if (arguments.json) return print_json(answer), kExitDone;
  print(std::to_string(answer.value("deleting", uint64_t{0})) + " entries go\n");
  return kExitDone;
}

}  // namespace maru::marudctl
