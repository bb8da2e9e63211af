#include "daemon/eventd/vllm_batch.h"

#include "daemon/base/msgpack.h"

#include <array>
#include <cerrno>
#include <span>

namespace maru::eventd {
namespace {

using daemon::MsgpackReader;
using daemon::MsgpackWriter;

using Type = MsgpackReader::Type;

// -- writing ----------------------------------------------------------------------------------------------------------

void write_hashes(MsgpackWriter& out, const std::vector<uint64_t>& hashes) {
  out.text("block_hashes");
  out.array(hashes.size());
  for (const uint64_t hash : hashes) out.whole(hash);
}

void write_optional_text(MsgpackWriter& out, const char* name, const std::string& value) {
  out.text(name);
  if (value.empty())
    out.nil();
  else
    out.text(value);
}

void write_stored(MsgpackWriter& out, const Blocks& blocks) {
  const bool has_keys = !blocks.extra_keys.empty();
  out.map(8 + (blocks.cache_salt.empty() ? 0 : 1) + (has_keys ? 1 : 0) + blocks.place_pairs + blocks.more_pairs);
  out.text("type");
  out.text("BlockStored");
  write_hashes(out, blocks.hashes);
  out.text("parent_block_hash");
  if (blocks.parent)
    out.whole(*blocks.parent);
  else
    out.nil();
  out.text("token_ids");
  out.array(blocks.tokens.size());
  for (const uint32_t token : blocks.tokens) out.whole(token);
  out.text("block_size");
  out.whole(blocks.block_size);
  out.text("lora_id");
  if (blocks.lora_id)
    out.negative(int64_t(*blocks.lora_id));
  else
    out.nil();
  write_optional_text(out, "medium", blocks.medium);
  write_optional_text(out, "lora_name", blocks.lora_name);
  if (!blocks.cache_salt.empty()) write_optional_text(out, "cache_salt", blocks.cache_salt);
  if (has_keys) {
    out.text("extra_keys");
    out.array(blocks.extra_keys.size());
    for (const std::string& key : blocks.extra_keys) out.raw(key);
  }
  out.raw(blocks.place);
  out.raw(blocks.more);
}

void write_removed(MsgpackWriter& out, const Blocks& blocks) {
  out.map(3 + blocks.place_pairs);
  out.text("type");
  out.text("BlockRemoved");
  write_hashes(out, blocks.hashes);
  write_optional_text(out, "medium", blocks.medium);
  out.raw(blocks.place);
}

// -- reading ----------------------------------------------------------------------------------------------------------

// The names of the fields of an event that is an array, in their order behind the type.
constexpr std::array<std::string_view, 11> kStoredFields = {"block_hashes",
                                                            "parent_block_hash",
                                                            "token_ids",
                                                            "block_size",
                                                            "lora_id",
                                                            "medium",
                                                            "lora_name",
                                                            "extra_keys",
                                                            "group_idx",
                                                            "kv_cache_spec_kind",
                                                            "kv_cache_spec_sliding_window"};
constexpr std::array<std::string_view, 3> kRemovedFields = {"block_hashes", "medium", "group_idx"};

bool tells_place(std::string_view field) { return field == "group_idx" || field == "locality"; }

tl::unexpected<Error> bad_batch(std::string what) {
  return failure(EBADMSG, "read a batch of events: " + std::move(what));
}

// A number, or the bytes of a longer hash, of which the last eight count.
bool read_hash(MsgpackReader& in, uint64_t& ret) {
  if (in.peek() != Type::kBinary && in.peek() != Type::kText) return in.integer(ret);
  std::string_view bytes;
  if (!in.text(bytes) || bytes.empty() || bytes.size() > 64) return false;
  ret = 0;
  for (const char byte : bytes.substr(bytes.size() > 8 ? bytes.size() - 8 : 0)) ret = ret << 8 | uint8_t(byte);
  return true;
}

bool read_hash_list(MsgpackReader& in, std::vector<uint64_t>& ret) {
  size_t count = 0;
  if (!in.array(count) || count > kBlocksOfEventMax) return false;
  ret.reserve(count);
  for (uint64_t hash = 0; count-- > 0; ret.push_back(hash))
    if (!read_hash(in, hash)) return false;
  return true;
}

bool read_token_list(MsgpackReader& in, std::vector<uint32_t>& ret) {
  size_t count = 0;
  if (!in.array(count)) return false;
  ret.reserve(count);
  while (count-- > 0) {
    uint64_t token = 0;
    if (!in.integer(token) || token > UINT32_MAX) return false;
    ret.push_back(uint32_t(token));
  }
  return true;
}

bool read_text_or_nil(MsgpackReader& in, std::string& ret) {
  if (in.nil()) return true;
  std::string_view text;
  if (!in.text(text)) return false;
  ret = text;
  return true;
}

// Passes one value, and appends its bytes.
bool read_raw(MsgpackReader& in, std::string& ret) {
  const std::string_view before = in.rest();
  if (!in.skip()) return false;
  ret += before.substr(0, before.size() - in.rest().size());
  return true;
}

bool read_extra_keys(MsgpackReader& in, std::vector<std::string>& ret) {
  if (in.nil()) return true;
  size_t count = 0;
  if (!in.array(count) || count > kBlocksOfEventMax) return false;
  for (ret.reserve(count); count-- > 0;)
    if (!read_raw(in, ret.emplace_back())) return false;
  return true;
}

bool read_other(MsgpackReader& in, std::string_view name, RouterEvent::Kind kind, Blocks& blocks) {
  if (in.nil()) return true;
  MsgpackWriter pair;
  pair.text(name);
  std::string value;
  if (!read_raw(in, value)) return false;
  const bool is_place = tells_place(name);
  if (kind == RouterEvent::Kind::kRemoved && !is_place) return true;
  (is_place ? blocks.place : blocks.more) += pair.bytes() + value;
  ++(is_place ? blocks.place_pairs : blocks.more_pairs);
  return true;
}

bool read_field(MsgpackReader& in, std::string_view name, RouterEvent::Kind kind, Blocks& blocks) {
  if (name == "block_hashes") return read_hash_list(in, blocks.hashes);
  if (name == "medium") return read_text_or_nil(in, blocks.medium);
  if (kind == RouterEvent::Kind::kStored) {
    if (name == "token_ids") return read_token_list(in, blocks.tokens);
    if (name == "lora_name") return read_text_or_nil(in, blocks.lora_name);
    if (name == "cache_salt") return read_text_or_nil(in, blocks.cache_salt);
    if (name == "extra_keys") return read_extra_keys(in, blocks.extra_keys);
    uint64_t number = 0;
    if (name == "parent_block_hash" || name == "lora_id") {
      if (in.nil()) return true;
      if (name == "lora_id" ? !in.integer(number) : !read_hash(in, number)) return false;
      (name == "lora_id" ? blocks.lora_id : blocks.parent) = number;
      return true;
    }
    if (name == "block_size") {
      if (!in.whole(number) || number > UINT32_MAX) return false;
      blocks.block_size = uint32_t(number);
      return true;
    }
  }
  return read_other(in, name, kind, blocks);
}

std::optional<RouterEvent::Kind> kind_of(std::string_view type) {
  if (type == "BlockStored") return RouterEvent::Kind::kStored;
  if (type == "BlockRemoved") return RouterEvent::Kind::kRemoved;
  if (type == "AllBlocksCleared") return RouterEvent::Kind::kCleared;
  return std::nullopt;
}

Result<void> check(const RouterEvent& event) {
  const Blocks& blocks = event.blocks;
  if (event.kind != RouterEvent::Kind::kStored) return {};
  if (blocks.has_tokens() && blocks.tokens.size() != blocks.hashes.size() * uint64_t(blocks.block_size))
    return bad_batch("found " + std::to_string(blocks.tokens.size()) + " tokens in " +
                     std::to_string(blocks.hashes.size()) + " blocks of " + std::to_string(blocks.block_size));
  if (!blocks.extra_keys.empty() && blocks.extra_keys.size() != blocks.hashes.size())
    return bad_batch("found extra keys of " + std::to_string(blocks.extra_keys.size()) + " blocks with " +
                     std::to_string(blocks.hashes.size()) + " hashes");
  return {};
}

// The type may stand anywhere in a map, so it is looked for first.
bool find_type(MsgpackReader in, size_t pairs, std::string_view& ret) {
  while (pairs-- > 0) {
    std::string_view name;
    if (!in.text(name)) return false;
    if (name == "type") return in.text(ret);
    if (!in.skip()) return false;
  }
  return false;
}

Result<RouterEvent> read_event(MsgpackReader& in) {
  const bool is_map = in.peek() == Type::kMap;
  size_t count = 0;
  std::string_view type;
  if (is_map ? !in.map(count) || !find_type(in, count, type) : !in.array(count) || count == 0 || !in.text(type))
    return bad_batch("found an event without a type");
  const auto kind = kind_of(type);
  if (!kind) return bad_batch("found an event of an unknown type");
  RouterEvent event = {*kind, {}};
  const std::span<const std::string_view> names =
      *kind == RouterEvent::Kind::kStored    ? std::span<const std::string_view>(kStoredFields)
      : *kind == RouterEvent::Kind::kRemoved ? std::span<const std::string_view>(kRemovedFields)
                                             : std::span<const std::string_view>();
  for (size_t i = is_map ? 0 : 1; i < count; ++i) {
    std::string_view name;
    if (is_map && !in.text(name)) return bad_batch("found a field without a name");
    if (!is_map && i <= names.size()) name = names[i - 1];
    if (name.empty() || name == "type") {
      if (!in.skip()) return bad_batch("found a field that is cut");
      continue;
    }
    if (!read_field(in, name, *kind, event.blocks))
      return bad_batch("found another value of " + std::string(name.substr(0, 40)) + " than expected");
  }
  if (auto checked = check(event); !checked) return tl::unexpected(checked.error());
  return event;
}

Result<void> read_events(MsgpackReader& in, EngineBatch& batch) {
  size_t count = 0;
  if (!in.array(count)) return bad_batch("found no list of events");
  while (count-- > 0) {
    auto event = read_event(in);
    if (!event) return tl::unexpected(event.error());
    if (event->kind == RouterEvent::Kind::kCleared || !event->blocks.hashes.empty())
      batch.events.push_back(std::move(*event));
  }
  return {};
}

bool read_rank(MsgpackReader& in, EngineBatch& batch) {
  if (in.nil()) return true;
  uint64_t rank = 0;
  if (!in.integer(rank)) return false;
  batch.rank = int64_t(rank);
  return true;
}

}  // namespace

std::string encode_batch(double seconds, const EventList& events, std::optional<int64_t> rank) {
  MsgpackWriter out;
  out.array(3);
  out.real(seconds);
  out.array(events.events().size());
  for (const RouterEvent& event : events.events()) {
    switch (event.kind) {
      case RouterEvent::Kind::kStored: write_stored(out, event.blocks); break;
      case RouterEvent::Kind::kRemoved: write_removed(out, event.blocks); break;
      case RouterEvent::Kind::kCleared:
        out.map(1);
        out.text("type");
        out.text("AllBlocksCleared");
        break;
    }
  }
  if (rank)
    out.negative(*rank);
  else
    out.nil();
  return out.take();
}

Result<EngineBatch> decode_batch(std::string_view bytes) {
  if (bytes.size() > kBatchBytesMax)
    return bad_batch("found " + std::to_string(bytes.size()) + " bytes, expected at most " +
                     std::to_string(kBatchBytesMax));
  MsgpackReader in(bytes);
  EngineBatch batch;
  const bool is_map = in.peek() == Type::kMap;
  size_t count = 0;
  if (is_map ? !in.map(count) : !in.array(count)) return bad_batch("found neither an array nor a map");
  if (!is_map && count < 2)
    return bad_batch("found an array of " + std::to_string(count) + ", expected a time and events");
  for (size_t i = 0; i < count; ++i) {
    std::string_view name = i == 0 ? "ts" : i == 1 ? "events" : i == 2 ? "data_parallel_rank" : "";
    if (is_map && !in.text(name)) return bad_batch("found a field without a name");
    if (name == "ts") {
      if (!in.number(batch.seconds)) return bad_batch("found a time that is no number");
    } else if (name == "events") {
      if (auto read = read_events(in, batch); !read) return tl::unexpected(read.error());
    } else if (name == "data_parallel_rank") {
      if (!read_rank(in, batch)) return bad_batch("found a rank that is no number");
    } else if (!in.skip()) {
      return bad_batch("found a field that is cut");
    }
  }
  return batch;
}

}  // namespace maru::eventd
