// Decides which connections keep a place when more want one than HTTP has. Pure: tests can ask about any crowd.
//
// All connections of one user are a party. All connections by TCP are one party, too: they have no identity before they show a
// token. A party has at most a quarter of the places; root and marud's own user may have all that are free. When a party has
// its share, one of its own connections gives way to a newcomer. When all places are taken, the largest party with a connection
// that may go loses it. Connections go in this order:
//
//   kStranger  has not shown the token; when all places are taken, of any party
//   kIdle      has no request under way; HTTP lets a server close such a connection at any time
//   kBusy      sends a request or reads a reply; only when all places are taken, and its party has two more than the newcomer's
//
// Among several, the oldest in its state goes. A connection that waits for marud's answer stays: its request would go on, and
// its client would not learn the outcome.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <sys/types.h>

namespace maru::daemon::http {

struct Place {
  enum class State : uint8_t { kStranger, kIdle, kBusy, kWaits };
  std::optional<uid_t> user;  // nothing: TCP
  State state = State::kIdle;
  uint64_t since = 0;  // counts up: it came, or its last request ended
};

struct Admission {
  std::string why_not;              // empty: the newcomer has a place
  std::optional<size_t> gives_way;  // the index of the place that is cleared for the newcomer
};

// `has_share`: the newcomer's party is held to a quarter of `places_max`.
Admission admit(std::span<const Place> places, std::optional<uid_t> user, bool has_share, size_t places_max);

}  // namespace maru::daemon::http
