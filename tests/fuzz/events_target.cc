// Any bytes where maru-eventd reads from outside: a batch of an engine, the frames of its feed, a request for replay, the
// metadata of a block. Each is read or refused with a reason; what is read goes through the contents of a stream, whose events
// are written, and read again as they were. The first byte says which.
#include "daemon/base/msgpack.h"
#include "daemon/eventd/contents.h"
#include "daemon/eventd/engine_feed.h"
#include "daemon/eventd/nats_format.h"
#include "daemon/eventd/otlp.h"
#include "daemon/eventd/replay_service.h"
#include "daemon/eventd/token_metadata.h"
#include "daemon/eventd/vllm_batch.h"
#include "tests/fuzz/target.h"

#include <cstring>
#include <set>
#include <string_view>

namespace maru::fuzz {
namespace {

using namespace maru::eventd;
using daemon::MsgpackReader;
using daemon::MsgpackWriter;

constexpr unsigned kForms = 6;
enum Form : unsigned { kBatch, kFrames, kMetadata, kItems, kRing, kAnswer };

bool is_equal(const Blocks& one, const Blocks& other) {
  return one.hashes == other.hashes && one.parent == other.parent && one.tokens == other.tokens &&
         one.medium == other.medium && one.lora_name == other.lora_name && one.cache_salt == other.cache_salt;
}

// What a subscriber makes of events; each must make sense after those before.
void must_make_sense(const EventList& events, std::set<std::pair<uint64_t, uint64_t>>& there) {
  for (const RouterEvent& event : events.events()) {
    if (event.kind == RouterEvent::Kind::kCleared) there.clear();
    const uint64_t place = place_of(event.blocks);
    for (const uint64_t hash : event.blocks.hashes) {
      const bool changed = event.kind == RouterEvent::Kind::kStored ? there.emplace(hash, place).second
                                                                    : there.erase({hash, place}) == 1;
      must(changed, "a block was stored twice, or removed and was not there");
    }
  }
}

void must_go_there_and_back(const EventList& events) {
  const auto again = decode_batch(encode_batch(1.5, events, 3));
  must(again.has_value(), "a batch of ours is refused");
  must(again->rank == 3 && again->seconds == 1.5 && again->events.size() == events.events().size(), "another batch");
  for (size_t i = 0; i < again->events.size(); ++i)
    must(again->events[i].kind == events.events()[i].kind &&
             is_equal(again->events[i].blocks, events.events()[i].blocks),
         "another event");
  uint64_t left_out = 0, event_id = 0;
  encode_dynamo_message({1, 2, 3, 4, 0, &event_id}, events, left_out);
  const std::string message = encode_pool_message({"x", 1, 2}, events);
  MsgpackReader reader(message);
  must(reader.skip() && reader.is_at_end(), "a message of ours is no MessagePack");
}

void use_batch(std::string_view bytes) {
  const auto batch = decode_batch(bytes);
  if (!batch) return must(!batch.error().doing.empty(), "a refusal without a reason");
  Contents contents;
  std::set<std::pair<uint64_t, uint64_t>> there;
  for (const RouterEvent& event : batch->events) {
    EventList out;
    const uint64_t part = place_of(event.blocks);
    for (size_t i = 0; i < event.blocks.hashes.size(); ++i) {
      const ItemKey key = {0, event.blocks.hashes[i], part};
      Item item;
      item.blocks.hashes = {event.blocks.hashes[i]};
      item.blocks.medium = event.blocks.medium;
      item.blocks.place = event.blocks.place;
      item.blocks.place_pairs = event.blocks.place_pairs;
      if (event.kind == RouterEvent::Kind::kStored)
        contents.add(key, std::move(item), out);
      else
        contents.remove(key, out);
    }
    if (event.kind == RouterEvent::Kind::kCleared) contents.remove_all(0, out);
    must_make_sense(out, there);
    must_go_there_and_back(out);
  }
  must(there.size() == contents.announced(), "a subscriber knows something else");
}

void use_frames(Reader& reader) {
  Frames frames;
  while (!reader.is_over() && frames.size() < 6) {
    const auto bytes = reader.bytes(size_t(reader.number(1)));
    frames.emplace_back(bytes.begin(), bytes.end());
  }
  if (const auto message = parse_feed_message(frames)) {
    must(message->payload.size() == frames.back().size(), "another payload");
    use_batch(message->payload);
  }
  const auto request = parse_replay_request(frames);
  must(request.has_value() || !request.error().doing.empty(), "a refusal without a reason");
}

void use_metadata(std::string_view bytes) {
  const auto tokens = TokenMetadata::decode(bytes);
  if (!tokens) return must(!tokens.error().doing.empty(), "a refusal without a reason");
  if (!*tokens) return;
  const TokenMetadata& known = **tokens;
  must(known.block_size > 0 && known.tokens.size() % known.block_size == 0 && known.rank < known.ranks, "out of range");
  const auto again = TokenMetadata::decode(known.encode());
  must(again && *again && (*again)->tokens == known.tokens && (*again)->hashes == known.hashes &&
           (*again)->parent == known.parent && (*again)->lora == known.lora && (*again)->rank == known.rank,
       "metadata of ours is read as another");
}

// Items of few names and hashes, so that they meet, in any order.
void use_items(Reader& reader) {
  Contents contents;
  std::set<std::pair<uint64_t, uint64_t>> there;
  while (!reader.is_over()) {
    EventList out;
    const unsigned what = unsigned(reader.number(1));
    const ItemKey key = {what >> 6, reader.number(1) % 16, 0};
    if (what % 8 == 0) {
      contents.remove_all(key.source, out);
    } else if (what % 8 == 1) {
      contents.forget(key.source);
      contents.announce_all(out);
    } else if (what % 8 < 4) {
      contents.remove(key, out);
    } else {
      Item item;
      item.ranks = 1 + what % 3;
      item.rank = unsigned(key.name) % item.ranks;
      const uint64_t first = reader.number(1) % 8;
      for (uint64_t i = 0; i <= key.name % 4; ++i) item.blocks.hashes.push_back(first + i);
      contents.add(key, std::move(item), out);
    }
    must_make_sense(out, there);
    must(there.size() == contents.announced(), "a subscriber knows something else");
  }
  EventList out;
  for (uint32_t source = 0; source < 4; ++source) contents.remove_all(source, out);
  must_make_sense(out, there);
  must(there.empty() && contents.items() == 0, "something is left of nothing");
}

// A client's ring, as maru-eventd maps it, and what a collector would get of it.
void use_ring(std::string_view bytes) {
  constexpr size_t kBytes = format::span_ring_bytes(format::kSpanSlotsMin);
  alignas(4096) static std::byte memory[kBytes];
  std::memset(memory, 0, kBytes);
  // The header and the slots, without the room between them.
  const size_t head = std::min(bytes.size(), sizeof(format::SpanRingHeader));
  if (head != 0) std::memcpy(memory, bytes.data(), head);
  if (bytes.size() > head)
    std::memcpy(memory + format::kSpanHeaderBytes, bytes.data() + head,
                std::min(bytes.size() - head, kBytes - format::kSpanHeaderBytes));
  spans::RingView ring;
  if (spans::RingView::attach(memory, &ring) != nullptr) return;
  spans::RingReader reader(ring);
  SpanBatch batch;
  batch.parts.push_back({{"s", "p", 1, 2}, {}});
  format::Span span;
  for (int reads = 0; reads < 200; ++reads) {
    const auto got = reader.read(&span);
    if (got == spans::RingReader::Got::kUnfinished) reader.pass();
    if (got == spans::RingReader::Got::kSpan && is_whole(span)) batch.parts.front().spans.push_back(span);
    if (got == spans::RingReader::Got::kNothing || got == spans::RingReader::Got::kDamaged) break;
  }
  must(batch.parts.front().spans.size() <= format::kSpanSlotsMin, "more spans than the ring has slots");
  encode_traces(batch, "host");
}

std::string ring_with_spans() {
  static std::vector<format::SpanSlot> memory(format::span_ring_bytes(format::kSpanSlotsMin) /
                                              sizeof(format::SpanSlot));
  const std::span bytes(reinterpret_cast<std::byte*>(memory.data()), memory.size() * sizeof(format::SpanSlot));
  const spans::RingView ring = spans::RingView::format(bytes, format::kSpanSlotsMin);
  for (uint8_t operation = 1; operation < format::kSpanOperations; ++operation) {
    format::Span span = {};
    span.trace_low = span.id = span.begun_ns = span.ended_ns = span.blocks = span.keys = operation;
    span.operation = format::SpanOperation(operation);
    span.result = -operation;
    spans::write_span(ring, span);
  }
  const auto* begin = reinterpret_cast<const char*>(memory.data());
  return std::string(begin, sizeof(format::SpanRingHeader)) +
         std::string(begin + format::kSpanHeaderBytes, 12 * sizeof(format::SpanSlot));
}

Input input_of(Form form, std::string_view bytes) {
  Input input = {uint8_t(form)};
  input.insert(input.end(), bytes.begin(), bytes.end());
  return input;
}

}  // namespace

std::vector<Input> first_inputs() {
  Blocks blocks;
  blocks.hashes = {1, 1ull << 63};
  blocks.parent = 7;
  blocks.tokens = {1, 2, 300, 70'000};
  blocks.block_size = 2;
  blocks.medium = "CPU";
  blocks.lora_name = "x";
  blocks.extra_keys = {"\xc0", "\x01"};
  EventList events;
  events.cleared();
  events.stored(blocks, 0, 2);
  events.removed(blocks, 1, 1);
  TokenMetadata tokens;
  tokens.block_size = 2;
  tokens.tokens = {1, 2, 3, 4};
  tokens.hashes = {5, 6};
  tokens.parent = 4;
  tokens.lora = "l";
  tokens.salt = "s";
  tokens.rank = 1;
  tokens.ranks = 2;
  const std::string batch = encode_batch(1, events, std::nullopt);
  const std::string frames = std::string("\0\x08", 2) + "12345678" + char(batch.size()) + batch;
  std::string items;
  for (int i = 0; i < 60; ++i) items += char(i * 37 + 4);
  // As engines wrote events before the middle of 2026.
  constexpr std::string_view old =
      "\x92\x01\x91\x98\xab"
      "BlockStored\x91\x01\xc0\x92\x05\x06\x02\xc0\xa3GPU\xc0";
  return {input_of(kRing, ring_with_spans()),
          input_of(kAnswer, std::string("\x0a\x08\x08\x07\x12\x04why\n", 10)),
          input_of(kBatch, batch),
          input_of(kBatch, old),
          input_of(kFrames, frames),
          input_of(kMetadata, tokens.encode()),
          input_of(kItems, items)};
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  Reader reader(data, size);
  const unsigned form = unsigned(reader.number(1)) % kForms;
  const std::string_view rest(reinterpret_cast<const char*>(data) + (size > 0 ? 1 : 0), size > 0 ? size - 1 : 0);
  if (form == kBatch) use_batch(rest);
  if (form == kFrames) use_frames(reader);
  if (form == kMetadata) use_metadata(rest);
  if (form == kItems) use_items(reader);
  if (form == kRing) use_ring(rest);
  if (form == kAnswer) must(decode_export_response(rest).message.size() <= 512, "a message that is too long");
  return 0;
}
