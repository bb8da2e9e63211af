// See tierd_question.h.
#include "daemon/tools/marudctl/tierd_question.h"

#include "daemon/base/json_text.h"
#include "libmaru/base/file_descriptor.h"
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

}  // namespace

std::string tierd_socket(const Arguments& arguments, size_t operand) {
  if (arguments.operands.size() > operand) return arguments.operands[operand];
  const char* const named = std::getenv("MARU_TIER_SOCKET");
  return named && *named ? named : kDefaultSocket;
}

int ask_tierd(const std::string& path, uint32_t timeout_ms, uint32_t kind, const std::string& body, json& ret_answer,
              std::string& ret_problem) {
  const auto fail = [&](int code, std::string problem) {
    ret_problem = std::move(problem);
    return code;
  };
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(kExitUsage, "the socket \"" + path + "\" has too long a path");
  std::memcpy(address.sun_path, path.data(), path.size());
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {time_t(timeout_ms / 1000), suseconds_t(timeout_ms % 1000) * 1000};
  // The time to send bounds the connect, too, where maru-tierd accepts nothing.
  for (const int which : {SO_RCVTIMEO, SO_SNDTIMEO})
    ::setsockopt(socket.get(), SOL_SOCKET, which, &patience, sizeof patience);
  if (!socket.is_open() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail(kExitUnreachable, "cannot ask maru-tierd on " + path + ": " + std::strerror(errno) +
                                      " (is maru-tierd running, and has its [prefetch] this socket?)");
  const MessageHeader question = {kMessageMagic, kind, 0, uint32_t(body.size())};
  std::string message(reinterpret_cast<const char*>(&question), sizeof question);
  message += body;
  MessageHeader answer = {};
  if (::send(socket.get(), message.data(), message.size(), MSG_NOSIGNAL) != ssize_t(message.size()) ||
      !receive(socket.get(), &answer, sizeof answer) || answer.magic != kMessageMagic ||
      answer.bytes > kMessageBytesMax)
    return fail(kExitUnreachable, "maru-tierd on " + path + " does not answer (" + std::strerror(errno) + ")");
  std::string text(answer.bytes, 0);
  if (!receive(socket.get(), text.data(), text.size()))
    return fail(kExitUnreachable, "the answer of maru-tierd on " + path + " is cut off");
  ret_answer = daemon::json_of(text);
  if (answer.result == 0 && ret_answer.is_object()) return kExitDone;
  return fail(kExitRefused, ret_answer.is_object() ? ret_answer.value("text", "") : "its answer is not understood");
}

}  // namespace maru::marudctl
