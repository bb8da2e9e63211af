#include "daemon/eventd/pool_translator.h"

#include "daemon/eventd/token_metadata.h"
#include "maru/tokens.h"

#include <cstring>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::eventd {
namespace {

constexpr uint64_t kDynamoSalt = 1337;  // of Dynamo's router

// Blocks of other LoRAs and salts have other hashes. Without either they equal the hashes of Dynamo's router.
uint64_t salt_of(const TokenMetadata& tokens) {
  if (tokens.lora.empty() && tokens.salt.empty()) return kDynamoSalt;
  const std::string both = tokens.lora + std::string(1, '\0') + tokens.salt;
  return kDynamoSalt + XXH3_64bits(both.data(), both.size());
}

void compute_hashes(const TokenMetadata& tokens, const std::optional<uint64_t>& parent, std::vector<uint64_t>& ret) {
  ret.resize(tokens.tokens.size() / tokens.block_size);
  // Never fails: the metadata was checked before.
  maru_tokens_dynamo(salt_of(tokens), parent ? &*parent : nullptr, tokens.block_size, tokens.tokens.data(),
                     tokens.tokens.size(), nullptr, ret.data());
}

}  // namespace

uint64_t hash_of_key(const maru_key& key) {
  uint64_t hash = 0;
  const auto* bytes = static_cast<const uint8_t*>(key.data);
  if (key.kind == MARU_KEY_DIGEST128 && key.size == 16) {
    std::memcpy(&hash, bytes, sizeof(hash));
    return hash;
  }
  if (key.kind == MARU_KEY_DIGEST256 && key.size == 32) {
    for (int i = 24; i < 32; ++i) hash = hash << 8 | bytes[i];
    return hash;
  }
  return XXH3_64bits(bytes, key.size);
}

Item PoolTranslator::item_of(const FollowEvent& event) {
  Item item;
  Blocks& blocks = item.blocks;
  blocks.medium = settings_.medium;
  if (const auto found = last_hashes_.find(event.parent); event.parent != 0 && found != last_hashes_.end())
    blocks.parent = found->second;
  const std::span<const std::byte> metadata = event.metadata_span();
  auto tokens = TokenMetadata::decode({reinterpret_cast<const char*>(metadata.data()), metadata.size()});
  if (!tokens) {
    ++damaged_;
    last_damage_ = tokens.error().doing;
  }
  if (!tokens || !*tokens) {
    ++without_tokens_;
    blocks.hashes = {hash_of_key(event.key)};
    if (!blocks.parent && event.parent_key.size > 0) blocks.parent = hash_of_key(event.parent_key);
    return item;
  }
  TokenMetadata& known = **tokens;
  if (known.parent) blocks.parent = known.parent;
  if (known.hashes.empty()) compute_hashes(known, blocks.parent, known.hashes);
  blocks.hashes = std::move(known.hashes);
  blocks.tokens = std::move(known.tokens);
  blocks.block_size = known.block_size;
  blocks.lora_name = std::move(known.lora);
  blocks.cache_salt = std::move(known.salt);
  item.rank = known.rank;
  item.ranks = known.ranks;
  return item;
}

std::optional<PoolChange> PoolTranslator::stored(const FollowEvent& event) {
  PoolChange change = {PoolChange::Kind::kStored, event.block, item_of(event)};
  last_hashes_[event.block] = change.item.blocks.hashes.back();
  if (!settings_.tells_hashes_alone && !change.item.blocks.has_tokens()) return std::nullopt;
  return change;
}

std::optional<PoolChange> PoolTranslator::translate(const FollowEvent& event) {
  const bool is_of_block = event.is(MARU_FOLLOW_STORED) || event.is(MARU_FOLLOW_REMOVED);
  if (is_of_block && !settings_.tenants.empty() && !settings_.tenants.contains(std::string(event.tenant())))
    return std::nullopt;
  switch (event.kind) {
    case MARU_FOLLOW_RESET: last_hashes_.clear(); return PoolChange{PoolChange::Kind::kReset, 0, {}};
    case MARU_FOLLOW_CURRENT: return PoolChange{PoolChange::Kind::kCurrent, 0, {}};
    case MARU_FOLLOW_STORED: return stored(event);
    case MARU_FOLLOW_REMOVED:
      last_hashes_.erase(event.block);
      return PoolChange{PoolChange::Kind::kRemoved, event.block, {}};
    default: return std::nullopt;
  }
}

}  // namespace maru::eventd
