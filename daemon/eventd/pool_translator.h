// Translates the events of a pool's follower into routers' events.
//
// A block with tokens in its metadata (token_metadata.h) becomes the engine's blocks of these tokens, under the engine's
// hashes. If the metadata has no hashes, these are Dynamo's sequence hashes of the tokens. A block without tokens is known by a
// hash of its key alone.
//
// Thread safety: one thread.
#pragma once

#include "daemon/eventd/contents.h"
#include "maru/follow.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

namespace maru::eventd {

struct PoolChange {
  enum class Kind : uint8_t {
    kReset,    // nothing of this pool is known any more
    kStored,   // item
    kRemoved,  // of the block
    kCurrent   // all present blocks have been told
  };
  Kind kind = Kind::kReset;
  maru_block block = 0;
  Item item;
};

class PoolTranslator {
 public:
  struct Settings {
    std::string medium = "CPU";
    bool tells_hashes_alone = true;  // also of blocks without tokens
    std::set<std::string> tenants;   // tenants whose blocks are told; empty: all
  };

  explicit PoolTranslator(Settings settings) : settings_(std::move(settings)) {}

  // Nothing: routers need no event for this.
  std::optional<PoolChange> translate(const FollowEvent& event);

  uint64_t without_tokens() const { return without_tokens_; }  // stored, so far
  uint64_t damaged() const { return damaged_; }                // likewise, with metadata that is cut or out of range
  const std::string& last_damage() const { return last_damage_; }

 private:
  std::optional<PoolChange> stored(const FollowEvent& event);
  Item item_of(const FollowEvent& event);

  const Settings settings_;
  std::unordered_map<maru_block, uint64_t>
      last_hashes_;  // of each block that was told of: the hash that its children begin with
  uint64_t without_tokens_ = 0, damaged_ = 0;
  std::string last_damage_;
};

// The hash of a block without tokens. Digests of 128 bits: their first eight bytes, as a number of this machine, which is the
// sequence hash of maru/blocks.hpp. Digests of 256 bits: their last eight bytes, most significant first, as vLLM and llm-d
// shorten hashes. Other keys: XXH3 of all their bytes.
uint64_t hash_of_key(const maru_key& key);

}  // namespace maru::eventd
