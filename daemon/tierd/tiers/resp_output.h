// Commands on their way to a Redis. Names and numbers are copied, payloads are not: they go to the kernel out of the memory of
// the request, which stays until its answer has come.
//
// The library's own buffer copies each payload twice, and moves all that waits behind it with every write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace maru::tierd {

struct RespWord {
  std::string_view bytes;
  bool stays = false;  // until sent_bytes() has passed it: a long one is not copied
};

class RespOutput {
 public:
  // One command, "*3 $3 SET ...".
  void add(std::span<const RespWord> words);
  void add(std::initializer_list<RespWord> words) { add(std::span(words.begin(), words.size())); }
  // As much as goes without waiting. 0, or -errno: the connection is over.
  int write(int socket);
  bool is_empty() const { return pieces_.empty(); }
  // Of all that was added, since clear().
  uint64_t added_bytes() const { return added_bytes_; }
  uint64_t sent_bytes() const { return sent_bytes_; }
  void clear() { *this = {}; }

 private:
  static constexpr size_t kCopiedBytesMax = 4096;
  static constexpr size_t kPiecesMax = 64;  // of one write

  struct Piece {
    std::string own;
    std::string_view foreign;
    std::string_view bytes() const { return foreign.empty() ? std::string_view(own) : foreign; }
  };
  void copy(std::string_view bytes);

  std::deque<Piece> pieces_;
  size_t sent_ = 0;  // of the first
  uint64_t added_bytes_ = 0, sent_bytes_ = 0;
};

}  // namespace maru::tierd
