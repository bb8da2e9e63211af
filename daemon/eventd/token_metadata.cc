#include "daemon/eventd/token_metadata.h"

#include "daemon/base/msgpack.h"
#include "daemon/eventd/contents.h"

#include <cerrno>
#include <set>

namespace maru::eventd {
namespace {

using daemon::MsgpackReader;
using daemon::MsgpackWriter;

constexpr std::string_view kMagicKey = "maru";
constexpr uint64_t kVersion = 1;

tl::unexpected<Error> wrong(const std::string& what) { return failure(EBADMSG, "read the tokens of a block: " + what); }

bool read_bytes(MsgpackReader& in, size_t each, std::string_view& ret) {
  return in.text(ret) && ret.size() % each == 0;
}

bool read_tokens(MsgpackReader& in, std::vector<uint32_t>& ret) {
  std::string_view bytes;
  if (!read_bytes(in, 4, bytes)) return false;
  ret.reserve(bytes.size() / 4);
  for (size_t i = 0; i < bytes.size(); i += 4)
    ret.push_back(uint32_t(uint8_t(bytes[i])) | uint32_t(uint8_t(bytes[i + 1])) << 8 |
                  uint32_t(uint8_t(bytes[i + 2])) << 16 | uint32_t(uint8_t(bytes[i + 3])) << 24);
  return true;
}

bool read_hashes(MsgpackReader& in, std::vector<uint64_t>& ret) {
  std::string_view bytes;
  if (!read_bytes(in, 8, bytes)) return false;
  ret.reserve(bytes.size() / 8);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t hash = 0;
    for (const char byte : bytes.substr(i, 8)) hash = hash << 8 | uint8_t(byte);
    ret.push_back(hash);
  }
  return true;
}

bool read_text(MsgpackReader& in, std::string& ret) {
  std::string_view text;
  if (!in.text(text) || text.size() > TokenMetadata::kTextMax) return false;
  ret = text;
  return true;
}

bool read_small(MsgpackReader& in, uint64_t most, uint32_t& ret) {
  uint64_t value = 0;
  if (!in.whole(value) || value > most) return false;
  ret = uint32_t(value);
  return true;
}

bool read_value(MsgpackReader& in, std::string_view key, TokenMetadata& tokens) {
  if (key == "block_size") return read_small(in, TokenMetadata::kBlockSizeMax, tokens.block_size);
  if (key == "tokens") return read_tokens(in, tokens.tokens);
  if (key == "hashes") return read_hashes(in, tokens.hashes);
  if (key == "parent") return in.integer(tokens.parent.emplace());
  if (key == "lora") return read_text(in, tokens.lora);
  if (key == "salt") return read_text(in, tokens.salt);
  if (key == "rank") return read_small(in, Contents::kRanksMax - 1, tokens.rank);
  if (key == "ranks") return read_small(in, Contents::kRanksMax, tokens.ranks);
  return in.skip();
}

Result<void> check(const TokenMetadata& tokens) {
  if (tokens.block_size == 0)
    return wrong("found no block_size, expected 1 to " + std::to_string(TokenMetadata::kBlockSizeMax));
  if (tokens.tokens.empty() || tokens.tokens.size() % tokens.block_size != 0)
    return wrong("found " + std::to_string(tokens.tokens.size()) + " tokens, expected a multiple of block_size, " +
                 std::to_string(tokens.block_size));
  const size_t blocks = tokens.tokens.size() / tokens.block_size;
  if (!tokens.hashes.empty() && tokens.hashes.size() != blocks)
    return wrong("found " + std::to_string(tokens.hashes.size()) + " hashes, expected " + std::to_string(blocks));
  // Routers refuse a prompt that runs in a circle, and all that was told with it.
  std::set<uint64_t> seen(tokens.hashes.begin(), tokens.hashes.end());
  if (seen.size() != tokens.hashes.size() || (tokens.parent && seen.contains(*tokens.parent)))
    return wrong("found one hash twice");
  if (tokens.rank >= tokens.ranks)
    return wrong("found rank " + std::to_string(tokens.rank) + " of " + std::to_string(tokens.ranks));
  return {};
}

}  // namespace

std::string TokenMetadata::encode() const {
  MsgpackWriter out;
  out.map(3 + (hashes.empty() ? 0 : 1) + (parent ? 1 : 0) + (lora.empty() ? 0 : 1) + (salt.empty() ? 0 : 1) +
          (ranks > 1 ? 2 : 0));
  out.text(kMagicKey);
  out.whole(kVersion);
  out.text("block_size");
  out.whole(block_size);
  std::string bytes;
  for (const uint32_t token : tokens)
    for (int i = 0; i < 4; ++i) bytes.push_back(char(token >> (8 * i)));
  out.text("tokens");
  out.binary(bytes);
  bytes.clear();
  for (const uint64_t hash : hashes)
    for (int i = 7; i >= 0; --i) bytes.push_back(char(hash >> (8 * i)));
  if (!hashes.empty()) {
    out.text("hashes");
    out.binary(bytes);
  }
  if (parent) {
    out.text("parent");
    out.whole(*parent);
  }
  for (const auto& [key, value] : {std::pair("lora", &lora), std::pair("salt", &salt)}) {
    if (value->empty()) continue;
    out.text(key);
    out.text(*value);
  }
  if (ranks > 1) {
    out.text("rank");
    out.whole(rank);
    out.text("ranks");
    out.whole(ranks);
  }
  return out.take();
}

Result<std::optional<TokenMetadata>> TokenMetadata::decode(std::string_view bytes) {
  MsgpackReader in(bytes);
  size_t pairs = 0;
  std::string_view key;
  uint64_t version = 0;
  if (in.peek() != MsgpackReader::Type::kMap || !in.map(pairs) || pairs == 0 || !in.text(key) || key != kMagicKey ||
      !in.whole(version))
    return std::nullopt;
  if (version != kVersion)
    return wrong("found version " + std::to_string(version) + ", expected " + std::to_string(kVersion));
  TokenMetadata tokens;
  while (--pairs > 0) {
    if (!in.text(key)) return wrong("found a key that is no text");
    const std::string name(key.substr(0, 40));
    if (!read_value(in, key, tokens)) return wrong("found another value of " + name + " than expected");
  }
  if (auto checked = check(tokens); !checked) return tl::unexpected(checked.error());
  return tokens;
}

}  // namespace maru::eventd
