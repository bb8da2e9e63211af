#include "daemon/metrics/families.h"

namespace maru::daemon::metrics {
namespace {

constexpr const char* kRefusalNames[] = {"attach", "write", "administrate", "connections", "regions", "bytes", "pins"};
static_assert(std::size(kRefusalNames) == kRefusals);

void per_user(TextWriter& out, const Snapshot& snapshot, const char* name, const char* help,
              uint64_t UserNumbers::* value) {
  out.family(name, "gauge", help);
  for (const auto& [user, numbers] : snapshot.users) out.sample({{"user", std::to_string(user)}}, numbers.*value);
}

}  // namespace

void write_users(TextWriter& out, const Snapshot& snapshot) {
  out.family("maru_refusals_total", "counter",
             "Requests refused because of who asked: by access lists, or beyond a limit of the user.");
  for (size_t i = 0; i < kRefusals; ++i) out.sample({{"what", kRefusalNames[i]}}, snapshot.refusals[i]);
  per_user(out, snapshot, "maru_user_connections", "Connections of a user.", &UserNumbers::connections);
  per_user(out, snapshot, "maru_user_regions", "Regions that clients of a user rent, in all pools.",
           &UserNumbers::regions);
  per_user(out, snapshot, "maru_user_bytes", "Bytes of these regions.", &UserNumbers::bytes);
  per_user(out, snapshot, "maru_user_pins", "Pins of a user's clients when marud looked last.", &UserNumbers::pins);
  out.family("maru_users_over_pins", "gauge", "Users with more pins in a pool than their limit.");
  out.sample({}, snapshot.users_over_pins);
}

}  // namespace maru::daemon::metrics
