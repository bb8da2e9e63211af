#include "libmaru/tokens/sha256.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maru::tokens {
namespace {

constexpr size_t kBlockBytes = 64;

alignas(16) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Compress = void (*)(uint32_t state[8], const uint8_t* data, size_t blocks);

void compress_portable(uint32_t state[8], const uint8_t* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += kBlockBytes) {
    uint32_t w[64];
    for (size_t i = 0; i < 16; ++i) {
      uint32_t word;
      std::memcpy(&word, data + 4 * i, 4);
      w[i] = __builtin_bswap32(word);
    }
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t early = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t late = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + early + w[i - 7] + late;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t first = h + sum1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t second = sum0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

#if defined(__x86_64__)
// The instructions keep the eight words as ABEF and CDGH, and take four words of the schedule at a time.
__attribute__((target("sha,sse4.1"))) void compress_sha_instructions(uint32_t state[8], const uint8_t* data,
                                                                     size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i dcba = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xB1);
  const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1B);
  __m128i abef = _mm_alignr_epi8(dcba, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, dcba, 0xF0);
  for (; blocks > 0; --blocks, data += kBlockBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& now = w[i & 3];
      if (i < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
      } else {
        const __m128i seven_back = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
        now =
            _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]), seven_back), w[(i + 3) & 3]);
      }
      const __m128i words = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha_instructions() {
  uint32_t a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));  // __builtin_cpu_supports of g++ 12 does not know "sha"
  return (b >> 29 & 1) != 0 && __builtin_cpu_supports("sse4.1");
}
#endif

Compress fastest() {
#if defined(__x86_64__)
  if (has_sha_instructions()) return compress_sha_instructions;
#endif
  return compress_portable;
}

void digest(Compress compress, const uint8_t* message, size_t bytes, uint8_t ret_hash[32]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const size_t whole = bytes / kBlockBytes, rest = bytes % kBlockBytes;
  compress(state, message, whole);
  // The rest, a bit that is set, zeros, and the length in bits.
  uint8_t last[2 * kBlockBytes] = {};
  if (rest > 0) std::memcpy(last, message + whole * kBlockBytes, rest);
  last[rest] = 0x80;
  const size_t last_bytes = rest + 9 <= kBlockBytes ? kBlockBytes : 2 * kBlockBytes;
  const uint64_t bits = __builtin_bswap64(uint64_t(bytes) * 8);
  std::memcpy(last + last_bytes - 8, &bits, 8);
  compress(state, last, last_bytes / kBlockBytes);
  for (uint32_t& word : state) word = __builtin_bswap32(word);
  std::memcpy(ret_hash, state, 32);
}

}  // namespace

void sha256(const uint8_t* message, size_t bytes, uint8_t ret_hash[32]) {
  static const Compress compress = fastest();
  digest(compress, message, bytes, ret_hash);
}

void sha256_portable(const uint8_t* message, size_t bytes, uint8_t ret_hash[32]) {
  digest(compress_portable, message, bytes, ret_hash);
}

}  // namespace maru::tokens
