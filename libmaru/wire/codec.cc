#include "libmaru/wire/codec.h"

#include "libmaru/base/check.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace maru::wire {
namespace {

constexpr int32_t kErrnoMax = 4095;

size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  const size_t at = out.size();
  out.resize(at + bytes.size());
  if (!bytes.empty()) std::memcpy(out.data() + at, bytes.data(), bytes.size());
}

Result<MessageHeader> decode(std::span<const std::byte> packet) {
  if (packet.size() < sizeof(MessageHeader))
    return failure(EBADMSG, "read a message of " + std::to_string(packet.size()) + " bytes, shorter than its header");
  MessageHeader header;
  std::memcpy(&header, packet.data(), sizeof(header));
  if (header.magic != kMagic) return failure(EBADMSG, "read a message: wrong magic");
  if (header.version != kVersion)
    return failure(EPROTO, "read a message of version " + std::to_string(header.version) + ", this is version " +
                               std::to_string(kVersion));
  if (header.type == 0 || header.type > kTypeMax)
    return failure(EBADMSG, "read a message: unknown type " + std::to_string(header.type));
  if (header.bytes != packet.size() - sizeof(MessageHeader))
    return failure(EBADMSG, "read a message: its header says " + std::to_string(header.bytes) + " bytes follow, but " +
                                std::to_string(packet.size() - sizeof(MessageHeader)) + " do");
  if (header.reserved != 0) return failure(EBADMSG, "read a message: reserved field is not zero");
  return header;
}

}  // namespace

Result<MessageHeader> decode_request(std::span<const std::byte> packet) {
  auto header = decode(packet);
  if (header && header->status != 0) return failure(EBADMSG, "read a request: its status is not zero");
  if (header && Type(header->type) == Type::kRegionTaken)
    return failure(EBADMSG, "read a request: only marud sends messages of type " + std::to_string(header->type));
  return header;
}

Result<MessageHeader> decode_reply(std::span<const std::byte> packet) {
  auto header = decode(packet);
  if (header && (header->status > 0 || header->status < -kErrnoMax))
    return failure(EBADMSG, "read a reply: its status is neither 0 nor -errno");
  return header;
}

std::vector<std::byte> encode(Type type, uint32_t request_id, int32_t status, std::span<const std::byte> payload) {
  MARU_CHECK(payload.size() <= kPayloadBytesMax, "the kernel would cut the packet");
  MessageHeader header = {};
  header.magic = kMagic;
  header.version = kVersion;
  header.type = uint16_t(type);
  header.request_id = request_id;
  header.status = status;
  header.bytes = uint32_t(payload.size());
  std::vector<std::byte> packet;
  packet.reserve(sizeof(header) + payload.size());
  append(packet, bytes_of(header));
  append(packet, payload);
  return packet;
}

std::vector<std::byte> encode_refusal(uint16_t type, uint32_t request_id, int32_t status,
                                      std::string_view explanation) {
  constexpr size_t kExplanationMax = 4096;
  explanation = explanation.substr(0, kExplanationMax);
  return encode(Type(type), request_id, status, std::as_bytes(std::span(explanation.data(), explanation.size())));
}

bool is_pool_name(std::string_view name) {
  if (name.empty() || name.size() > limits::kPoolNameMax || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

std::optional<std::string_view> check_name(std::span<const char> name) {
  const auto end = std::find(name.begin(), name.end(), 0);
  if (end == name.end()) return "the pool's name does not end";
  if (!std::all_of(end, name.end(), [](char c) { return c == 0; })) return "the pool's name is not padded with zeros";
  if (!is_pool_name({name.data(), size_t(end - name.begin())})) return "the pool's name is not a name";
  return std::nullopt;
}

std::optional<std::string_view> check(const FollowRequest& request) {
  if (const auto wrong = check_name(request.pool)) return wrong;
  if (request.flags != 0) return "unknown flags";
  if (request.reserved0 != 0 ||
      std::any_of(std::begin(request.reserved), std::end(request.reserved), [](uint64_t r) { return r != 0; }))
    return "reserved fields are not zero";
  return std::nullopt;
}

std::optional<std::string_view> check(const AttachRequest& request) {
  if (const auto wrong = check_name(request.pool)) return wrong;
  if ((request.flags & ~(kAttachHandsBack | kAttachReadOnly)) != 0) return "unknown flags";
  if (request.reserved0 != 0 ||
      std::any_of(std::begin(request.reserved), std::end(request.reserved), [](uint64_t r) { return r != 0; }))
    return "reserved fields are not zero";
  if (request.previous_lane >= limits::kLanesMax) return "the previous lane is not a lane";
  return std::nullopt;
}

std::optional<std::string_view> check(const RentRequest& request) {
  if ((request.flags & ~kRentWantsTimes) != 0) return "unknown flags";
  if (request.reserved0 != 0 || request.reserved != 0) return "reserved fields are not zero";
  return std::nullopt;
}

std::optional<std::string_view> check(const CreditRequest& request) {
  if (request.reserved0 != 0 || request.reserved != 0) return "reserved fields are not zero";
  if (request.tenant == 0 || request.bytes == 0) return "no tenant, or no bytes";
  return std::nullopt;
}

std::optional<std::string_view> check(const RoomRequest& request) {
  if (request.reserved != 0) return "reserved fields are not zero";
  return std::nullopt;
}

std::optional<EvictedKeyView> next_evicted_key(std::span<const std::byte>& rest) {
  EvictedKeyView record = {};
  if (rest.size() < sizeof(record.head)) return std::nullopt;
  std::memcpy(&record.head, rest.data(), sizeof(record.head));
  if (record.head.size > limits::kKeyBytesMax) return std::nullopt;
  const size_t bytes = sizeof(record.head) + padded(record.head.size);
  if (rest.size() < bytes) return std::nullopt;
  record.key = rest.subspan(sizeof(record.head), record.head.size);
  rest = rest.subspan(bytes);
  return record;
}

std::vector<std::byte> encode_rent_reply(std::span<const uint32_t> regions, std::span<const RunRecord> runs,
                                         std::span<const std::byte> evicted_keys, uint32_t evicted_total,
                                         const RentTimes* times) {
  MARU_CHECK(regions.size() + runs.size() <= kRentItemsMax, "what was rented could not be told to the client");
  RentReply head = {};
  head.regions = uint32_t(regions.size());
  head.runs = uint32_t(runs.size());
  head.evicted_total = evicted_total;
  std::vector<std::byte> out(sizeof(head));
  append(out, std::as_bytes(regions));
  out.resize(padded(out.size()));
  append(out, std::as_bytes(runs));
  std::span<const std::byte> rest = evicted_keys;
  while (true) {
    const auto before = rest;
    const auto record = next_evicted_key(rest);
    if (!record) break;
    const size_t bytes = before.size() - rest.size();
    if (out.size() + bytes + (times ? sizeof(*times) : 0) > kPayloadBytesMax) break;
    append(out, before.first(bytes));
    ++head.evicted;
  }
  std::memcpy(out.data(), &head, sizeof(head));
  if (times) append(out, bytes_of(*times));
  return out;
}

std::optional<RentReplyView> decode_rent_reply(std::span<const std::byte> payload) {
  RentReply head;
  if (payload.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, payload.data(), sizeof(head));
  if (head.regions > kRentItemsMax || head.runs > kRentItemsMax) return std::nullopt;
  const size_t runs_offset = padded(sizeof(head) + head.regions * sizeof(uint32_t));
  const size_t keys_offset = runs_offset + head.runs * sizeof(RunRecord);
  if (payload.size() < keys_offset) return std::nullopt;
  RentReplyView view;
  view.regions.resize(head.regions);
  if (head.regions > 0)
    std::memcpy(view.regions.data(), payload.data() + sizeof(head), head.regions * sizeof(uint32_t));
  view.runs.resize(head.runs);
  if (head.runs > 0) std::memcpy(view.runs.data(), payload.data() + runs_offset, head.runs * sizeof(RunRecord));
  view.evicted = head.evicted;
  view.evicted_total = head.evicted_total;
  view.evicted_keys.assign(payload.begin() + std::ptrdiff_t(keys_offset), payload.end());
  std::span<const std::byte> rest = view.evicted_keys;
  for (uint32_t i = 0; i < head.evicted; ++i)
    if (!next_evicted_key(rest)) return std::nullopt;
  if (rest.size() == sizeof(RentTimes)) std::memcpy(&view.times.emplace(), rest.data(), sizeof(RentTimes));
  if (!rest.empty() && !view.times) return std::nullopt;
  view.evicted_keys.resize(view.evicted_keys.size() - rest.size());
  return view;
}

}  // namespace maru::wire
