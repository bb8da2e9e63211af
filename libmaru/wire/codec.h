// Messages to bytes and back. maru/format/wire.h has the layouts; this file has a receiver's checks before it may use them.
// Nothing in a packet is trusted: every function copies its result.
#pragma once

#include "libmaru/base/result.h"
#include "maru/format/wire.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace maru::wire {

// The header of a packet, checked: magic, version, type, `bytes` equal to the length behind it, reserved zero. A request has
// status 0, and a reply has 0 or -errno (-4095 at the lowest). Errors: EPROTO when only the version differs (the sender can be
// told so), EBADMSG for everything else.
Result<MessageHeader> decode_request(std::span<const std::byte> packet);
Result<MessageHeader> decode_reply(std::span<const std::byte> packet);

inline std::span<const std::byte> payload_of(std::span<const std::byte> packet) {
  return packet.subspan(sizeof(MessageHeader));
}

// A packet with this payload, of at most kPayloadBytesMax bytes.
std::vector<std::byte> encode(Type type, uint32_t request_id, int32_t status, std::span<const std::byte> payload);
// A reply that says no: status is negative, the text is cut to fit.
std::vector<std::byte> encode_refusal(uint16_t type, uint32_t request_id, int32_t status, std::string_view explanation);

// The struct that makes up exactly the payload, or nothing.
template <typename T>
std::optional<T> read_exactly(std::span<const std::byte> payload) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (payload.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, payload.data(), sizeof(T));
  return value;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

// The demands on a request beyond its length: reserved fields zero, flags known, the name zero-padded and of letters, digits,
// '-', '_' and '.'. Each returns the fault, or nothing.
std::optional<std::string_view> check(const AttachRequest& request);
std::optional<std::string_view> check(const RentRequest& request);
std::optional<std::string_view> check(const CreditRequest& request);
std::optional<std::string_view> check(const RoomRequest& request);
std::optional<std::string_view> check(const FollowRequest& request);

// A name that a pool may have: 1 to kPoolNameMax letters, digits, '-', '_', '.', not beginning with '.'.
bool is_pool_name(std::string_view name);

// -- RentReply --------------------------------------------------------------------------------------------------------

// Regions and runs that fit into one reply together, in any mix: a run beyond it could not be told to its owner.
inline constexpr size_t kRentItemsMax = 4096;
static_assert(sizeof(RentReply) + kRentItemsMax * sizeof(RunRecord) + 16 + sizeof(RentTimes) <= kPayloadBytesMax);

// `evicted_keys`: EvictedKey records, each followed by its key and padding. As many as fit are taken. `times`: null without.
std::vector<std::byte> encode_rent_reply(std::span<const uint32_t> regions, std::span<const RunRecord> runs,
                                         std::span<const std::byte> evicted_keys, uint32_t evicted_total,
                                         const RentTimes* times = nullptr);

struct RentReplyView {
  std::vector<uint32_t> regions;
  std::vector<RunRecord> runs;
  uint32_t evicted = 0;
  uint32_t evicted_total = 0;
  std::vector<std::byte> evicted_keys;
  std::optional<RentTimes> times;
};
// Nothing when the lengths do not add up.
std::optional<RentReplyView> decode_rent_reply(std::span<const std::byte> payload);

// Takes the next record off `rest`. Nothing at the end, or when the rest is no record.
struct EvictedKeyView {
  EvictedKey head;
  std::span<const std::byte> key;  // inside `rest`
};
std::optional<EvictedKeyView> next_evicted_key(std::span<const std::byte>& rest);

}  // namespace maru::wire
