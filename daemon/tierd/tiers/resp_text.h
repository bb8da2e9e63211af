// The text of an answer of hiredis.
#pragma once

#include <hiredis/hiredis.h>
#include <string_view>

namespace maru::tierd {

// The text lives as long as the answer. It is empty for kinds of answers without text.
inline std::string_view text_of(const redisReply& reply) { return {reply.str ? reply.str : "", size_t(reply.len)}; }

}  // namespace maru::tierd
