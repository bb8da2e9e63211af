// The client's end of the socket: one packet out, one packet in, with a deadline.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/kept_descriptor.h"
#include "libmaru/base/result.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace maru::wire {

// $MARU_SOCKET, else marud/marud.sock in $XDG_RUNTIME_DIR (where that is not set, for users other than root, in
// /run/user/UID) when it exists, else /run/marud/marud.sock. The rule by which marud chooses where it listens.
std::string default_socket_path();

// When a call that may wait several times must be over.
class Deadline {
 public:
  explicit Deadline(uint32_t after_ms);
  // How long it may still wait; 0: not at all.
  uint32_t left_ms() const;

 private:
  int64_t at_ms_;  // CLOCK_MONOTONIC
};

// timeout_ms: the longest wait for a marud that does not answer, with a full queue; 0: for ever. Errors: ETIMEDOUT and the
// errors of connect.
Result<FileDescriptor> connect_to(const std::string& path, uint32_t timeout_ms = 0);

// Sends one packet, with a descriptor when `fd` is not negative, and with `second` after it when that is not either. Errors:
// ETIMEDOUT, EPIPE and the errors of sendmsg.
Result<void> send_packet(int socket, std::span<const std::byte> packet, int fd, uint32_t timeout_ms, int second = -1);
// The same for a socket that the program may close at any time. Error then: ECONNRESET; another file under its number is left
// alone.
Result<void> send_packet(const KeptDescriptor& socket, std::span<const std::byte> packet, int fd, uint32_t timeout_ms,
                         int second = -1);

struct Packet {
  std::vector<std::byte> bytes;
  FileDescriptor fd = {};  // the descriptors that came along; further ones are closed
  FileDescriptor second = {};
  FileDescriptor third = {};
};
// timeout_ms 0: a packet that is there already. Errors: ETIMEDOUT, ECONNRESET at the end of the connection, EMSGSIZE, EMFILE
// this process has no room for the descriptors that came along, and the errors of recvmsg.
Result<Packet> receive_packet(int socket, uint32_t timeout_ms);
// The same, as above: ECONNRESET.
Result<Packet> receive_packet(const KeptDescriptor& socket, uint32_t timeout_ms);

}  // namespace maru::wire
