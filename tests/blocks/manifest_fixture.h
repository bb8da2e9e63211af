// Manifests of tests.
#pragma once

#include "maru/blocks/attached_manifest.hpp"
#include "tests/blocks/block_fixture.h"

namespace maru::test {

inline Manifest manifest_of(const std::string& model) {
  Manifest manifest;
  manifest.framework = "vllm";
  manifest.framework_version = "0.11.0";
  manifest.model = model;
  manifest.revision = "8c22764a7e3675c50d4c7c9a4edb474456022b16";
  manifest.dtype = "bfloat16";
  manifest.quantisation = "fp8";
  manifest.layout.kind = MARU_LAYOUT_CONTIGUOUS;
  manifest.layout.order = MARU_LAYOUT_NHD;
  manifest.layout.dtype = MARU_LAYOUT_UINT8;
  manifest.layout.outer = 2;
  manifest.layout.blocks = 1000;
  manifest.layout.layers = 6;
  manifest.layout.page_tokens = kPageSize;
  manifest.layout.heads = 2;
  manifest.layout.head_dim = 128;
  manifest.tensor_ranks = 4;
  manifest.tensor_rank = 1;
  manifest.page_size = kPageSize;
  return manifest;
}

inline std::vector<std::byte> encoded(const Manifest& manifest) {
  Answer<std::vector<std::byte>> bytes = manifest.encode();
  if (!bytes) throw std::runtime_error(std::string(bytes.reason()));
  return std::move(*bytes);
}

// The same bytes with another number at `at`, and the right checksum.
template <typename T>
std::vector<std::byte> forged(std::vector<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  const uint64_t checksum =
      blocks_detail::hash_words(blocks_detail::kChecksumSalt, std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &checksum, sizeof(checksum));
  return bytes;
}

template <typename T>
void expect_refusal(const Answer<T>& answer, int code, const std::string& words) {
  EXPECT_EQ(answer.error(), code) << answer.reason();
  EXPECT_NE(answer.reason().find(words), std::string_view::npos)
      << "\"" << answer.reason() << "\" does not say \"" << words << "\"";
}

}  // namespace maru::test
