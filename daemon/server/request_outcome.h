// The results of a request, for requests*.cc.
#pragma once

#include "daemon/server/requests.h"
#include "libmaru/wire/codec.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace maru::daemon {

inline Outcome answer(const wire::MessageHeader& header, std::span<const std::byte> payload) {
  Outcome outcome;
  outcome.reply = OutgoingPacket{wire::encode(wire::Type(header.type), header.request_id, 0, payload), {}};
  return outcome;
}

inline Outcome refuse(uint16_t type, uint32_t request_id, int code, std::string_view why) {
  Outcome outcome;
  outcome.reply = OutgoingPacket{wire::encode_refusal(type, request_id, -code, why), {}};
  return outcome;
}

inline Outcome refuse(const wire::MessageHeader& header, int code, std::string_view why) {
  return refuse(header.type, header.request_id, code, why);
}

inline Outcome drop(std::string why) {
  Outcome outcome;
  outcome.drop = std::move(why);
  return outcome;
}

}  // namespace maru::daemon
