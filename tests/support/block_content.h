// Payloads that say whose they are and whether they are whole: a header that names the key, bytes that follow from a
// number, and a checksum over both.
#pragma once

#include "tests/support/random.h"

#include <cstdint>
#include <cstring>
#include <string_view>

namespace maru::test {

class BlockContent {
 public:
  static constexpr uint64_t kBytesMin = 4 * sizeof(uint64_t);

  // `bytes` is at least kBytesMin.
  static void write(void* data, uint64_t bytes, std::string_view key, uint64_t number) {
    const Head head{hash(key.data(), key.size()), bytes, number, 0};
    auto* out = static_cast<unsigned char*>(data);
    Random random(number ^ head.key);
    uint64_t at = sizeof(Head);
    for (; at + 8 <= bytes; at += 8) {
      const uint64_t word = random.next();
      std::memcpy(out + at, &word, 8);
    }
    std::memset(out + at, int(number & 0xFF), bytes - at);
    Head sealed = head;
    sealed.sum = sum_of(head, out, bytes);
    std::memcpy(out, &sealed, sizeof(sealed));
  }

  // nullptr, or what is wrong.
  static const char* problem(const void* data, uint64_t bytes, std::string_view key) {
    if (bytes < kBytesMin) return "the payload is too short";
    Head head;
    std::memcpy(&head, data, sizeof(head));
    if (head.bytes != bytes) return "the payload has another length than it says";
    if (head.key != hash(key.data(), key.size())) return "the payload is that of another key";
    if (head.sum != sum_of({head.key, head.bytes, head.number, 0}, static_cast<const unsigned char*>(data), bytes))
      return "the payload is damaged";
    return nullptr;
  }

 private:
  struct Head {
    uint64_t key, bytes, number, sum;
  };
  static_assert(sizeof(Head) == kBytesMin);

  // FNV-1a over words; the tail byte by byte.
  static uint64_t hash(const void* data, uint64_t bytes, uint64_t sum = 0xcbf2'9ce4'8422'2325ull) {
    const auto* in = static_cast<const unsigned char*>(data);
    uint64_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
      uint64_t word;
      std::memcpy(&word, in + at, 8);
      sum = (sum ^ word) * 0x100'0000'01b3ull;
      sum ^= sum >> 29;
    }
    for (; at < bytes; ++at) sum = (sum ^ in[at]) * 0x100'0000'01b3ull;
    return sum;
  }
  static uint64_t sum_of(const Head& head, const unsigned char* data, uint64_t bytes) {
    return hash(data + sizeof(Head), bytes - sizeof(Head), hash(&head, sizeof(Head)));
  }
};

}  // namespace maru::test
