// The serialised form of a block of tokens, as vLLM hashes it: the tuple (hash before, tuple of tokens, extra keys or None).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace maru::tokens {

// A text by itself, or a tuple of texts.
struct ExtraKey {
  std::array<std::string_view, 3> texts;
  size_t n = 0;
  bool is_tuple = false;

  std::span<const std::string_view> all() const { return std::span(texts).first(n); }
};

// Empty for None.
using ExtraKeys = std::span<const ExtraKey>;

// Room that is enough for a block of so many tokens, with any parent and any two extra keys.
constexpr size_t block_text_bytes_max(size_t tokens) { return 5120 + 8 * tokens; }

// Canonical CBOR, as cbor2 writes it, and a pickle of protocol 5, as CPython writes it. Both return the bytes written.
size_t write_cbor(std::span<const uint8_t> parent, std::span<const uint32_t> tokens, ExtraKeys extra,
                  uint8_t* ret_text);
size_t write_pickle(std::span<const uint8_t> parent, std::span<const uint32_t> tokens, ExtraKeys extra,
                    uint8_t* ret_text);

// The same of the tuple (hash before, tuple of tokens, empty tuple), where that hash is a number.
size_t write_cbor(uint64_t parent, std::span<const uint32_t> tokens, uint8_t* ret_text);
size_t write_pickle(uint64_t parent, std::span<const uint32_t> tokens, uint8_t* ret_text);

// The text of a single string, which vLLM hashes in place of a parent of the first block.
size_t write_cbor(std::string_view text, uint8_t* ret_text);
size_t write_pickle(std::string_view text, uint8_t* ret_text);

// And of the tuple (0, (0,), None), which LMCache hashes for the same.
size_t write_cbor_of_zeros(uint8_t* ret_text);
size_t write_pickle_of_zeros(uint8_t* ret_text);

}  // namespace maru::tokens
