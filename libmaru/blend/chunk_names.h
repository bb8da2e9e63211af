// The names of chunks in one space, and maru_spans, which has them.
#pragma once

#include "libmaru/blend/rolling_hash.h"
#include "libmaru/blend/span_record.h"
#include "maru/spans.h"

#include <cstdint>

namespace maru::blend {

// The 16 bytes of a key, which the pool takes for a digest and turns into one of its own with its secret.
struct NameBytes {
  uint64_t tokens;
  uint64_t space;
};

// Does not change, so any number of threads may use it.
class ChunkNames {
 public:
  // `secret`: 64 bits that only clients of the pool know, with another secret for each fingerprint.
  ChunkNames(const maru_spans_options& options, const Fingerprint& fingerprint, uint64_t secret)
      : hash_(secret, options.window),
        fingerprint_(fingerprint),
        tenant_(options.tenant),
        occupants_(options.occupants != 0 ? options.occupants : 1) {
    std::memcpy(&space_word_, fingerprint.data(), sizeof(space_word_));
  }

  const RollingHash& hash() const { return hash_; }
  uint32_t window() const { return hash_.window(); }
  uint64_t tenant() const { return tenant_; }
  uint32_t occupants() const { return occupants_; }

  // Each occupant of a content has a key of its own, which the tokens alone decide, too.
  uint64_t space_word(uint32_t occupant) const { return space_word_ + occupant * 0x9E37'79B9'7F4A'7C15; }
  NameBytes name(const uint32_t* tokens, uint32_t occupant) const { return {hash_.of(tokens), space_word(occupant)}; }
  maru_key key(const NameBytes& name) const { return {&name, sizeof(name), MARU_KEY_DIGEST128, tenant_}; }

  RecordHeader header(uint64_t position, uint32_t chain_blocks, uint32_t note_bytes) const {
    return {kRecordMagic, window(), position, tenant_, fingerprint_, chain_blocks, note_bytes};
  }
  // Nothing: the block that this view holds has other tokens, or none.
  std::optional<Record> record(maru_client* client, const maru_view& view, const uint32_t* tokens) const {
    maru_metadata metadata = {};
    if (maru_view_metadata(client, &view, &metadata) != 0 || metadata.data == nullptr) return std::nullopt;
    return read_record(metadata, fingerprint_, tenant_, tokens, window());
  }

 private:
  RollingHash hash_;
  Fingerprint fingerprint_;
  uint64_t tenant_;
  uint64_t space_word_ = 0;
  uint32_t occupants_;
};

}  // namespace maru::blend

struct maru_spans {
  maru_client* client;
  maru::blend::ChunkNames names;
};
