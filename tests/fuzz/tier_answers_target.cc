// Answers of servers to maru-tierd's tiers: of S3 a list, an error, headers, and an object in pieces; of Redis replies as
// they come over the wire, to a request or to a census. The first byte says which. A load writes nothing beyond the memory of
// its request: a sanitizer sees that, and a margin here. A load that succeeds has the bytes that were stored.
#include "daemon/tierd/tiers/resp_census.h"
#include "daemon/tierd/tiers/resp_operation.h"
#include "daemon/tierd/tiers/s3/s3_answers.h"
#include "daemon/tierd/tiers/s3/s3_operation.h"
#include "tests/fuzz/guarded_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <hiredis/hiredis.h>
#include <memory>
#include <string>

namespace maru::fuzz {
namespace {

using namespace maru::tierd;

constexpr unsigned kForms = 6;
enum Form : unsigned { kList, kError, kHeaders, kObject, kReplies, kCensus };
constexpr std::string_view kKey = "a key", kAttributes = "about it";
constexpr uint64_t kPayloadBytes = 300, kChunkBytes = 128;

std::string payload() {
  std::string bytes(kPayloadBytes, 0);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = char(i * 7);
  return bytes;
}

// A load with its memory.
struct Load {
  GuardedMemory payload{kPayloadBytes}, attributes{kAttributes.size()};
  maru_tier_request request = {};

  Load() {
    request.kind = MARU_TIER_LOAD;
    request.key = kKey.data();
    request.key_bytes = uint32_t(kKey.size());
    request.payload = payload.data();
    request.payload_bytes = payload.size();
    request.attributes = attributes.data();
    request.attributes_bytes = uint32_t(attributes.size());
  }
  void must_be_within(bool has_succeeded) const {
    for (const GuardedMemory* const memory : {&payload, &attributes})
      memory->must_be_whole("bytes beyond the memory of a request");
    must(!has_succeeded || attributes.text() == kAttributes, "other attributes than were stored");
  }
};

std::string object() {
  const std::string bytes = payload();
  const S3Head head = {kPayloadBytes,
                       s3_checksum(bytes.data(), bytes.size()),
                       s3_checksum(kAttributes.data(), kAttributes.size()),
                       9,
                       uint32_t(kKey.size()),
                       uint32_t(kAttributes.size())};
  return encode_s3_head(head, kKey) + bytes + std::string(kAttributes);
}

// Pieces of any length; what the total is said to be comes from the input, too.
void read_object(Reader& reader) {
  Load load;
  S3Operation operation;
  operation.request = load.request;
  operation.key = kKey;
  operation.arrived.assign(1, 0);
  const uint64_t total = reader.number(2);
  const size_t piece_bytes = 1 + reader.number(1);
  while (!reader.is_over()) {
    const std::vector<uint8_t> piece = reader.bytes(piece_bytes);
    const uint64_t at = operation.arrived[0];
    operation.arrived[0] += piece.size();
    if (!operation.place(at, {reinterpret_cast<const char*>(piece.data()), piece.size()})) break;
  }
  operation.take_version(total, "etag");
  operation.prove();
  load.must_be_within(operation.result == 0);
  must(operation.result != 0 || load.payload.text() == payload(), "other bytes than were stored");
}

void read_replies(Reader& reader) {
  Load load;
  RespOperation operation;
  operation.request = load.request;
  operation.request.kind = uint32_t(1 + reader.number(1) % 4);
  operation.key = kKey;
  operation.answers_left = 1;
  const std::unique_ptr<redisReader, void (*)(redisReader*)> replies(redisReaderCreate(), redisReaderFree);
  const bool places_chunks = reader.number(1) % 2 != 0;  // before the library copies them, as the tier does
  const std::vector<uint8_t> bytes = reader.bytes(reader.left());
  redisReaderFeed(replies.get(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (operation.answers_left > 0) {
    void* found = nullptr;
    if (redisReaderGetReply(replies.get(), &found) != REDIS_OK || found == nullptr) return load.must_be_within(false);
    const std::unique_ptr<void, void (*)(void*)> reply(found, freeReplyObject);
    --operation.answers_left;
    auto& answer = *static_cast<redisReply*>(found);
    if (places_chunks && answer.type == REDIS_REPLY_STRING && operation.place_chunk({answer.str, answer.len})) {
      std::free(answer.str);
      answer.str = nullptr;
    }
    operation.take(answer);
    if (operation.answers_left == 0 && operation.asks_on() && operation.accept_head())
      operation.answers_left = operation.head.chunks();
  }
  load.must_be_within(operation.request.kind == MARU_TIER_LOAD && operation.result == 0);
}

// With any names and numbers the round ends within its bound.
void read_census(Reader& reader) {
  constexpr uint64_t kNamesMax = 64;
  Catalogue catalogue([](const std::string& name) { return name; }, 1u << 20);
  RespCensus census("p:", kNamesMax, catalogue, [](const std::string&) { return false; });
  const std::unique_ptr<redisReader, void (*)(redisReader*)> replies(redisReaderCreate(), redisReaderFree);
  const std::vector<uint8_t> bytes = reader.bytes(reader.left());
  redisReaderFeed(replies.get(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
  census.begin();
  while (census.is_under_way()) {
    RespOutput output;
    const size_t answers = census.ask(output);
    must(answers > 0 && output.added_bytes() > 0, "a step without a question");
    for (size_t i = 0; i < answers; ++i) {
      void* found = nullptr;
      if (redisReaderGetReply(replies.get(), &found) != REDIS_OK || found == nullptr) return census.abandon();
      const std::unique_ptr<void, void (*)(void*)> reply(found, freeReplyObject);
      census.take(*static_cast<redisReply*>(found));
    }
  }
  maru_tier_usage usage = {};
  catalogue.get_usage(usage);
  must(usage.entries <= kNamesMax, "more entries than a round looks at");
  must(!census.trouble().empty() || usage.entry_bytes <= usage.physical_bytes, "entries that are larger than they are");
}

std::string bulk(std::string_view bytes) {
  return "$" + std::to_string(bytes.size()) + "\r\n" + std::string(bytes) + "\r\n";
}

void read_list(std::string_view text) {
  const auto page = parse_s3_listing(text);
  if (!page) return;
  for (const S3Listing::Object& one : page->objects) {
    const auto named = parse_s3_object_name("p/", one.name);
    must(!named || named->key_bytes <= MARU_TIER_KEY_BYTES_MAX, "a key that is too long");
    must(!named || named->key.empty() || s3_object_name("p/", named->key) == one.name, "a name that is not its key's");
  }
}

void read_headers(std::string_view text) {
  S3Headers headers;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    take_header_line(text.substr(0, end + 1), headers);
    text.remove_prefix(end + 1);
  }
  must(headers.retry_after_s <= 3600, "a pause without an end");
  must(!headers.range || (headers.range->first <= headers.range->last && headers.range->last < headers.range->total),
       "a range that is none");
}

}  // namespace

std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  const std::string name = s3_object_name("p/", kKey), long_name = s3_object_name("p/", std::string(200, 'k'));
  inputs.push_back(Writer()
                       .number(kList, 1)
                       .bytes("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"s3\"><IsTruncated>true</IsTruncated>"
                              "<NextContinuationToken>a&amp;&#x41;&#66;</NextContinuationToken><Contents><Key>" +
                              name + "</Key><Size>400</Size></Contents><Contents><Key>" + long_name +
                              "</Key><Size>500</Size></Contents></ListBucketResult>")
                       .take());
  inputs.push_back(
      Writer()
          .number(kError, 1)
          .bytes(std::string("<Error><Code>SlowDown</Code><Message>less &lt;please&gt;</Message><Region>r</Region>"
                             "<Endpoint/></Error>"))
          .take());
  inputs.push_back(
      Writer()
          .number(kHeaders, 1)
          .bytes(std::string("HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/100\r\nETag: \"x\"\r\nContent-Length: 10\r\n"
                             "Date: Fri, 24 May 2013 00:00:00 GMT\r\nRetry-After: 3\r\nx-amz-bucket-region: r\r\n"))
          .take());
  for (const unsigned piece_bytes : {7u, 255u})
    inputs.push_back(
        Writer().number(kObject, 1).number(object().size(), 2).number(piece_bytes, 1).bytes(object()).take());
  const std::string head = encode_resp_head({kPayloadBytes, 7, kChunkBytes, 9, 11, std::string(kAttributes)}, kKey);
  std::string replies = bulk(head);
  for (uint64_t at = 0; at < kPayloadBytes; at += kChunkBytes) replies += bulk(payload().substr(at, kChunkBytes));
  for (const unsigned kind : {0u, 1u, 2u, 3u})
    inputs.push_back(Writer().number(kReplies, 1).number(kind, 1).number(kind, 1).bytes(replies).take());
  inputs.push_back(
      Writer().number(kReplies, 1).number(1, 1).number(0, 1).bytes(std::string("-MOVED 1 host:1\r\n")).take());
  inputs.push_back(Writer()
                       .number(kReplies, 1)
                       .number(1, 1)
                       .number(0, 1)
                       .bytes(std::string("$-1\r\n+OK\r\n:5\r\n*1\r\n$1\r\nx\r\n"))
                       .take());
  const std::string names = "*2\r\n$1\r\n5\r\n*3\r\n" + bulk("p:h" + std::string(kKey)) + bulk("p:hx") + bulk("q:h");
  inputs.push_back(Writer()
                       .number(kCensus, 1)
                       .bytes(names + bulk(head.substr(0, kRespFixedBytes)) + bulk("no head") + ":3\r\n" + names +
                              bulk(head.substr(0, kRespFixedBytes)) +
                              "-WRONGTYPE x\r\n:1\r\n:1\r\n*2\r\n$1\r\n0\r\n*0\r\n")
                       .take());
  inputs.push_back(Writer().number(kCensus, 1).bytes(std::string("-NOPERM x\r\n")).take());
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  Reader reader(data, size);
  const auto form = Form(reader.number(1) % kForms);
  if (form == kObject) return read_object(reader), 0;
  if (form == kReplies) return read_replies(reader), 0;
  if (form == kCensus) return read_census(reader), 0;
  const std::vector<uint8_t> rest = reader.bytes(reader.left());
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (form == kList) return read_list(text), 0;
  if (form == kHeaders) return read_headers(text), 0;
  const maru::tierd::S3Error error = maru::tierd::parse_s3_error(text);
  for (const std::string* const part : {&error.code, &error.message, &error.region, &error.endpoint})
    must(part->size() <= 300 && std::all_of(part->begin(), part->end(), [](char c) { return c >= ' ' && c <= '~'; }),
         "a text that is not for a log");
  return 0;
}
