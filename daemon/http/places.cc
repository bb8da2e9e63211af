#include "daemon/http/places.h"

#include <functional>
#include <map>

namespace maru::daemon::http {
namespace {

using State = Place::State;
using User = std::optional<uid_t>;

class Crowd {
 public:
  explicit Crowd(std::span<const Place> places) : places_(places) {
    for (const Place& place : places) ++sizes_[place.user];
  }

  size_t size_of(const User& user) const {
    const auto found = sizes_.find(user);
    return found == sizes_.end() ? 0 : found->second;
  }

  // The oldest connection of the largest party, among connections in this state whose party may lose one.
  std::optional<size_t> choose(State state, const std::function<bool(const User&)>& may_lose_one) const {
    std::optional<size_t> found;
    for (size_t i = 0; i < places_.size(); ++i) {
      const Place& place = places_[i];
      if (place.state != state || !may_lose_one(place.user)) continue;
      const auto is_before = [&](const Place& other) {
        const size_t size = size_of(place.user), other_size = size_of(other.user);
        return size != other_size ? size > other_size : place.since < other.since;
      };
      if (!found || is_before(places_[*found])) found = i;
    }
    return found;
  }

 private:
  std::span<const Place> places_;
  std::map<User, size_t> sizes_;
};

}  // namespace

Admission admit(std::span<const Place> places, User user, bool has_share, size_t places_max) {
  const Crowd crowd(places);
  const size_t own = crowd.size_of(user);
  const auto is_own = [&](const User& other) { return other == user; };
  if (has_share && own >= places_max / 4) {
    auto gives_way = crowd.choose(State::kStranger, is_own);
    if (!gives_way) gives_way = crowd.choose(State::kIdle, is_own);
    if (gives_way) return {{}, gives_way};
    return {(user ? "user " + std::to_string(*user) + " has " : "TCP has ") + std::to_string(own) +
                " HTTP connections with requests under way already",
            {}};
  }
  if (places.size() < places_max) return {};
  auto gives_way = crowd.choose(State::kStranger, [](const User&) { return true; });
  if (!gives_way)
    gives_way =
        crowd.choose(State::kIdle, [&](const User& other) { return is_own(other) || crowd.size_of(other) > own; });
  if (!gives_way)
    gives_way = crowd.choose(State::kBusy, [&](const User& other) { return crowd.size_of(other) >= own + 2; });
  if (gives_way) return {{}, gives_way};
  return {"there are " + std::to_string(places.size()) +
              " HTTP connections with requests under way already, which is all that are let in",
          {}};
}

}  // namespace maru::daemon::http
