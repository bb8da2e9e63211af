// SHA-256 of a message that is there as a whole. Blocks of tokens are messages of about a hundred bytes, for which starting
// OpenSSL's digest costs more than the digest; and this way the library needs none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maru::tokens {

// Uses the processor's SHA instructions where it has them.
void sha256(const uint8_t* message, size_t bytes, uint8_t ret_hash[32]);

// The same without those instructions; for tests.
void sha256_portable(const uint8_t* message, size_t bytes, uint8_t ret_hash[32]);

}  // namespace maru::tokens
