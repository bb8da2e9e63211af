#include "daemon/tierd/tiers/resp_output.h"

#include <array>
#include <cerrno>
#include <sys/socket.h>
#include <sys/uio.h>

namespace maru::tierd {

void RespOutput::copy(std::string_view bytes) {
  if (pieces_.empty() || !pieces_.back().foreign.empty() || pieces_.back().own.size() > kCopiedBytesMax)
    pieces_.emplace_back();
  pieces_.back().own.append(bytes);
  added_bytes_ += bytes.size();
}

void RespOutput::add(std::span<const RespWord> words) {
  copy("*" + std::to_string(words.size()) + "\r\n");
  for (const RespWord& word : words) {
    copy("$" + std::to_string(word.bytes.size()) + "\r\n");
    if (word.stays && word.bytes.size() > kCopiedBytesMax) {
      pieces_.push_back({{}, word.bytes});
      added_bytes_ += word.bytes.size();
    } else {
      copy(word.bytes);
    }
    copy("\r\n");
  }
}

int RespOutput::write(int socket) {
  while (!pieces_.empty()) {
    std::array<iovec, kPiecesMax> parts;
    size_t n = 0;
    size_t skipped = sent_;
    for (const Piece& piece : pieces_) {
      if (n == parts.size()) break;
      const std::string_view rest = piece.bytes().substr(skipped);
      skipped = 0;
      parts[n++] = {const_cast<char*>(rest.data()), rest.size()};
    }
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = n;
    const ssize_t went = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (went < 0) return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    sent_ += size_t(went);
    sent_bytes_ += size_t(went);
    while (!pieces_.empty() && sent_ >= pieces_.front().bytes().size()) {
      sent_ -= pieces_.front().bytes().size();
      pieces_.pop_front();
    }
  }
  return 0;
}

}  // namespace maru::tierd
