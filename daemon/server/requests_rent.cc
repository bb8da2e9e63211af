// Requests for memory. Some need turns of their pool first, because many uses have not been read yet or the queues of
// its policy are being built. Such a request waits, and the later messages of its connection wait behind it; others go
// on.
#include "daemon/base/log.h"
#include "daemon/server/request_outcome.h"
#include "daemon/server/requests.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace maru::daemon {
namespace {

wire::RentTimes times_of(const RentResult& result, std::chrono::steady_clock::time_point came, uint64_t turns) {
  using std::chrono::nanoseconds;
  const auto now = std::chrono::steady_clock::now();
  const auto unix_now = std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  const auto unix_ns = [&](std::chrono::steady_clock::time_point at) {
    return uint64_t((unix_now - std::chrono::duration_cast<nanoseconds>(now - at)).count());
  };
  const Choosing& choosing = result.choosing;
  return {unix_ns(came), choosing.is_some() ? unix_ns(choosing.from) : 0, choosing.is_some() ? unix_ns(choosing.to) : 0,
          unix_ns(now), turns};
}

}  // namespace

Outcome Requests::rent(Session& session, const wire::MessageHeader& header, std::span<const std::byte> payload,
                       Moment now) {
  const auto request = wire::read_exactly<wire::RentRequest>(payload);
  if (!request) return drop("a rent request of the wrong size");
  if (const auto wrong = wire::check(*request)) return drop("a rent request: " + std::string(*wrong));
  return rent_for(session, header, *request, now, 0, std::chrono::steady_clock::now(), 1);
}

bool Requests::has_waiting_rent(uint64_t session) const {
  return std::any_of(rents_.begin(), rents_.end(), [&](const WaitingRent& rent) { return rent.session == session; });
}

std::vector<uint64_t> Requests::ready_rents() {
  std::vector<uint64_t> ready;
  ready.reserve(rents_.size());  // before any of them counts as said
  for (WaitingRent& rent : rents_) {
    const Pool* serving = pools_[rent.pool]->serving();  // a pool that does not serve any more refuses
    if (rent.is_said || (serving && !serving->may_rent(rent.ticket))) continue;
    rent.is_said = true;
    ready.push_back(rent.session);
  }
  return ready;
}

Outcome Requests::rent_again(Session& session, Moment now) {
  const auto found =
      std::find_if(rents_.begin(), rents_.end(), [&](const WaitingRent& rent) { return rent.session == session.id(); });
  if (found == rents_.end()) return {};
  const WaitingRent waiting = *found;
  rents_.erase(found);
  return rent_for(session, waiting.header, waiting.request, now, waiting.ticket, waiting.came, waiting.turns + 1);
}

// With a ticket it has waited for its pool.
Outcome Requests::rent_for(Session& session, const wire::MessageHeader& header, const wire::RentRequest& request,
                           Moment now, uint64_t ticket, std::chrono::steady_clock::time_point came, uint64_t turns) {
  Outcome outcome;
  LaneWatch* watch = lane_of(session, header, outcome);
  if (!watch) return outcome;
  if (session.is_read_only) return refuse(header, EROFS, "this client attached to read only");
  Pool& serving = *pools_[watch->pool]->serving();
  const Users::Allowance allowed = users_.allowance(session.peer(), serving);
  RentResult result;
  if (allowed.why.empty() || allowed.evicts_own) {
    result = serving.rent(watch->lane, request, now.unix_ms, allowed.limits, header.request_id, &ticket, came);
    if (ticket != 0) {
      rents_.push_back({session.id(), header, request, watch->pool, watch->lane, ticket, came, turns});
      return {};
    }
  } else {
    if (ticket != 0) result = serving.give_up_rent(watch->lane);
    if (result.regions.empty() && result.runs.empty()) result.status = -EDQUOT;
  }
  if (result.status == -EDQUOT) {
    result.explanation = allowed.why;
    users_.refuse(allowed.refusal, session.account, session.text() + ": " + allowed.why, now.monotonic_ms);
  }
  const std::string& pool = pools_[watch->pool]->name();
  // A refusal is a text and has no room for the blocks evicted on the way to it; an answer without memory says both.
  const bool evicted_in_vain =
      (result.status == -ENOSPC || result.status == -EDQUOT || result.status == -ESHUTDOWN) && result.evicted_total > 0;
  if (result.status < 0) log_debug("{} gets no memory of pool \"{}\": {}", session.text(), pool, result.explanation);
  if (result.status < 0 && !evicted_in_vain) return refuse(header, -result.status, result.explanation);
  log_debug("{} gets {} regions and {} runs of pool \"{}\"; {} blocks were evicted for it", session.text(),
            result.regions.size(), result.runs.size(), pool, result.evicted_total);
  if (result.regions.size() + result.runs.size() > wire::kRentItemsMax)
    return drop(fmt::format("renting gave {} regions and {} runs, more than a reply can hold", result.regions.size(),
                            result.runs.size()));
  const wire::RentTimes times = times_of(result, came, turns);
  outcome =
      answer(header, wire::encode_rent_reply(result.regions, result.runs, result.evicted_keys, result.evicted_total,
                                             (request.flags & wire::kRentWantsTimes) != 0 ? &times : nullptr));
  for (const TakenRegion& region : result.taken) {
    const LaneWatch* owner = lanes_.find_lane(watch->pool, region.lane);
    users_.movements.say(
        session.account,
        "pool \"{}\": region {} is taken from lane {} (process {}) for lane {} (process {}): {} blocks "
        "were evicted, {} stay",
        pool, region.region, region.lane, owner ? owner->who.pid : 0, watch->lane, watch->who.pid, region.evicted,
        region.left);
  }
  outcome.notices = tell_old_owners(watch->pool, result.taken);
  return outcome;
}

// For connected clients; the others find it in shared memory.
std::vector<Outcome::Notice> Requests::tell_old_owners(uint32_t pool, std::span<const TakenRegion> taken) {
  std::vector<Outcome::Notice> notices;
  for (const TakenRegion& region : taken) {
    const LaneWatch* owner = lanes_.find_lane(pool, region.lane);
    if (!owner || owner->session == 0) continue;
    const wire::RegionTaken message = {region.region, region.generation};
    notices.push_back({owner->session, {wire::encode(wire::Type::kRegionTaken, 0, 0, wire::bytes_of(message)), {}}});
  }
  return notices;
}

}  // namespace maru::daemon
