// Keys that lie in rows (maru_key_rows), hashed where they lie.
#pragma once

#include "libmaru/shm/blocks/hash.h"
#include "maru/format/limits.h"
#include "maru/maru.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace maru::client {

// False if not all of these texts are keys, or if they cannot be hashed beside each other. The loops are simple enough for a
// compiler to do several texts at a time.
inline bool are_beside(const maru_key_rows& rows, size_t first, size_t count, shm::SipInputs& ret_inputs) {
  ret_inputs.count = count;
  const auto* const data = static_cast<const std::byte*>(rows.data) + first * rows.stride;
  for (size_t k = 0; k < count; ++k) ret_inputs.data[k] = data + k * rows.stride;
  if (rows.sizes == nullptr) {
    for (size_t k = 0; k < count; ++k) ret_inputs.size[k] = rows.size;
    return rows.size != 0 && rows.size <= limits::kKeyBytesMax;
  }
  const uint32_t* const sizes = rows.sizes + first;
  uint32_t differ = 0;
  for (size_t k = 0; k < count; ++k) {
    differ |= (sizes[k] ^ sizes[0]) / 8 | (sizes[k] - 1) / limits::kKeyBytesMax;
    ret_inputs.size[k] = sizes[k];
  }
  return differ == 0;
}

// Digests of 128 bits, without gaps between their sizes: they are not made keys.
inline bool are_digests128(const maru_key_rows& rows) {
  return rows.kind == MARU_KEY_DIGEST128 && rows.sizes == nullptr && rows.size == 16;
}

inline void digests_of_rows(const uint64_t* secret, const maru_key_rows& rows, size_t first, size_t end,
                            shm::Digest* ret_digests) {
  const auto* const data = static_cast<const std::byte*>(rows.data) + first * rows.stride;
  shm::digests_of_128(secret, data, rows.stride, end - first, rows.tenant, ret_digests + first);
}

inline maru_key key_of_row(const maru_key_rows& rows, size_t i) {
  const auto* const data = static_cast<const std::byte*>(rows.data) + i * rows.stride;
  return {data, rows.sizes != nullptr ? rows.sizes[i] : rows.size, rows.kind, rows.tenant};
}

}  // namespace maru::client
