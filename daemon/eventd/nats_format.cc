#include "daemon/eventd/nats_format.h"

#include "daemon/base/msgpack.h"
#include "daemon/eventd/media.h"
#include "maru/tokens.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::eventd {
namespace {

using daemon::MsgpackReader;
using daemon::MsgpackWriter;

constexpr uint64_t kPoolVersion = 1;
constexpr uint64_t kDynamoSalt = 1337;

// -- ours -------------------------------------------------------------------------------------------------------------

void write_hash_or_nil(MsgpackWriter& out, const std::optional<uint64_t>& hash) {
  if (hash)
    out.whole(*hash);
  else
    out.nil();
}

void write_extra(MsgpackWriter& out, const Blocks& blocks) {
  out.text("extra_metadata");
  out.map((blocks.lora_name.empty() ? 0 : 1) + (blocks.cache_salt.empty() ? 0 : 1));
  for (const auto& [name, value] : {std::pair("lora", &blocks.lora_name), std::pair("salt", &blocks.cache_salt)}) {
    if (value->empty()) continue;
    out.text(name);
    out.text(*value);
  }
}

void write_block(MsgpackWriter& out, const RouterEvent& event, size_t i) {
  const bool is_stored = event.kind == RouterEvent::Kind::kStored;
  const Blocks& blocks = event.blocks;
  out.map(is_stored ? 6 : 3);
  out.text("event_type");
  out.text(is_stored ? "store" : "remove");
  out.text("sequence_hash");
  out.whole(blocks.hashes[i]);
  out.text("storage_location");
  out.text(blocks.medium);
  if (!is_stored) return;
  out.text("prefix_hash");
  write_hash_or_nil(out, i == 0 ? blocks.parent : std::optional(blocks.hashes[i - 1]));
  out.text("block_size");
  out.whole(blocks.block_size);
  write_extra(out, blocks);
}

size_t blocks_in(const EventList& events) {
  size_t count = 0;
  for (const RouterEvent& event : events.events())
    count += event.kind == RouterEvent::Kind::kCleared ? 1 : event.blocks.hashes.size();
  return count;
}

// -- Dynamo's ---------------------------------------------------------------------------------------------------------

// The hash of each block's tokens alone, by which the router finds it. A LoRA has another seed, as in Dynamo's
// compute_block_hash_for_seq().
std::vector<uint64_t> token_hashes(const Blocks& blocks) {
  std::vector<uint64_t> hashes(blocks.hashes.size());
  const std::string& lora = blocks.lora_name;
  const uint64_t salt = kDynamoSalt + (lora.empty() ? 0 : XXH3_64bits(lora.data(), lora.size()));
  maru_tokens_dynamo(salt, nullptr, blocks.block_size, blocks.tokens.data(), blocks.tokens.size(), hashes.data(),
                     nullptr);
  return hashes;
}

void write_stored_data(MsgpackWriter& out, const Blocks& blocks) {
  const std::vector<uint64_t> tokens = token_hashes(blocks);
  out.map(1);
  out.text("stored");
  out.map(3);
  out.text("parent_hash");
  write_hash_or_nil(out, blocks.parent);
  out.text("start_position");
  out.nil();
  out.text("blocks");
  out.array(blocks.hashes.size());
  for (size_t i = 0; i < blocks.hashes.size(); ++i) {
    out.map(3);
    out.text("block_hash");
    out.whole(blocks.hashes[i]);
    out.text("tokens_hash");
    out.whole(tokens[i]);
    out.text("mm_extra_info");
    out.nil();
  }
}

void write_data(MsgpackWriter& out, const RouterEvent& event) {
  if (event.kind == RouterEvent::Kind::kStored) return write_stored_data(out, event.blocks);
  if (event.kind == RouterEvent::Kind::kCleared) return out.text("cleared");
  out.map(1);
  out.text("removed");
  out.map(1);
  out.text("block_hashes");
  out.array(event.blocks.hashes.size());
  for (const uint64_t hash : event.blocks.hashes) out.whole(hash);
}

void write_router_event(MsgpackWriter& out, const DynamoMessage& message, const RouterEvent& event) {
  out.map(4);
  out.text("worker_id");
  out.whole(message.worker_id);
  out.text("storage_tier");
  out.text(event.kind == RouterEvent::Kind::kCleared ? "host_pinned" : dynamo_tier(event.blocks.medium));
  out.text("residency_domain");
  out.text("worker");
  out.text("event");
  out.map(3);
  out.text("event_id");
  out.whole((*message.next_event_id)++);
  out.text("data");
  write_data(out, event);
  out.text("dp_rank");
  out.whole(uint64_t(message.rank.value_or(0)));
}

bool can_be_hashed(const RouterEvent& event) {
  const Blocks& blocks = event.blocks;
  return event.kind != RouterEvent::Kind::kStored ||
         (blocks.has_tokens() && blocks.block_size <= MARU_TOKENS_BLOCK_MAX && blocks.cache_salt.empty());
}

}  // namespace

std::string encode_pool_message(const PoolMessage& message, const EventList& events) {
  MsgpackWriter out;
  out.map(5);
  out.text("version");
  out.whole(kPoolVersion);
  out.text("publisher");
  out.text(message.publisher);
  out.text("sequence");
  out.whole(message.sequence);
  out.text("published_at");
  out.whole(message.published_ms);
  out.text("events");
  out.array(blocks_in(events));
  for (const RouterEvent& event : events.events()) {
    for (size_t i = 0; i < event.blocks.hashes.size(); ++i) write_block(out, event, i);
    if (event.kind != RouterEvent::Kind::kCleared) continue;
    out.map(1);
    out.text("event_type");
    out.text("clear");
  }
  return out.take();
}

std::string encode_dynamo_message(const DynamoMessage& message, const EventList& events, uint64_t& ret_left_out) {
  MsgpackWriter inner;
  size_t count = 0;
  for (const RouterEvent& event : events.events()) {
    if (can_be_hashed(event))
      ++count;
    else
      ret_left_out += event.blocks.hashes.size();
  }
  if (count == 0) return "";
  inner.array(count);
  for (const RouterEvent& event : events.events())
    if (can_be_hashed(event)) write_router_event(inner, message, event);
  MsgpackWriter out;
  out.map(5);
  out.text("publisher_id");
  out.whole(message.publisher_id);
  out.text("sequence");
  out.whole(message.sequence);
  out.text("published_at");
  out.whole(message.published_ms);
  out.text("topic");
  out.text("kv-events");
  out.text("payload");
  out.binary(inner.bytes());
  return out.take();
}

}  // namespace maru::eventd
