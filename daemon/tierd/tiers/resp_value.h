// The form of an entry in a Redis or a Valkey: a head, which proves itself, and the payload in chunks that are named for its
// checksum.
//
//   PREFIX h KEY                 -> head: numbers, key, attributes
//   PREFIX c CHECKSUM i KEY      -> chunk i of the payload with this checksum
//
// The chunks are written before the head. So when chunks of a head are missing, the server has evicted them:
// the entry is absent. Two hosts that store one key at a time write different chunks, or the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace maru::tierd {

struct RespHead {
  uint64_t payload_bytes = 0;
  uint64_t payload_checksum = 0;
  uint64_t chunk_bytes = 0;
  uint64_t note = 0;
  uint64_t stored_us = 0;  // Unix microseconds of the host that stored it: the order of ages
  std::string attributes;

  uint64_t chunks() const {
    return chunk_bytes == 0 ? 0 : payload_bytes / chunk_bytes + (payload_bytes % chunk_bytes != 0);
  }
};

inline constexpr uint64_t kRespChunksMax = 1u << 16;

std::string resp_head_name(std::string_view prefix, std::string_view key);
std::string resp_chunk_name(std::string_view prefix, std::string_view key, uint64_t checksum, uint64_t chunk);
std::string encode_resp_head(const RespHead& head, std::string_view key);
// Nothing: these bytes are no head of this key.
std::optional<RespHead> decode_resp_head(std::string_view bytes, std::string_view key);

// The beginning of a head has its numbers, and no proof: enough to count the entry. `ret_attributes_bytes`: their length; the
// attributes themselves are left out.
inline constexpr size_t kRespFixedBytes = 64;
std::optional<RespHead> decode_resp_numbers(std::string_view bytes, std::string_view key,
                                            uint32_t& ret_attributes_bytes);

}  // namespace maru::tierd
