// BLAKE3 of a message that is there as a whole: no key, 32 bytes of output.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maru::tokens {

void blake3(const uint8_t* message, size_t bytes, uint8_t ret_hash[32]);

}  // namespace maru::tokens
