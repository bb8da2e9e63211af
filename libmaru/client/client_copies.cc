// For programs that keep copies of blocks elsewhere.
#include "libmaru/client/call.h"
#include "libmaru/client/client.h"
#include "libmaru/shm/blocks/registry.h"

#include <algorithm>
#include <cerrno>

namespace maru::client {

using shm::Digest;
using shm::PageRef;

int Client::peek_block(PageRef ref, maru_view* ret_view) {
  uint32_t slot = 0;
  if (const int status = pin_ref(ref, &slot); status != 0) return status;
  const Digest d = shm::block_digest(region_, ref.page());  // under the pin
  return view_of(ref, slot, &d, ret_view);
}

int Client::report_copies(std::span<const maru_block> blocks) {
  if (read_only_) return -EROFS;
  if (!marud_knows(4)) return -EOPNOTSUPP;
  uint64_t noted = 0;
  while (!blocks.empty()) {
    const auto some = blocks.first(std::min(blocks.size(), wire::kCopiesMax));
    auto reply = connection_.request(wire::Type::kHasCopies, std::as_bytes(some));
    if (!reply) return status_of(reply.error());
    const auto said = wire::read_exactly<wire::CopiesReply>(reply->payload);
    if (!said || said->noted > some.size()) return -EPROTO;
    noted += said->noted;
    blocks = blocks.subspan(some.size());
  }
  return int(noted);
}

}  // namespace maru::client
