#include "daemon/tierd/tiers/resp_operation.h"

#include "daemon/tierd/tiers/resp_text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <hiredis/hiredis.h>
#include <string_view>

namespace maru::tierd {

std::string RespOperation::take(const redisReply& reply) {
  if (reply.type == REDIS_REPLY_ERROR) {
    const std::string_view text = text_of(reply);
    const bool is_moved = text.starts_with("MOVED") || text.starts_with("ASK");
    result = text.starts_with("OOM") ? -ENOSPC : is_moved ? -EOPNOTSUPP : -EIO;
    if (result == -ENOSPC) return {};
    return std::string(text) + (is_moved ? " (a cluster redirects; name a proxy, or a server without a cluster)" : "");
  }
  if (request.kind != MARU_TIER_STORE && !has_head) {
    if (!take_head(reply)) result = reply.type == REDIS_REPLY_NIL ? -ENOENT : -EBADMSG;
  } else if (request.kind == MARU_TIER_LOAD) {
    take_chunk(reply);
  }
  return {};
}

bool RespOperation::take_head(const redisReply& reply) {
  if (reply.type != REDIS_REPLY_STRING) return false;
  auto found = decode_resp_head(text_of(reply), key);
  // A damaged head goes, too. It names no chunks that could go with it.
  if (!found && request.kind != MARU_TIER_DELETE) return false;
  if (found) head = std::move(*found);
  has_head = true;
  return true;
}

bool RespOperation::asks_on() const {
  return result == 0 && has_head && next_chunk == 0 && request.kind != MARU_TIER_LOOKUP;
}

bool RespOperation::accept_head() {
  next_chunk = 1;
  if (request.kind != MARU_TIER_LOAD) return true;
  if (head.payload_bytes != request.payload_bytes) result = -ESTALE;
  if (head.attributes.size() > request.attributes_bytes) result = -ENOBUFS;
  if (result != 0) return false;
  std::memcpy(request.attributes, head.attributes.data(), head.attributes.size());
  return true;
}

bool RespOperation::place_chunk(std::string_view bytes) {
  if (request.kind != MARU_TIER_LOAD || next_chunk == 0 || result != 0 || bytes.empty() ||
      bytes.size() != std::min(head.chunk_bytes, head.payload_bytes - chunk_begin()))
    return false;
  std::memcpy(static_cast<char*>(request.payload) + chunk_begin(), bytes.data(), bytes.size());
  return true;
}

void RespOperation::take_chunk(const redisReply& reply) {
  const uint64_t expected = std::min(head.chunk_bytes, head.payload_bytes - chunk_begin());
  if (reply.type != REDIS_REPLY_STRING)
    result = -ENOENT;  // the server has evicted a part
  else if (uint64_t(reply.len) != expected)
    result = -EBADMSG;
  else if (result == 0 && reply.str)
    place_chunk(text_of(reply));
  ++next_chunk;
}

}  // namespace maru::tierd
