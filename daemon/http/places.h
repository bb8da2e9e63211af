// Who has a place among the HTTP connections when more want one than there are. Pure: any crowd can be asked about.
//
// All connections of one user are one party, and so are all by TCP: nobody knows who they are before they show the token. A
// party has a quarter of the places at most; root and marud's own user have what is left. When a party has its share, one of
// its own gives way to a newcomer; when all places are taken, one of the largest party that has what may go. In this order:
//
//   kStranger  has not shown the token; when all places are taken, of whatever party
//   kIdle      has no request under way; HTTP lets a server close such a connection at any time
//   kBusy      sends a request or reads a reply; only when all places are taken, and its party has two more than the newcomer's
//
// Of several the one that has stood there longest goes. One that waits for marud's answer never does: what it asked for would
// go on, and nobody would learn of the outcome.
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
  std::string why_not;              // empty: it is let in
  std::optional<size_t> gives_way;  // the index of the place that is cleared for it
};

// `has_share`: the newcomer's party is held to a quarter of `places_max`.
Admission admit(std::span<const Place> places, std::optional<uid_t> user, bool has_share, size_t places_max);

}  // namespace maru::daemon::http
