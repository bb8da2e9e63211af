#include "libmaru/tokens/block_text.h"

#include <bit>
#include <cstring>

namespace maru::tokens {
namespace {

uint8_t* append(uint8_t* out, const void* bytes, size_t n) {
  if (n > 0) std::memcpy(out, bytes, n);
  return out + n;
}

// -- CBOR (RFC 8949): the kind in three bits, and a number in as few bytes as it needs --------------------------------

constexpr uint8_t kUnsigned = 0 << 5, kBytes = 2 << 5, kText = 3 << 5, kArray = 4 << 5, kNull = 0xF6;

uint8_t* cbor_head(uint8_t* out, uint8_t kind, uint32_t number) {
  if (number < 24) {
    *out++ = uint8_t(kind | number);
  } else if (number < 0x100) {
    *out++ = uint8_t(kind | 24);
    *out++ = uint8_t(number);
  } else if (number < 0x10000) {
    *out++ = uint8_t(kind | 25);
    const uint16_t big = __builtin_bswap16(uint16_t(number));
    out = append(out, &big, 2);
  } else {
    *out++ = uint8_t(kind | 26);
    const uint32_t big = __builtin_bswap32(number);
    out = append(out, &big, 4);
  }
  return out;
}

uint8_t* cbor_number(uint8_t* out, uint64_t number) {
  if (number >> 32 == 0) return cbor_head(out, kUnsigned, uint32_t(number));
  *out++ = uint8_t(kUnsigned | 27);
  const uint64_t big = __builtin_bswap64(number);
  return append(out, &big, 8);
}

uint8_t* cbor_text(uint8_t* out, std::string_view text) {
  return append(cbor_head(out, kText, uint32_t(text.size())), text.data(), text.size());
}

uint8_t* cbor_tokens(uint8_t* out, std::span<const uint32_t> tokens) {
  out = cbor_head(out, kArray, uint32_t(tokens.size()));
  for (const uint32_t token : tokens) {
    if (token < 0x100) [[unlikely]] {
      out = cbor_head(out, kUnsigned, token);
      continue;
    }
    // The sizes of tokens (two bytes or four) are unpredictable, so this has no branch: bytes written in excess are
    // overwritten.
    const uint32_t is_long = uint32_t(token >> 16 != 0);
    const uint32_t big = __builtin_bswap32(token << (16 & (is_long - 1)));
    *out = uint8_t(kUnsigned | (25 + is_long));
    std::memcpy(out + 1, &big, 4);
    out += 3 + 2 * is_long;
  }
  return out;
}

// -- pickle, protocol 5: one frame, and every object but numbers and None is memoised, whether it is used again or not -

uint8_t* pickle_number(uint8_t* out, uint64_t number) {
  if (number < 0x100) {
    *out++ = 'K';
    *out++ = uint8_t(number);
    return out;
  }
  if (number < 0x10000) {
    *out++ = 'M';
    return append(out, &number, 2);
  }
  if (number < 0x80000000u) {
    *out++ = 'J';
    return append(out, &number, 4);
  }
  *out++ = 0x8a;  // a long: its bytes in two's complement, so a zero after a highest bit that is set
  const uint64_t bytes[2] = {number, 0};
  const size_t n = size_t(std::bit_width(number)) / 8 + 1;
  *out++ = uint8_t(n);
  return append(out, bytes, n);
}

constexpr uint8_t kMemoise = 0x94;

// A tuple of n objects: begin_tuple, the objects, end_tuple.
uint8_t* begin_tuple(uint8_t* out, size_t n) {
  if (n > 3) *out++ = '(';
  return out;
}

uint8_t* end_tuple(uint8_t* out, size_t n) {
  *out++ = n > 3 ? 't' : uint8_t(0x84 + n);  // 0x85, 0x86, 0x87: of one, two and three
  *out++ = kMemoise;
  return out;
}

uint8_t* pickle_text(uint8_t* out, std::string_view text) {
  if (text.size() < 0x100) {
    *out++ = 0x8c;
    *out++ = uint8_t(text.size());
  } else {
    *out++ = 'X';
    const auto size = uint32_t(text.size());
    out = append(out, &size, 4);
  }
  out = append(out, text.data(), text.size());
  *out++ = kMemoise;
  return out;
}

uint8_t* pickle_tokens(uint8_t* out, std::span<const uint32_t> tokens) {
  out = begin_tuple(out, tokens.size());
  for (const uint32_t token : tokens) {
    if (token < 0x100 || token >= 0x80000000u) [[unlikely]] {
      out = pickle_number(out, token);
      continue;
    }
    const uint32_t is_long = uint32_t(token >> 16 != 0);  // without a branch, as above
    *out = uint8_t('M' - is_long * ('M' - 'J'));
    std::memcpy(out + 1, &token, 4);
    out += 3 + 2 * is_long;
  }
  return end_tuple(out, tokens.size());
}

constexpr size_t kPickleHead = 11;  // the protocol, and the frame with its length

size_t finish_pickle(uint8_t* begin, uint8_t* out) {
  *out++ = '.';
  const uint8_t head[3] = {0x80, 5, 0x95};
  const uint64_t frame = uint64_t(out - begin) - kPickleHead;
  append(append(begin, head, 3), &frame, 8);
  return size_t(out - begin);
}

}  // namespace

size_t write_cbor(std::span<const uint8_t> parent, std::span<const uint32_t> tokens, ExtraKeys extra,
                  uint8_t* ret_text) {
  uint8_t* out = cbor_head(ret_text, kArray, 3);
  out = append(cbor_head(out, kBytes, uint32_t(parent.size())), parent.data(), parent.size());
  out = cbor_tokens(out, tokens);
  if (extra.empty()) {
    *out++ = kNull;
  } else {
    out = cbor_head(out, kArray, uint32_t(extra.size()));
    for (const ExtraKey& key : extra) {
      if (key.is_tuple) out = cbor_head(out, kArray, uint32_t(key.n));
      for (const std::string_view text : key.all()) out = cbor_text(out, text);
    }
  }
  return size_t(out - ret_text);
}

size_t write_pickle(std::span<const uint8_t> parent, std::span<const uint32_t> tokens, ExtraKeys extra,
                    uint8_t* ret_text) {
  uint8_t* out = ret_text + kPickleHead;
  *out++ = 'C';
  *out++ = uint8_t(parent.size());
  out = append(out, parent.data(), parent.size());
  *out++ = kMemoise;
  out = pickle_tokens(out, tokens);
  if (extra.empty()) {
    *out++ = 'N';
  } else {
    out = begin_tuple(out, extra.size());
    for (const ExtraKey& key : extra) {
      for (const std::string_view text : key.all()) out = pickle_text(out, text);
      if (key.is_tuple) out = end_tuple(out, key.n);  // of two or three, which has no beginning
    }
    out = end_tuple(out, extra.size());
  }
  return finish_pickle(ret_text, end_tuple(out, 3));
}

size_t write_cbor(uint64_t parent, std::span<const uint32_t> tokens, uint8_t* ret_text) {
  uint8_t* out = cbor_tokens(cbor_number(cbor_head(ret_text, kArray, 3), parent), tokens);
  *out++ = kArray;
  return size_t(out - ret_text);
}

size_t write_pickle(uint64_t parent, std::span<const uint32_t> tokens, uint8_t* ret_text) {
  uint8_t* out = pickle_tokens(pickle_number(ret_text + kPickleHead, parent), tokens);
  *out++ = ')';
  return finish_pickle(ret_text, end_tuple(out, 3));
}

size_t write_cbor(std::string_view text, uint8_t* ret_text) { return size_t(cbor_text(ret_text, text) - ret_text); }

size_t write_pickle(std::string_view text, uint8_t* ret_text) {
  return finish_pickle(ret_text, pickle_text(ret_text + kPickleHead, text));
}

size_t write_cbor_of_zeros(uint8_t* ret_text) {
  const uint8_t text[] = {kArray | 3, kUnsigned, kArray | 1, kUnsigned, kNull};
  return size_t(append(ret_text, text, sizeof(text)) - ret_text);
}

size_t write_pickle_of_zeros(uint8_t* ret_text) {
  const uint32_t zero = 0;
  uint8_t* out = pickle_number(ret_text + kPickleHead, 0);
  out = pickle_tokens(out, {&zero, 1});
  *out++ = 'N';
  return finish_pickle(ret_text, end_tuple(out, 3));
}

}  // namespace maru::tokens
