// A slot of the registry for a key whose buckets are full: of the blocks there, at most fourteen, the coldest that may go makes
// room, in the order of the policy. A client asks only after the registry refused its key, once in 50,000 stores of a full
// pool. marud decides at once, without a round over all touches: at worst a block goes that was used just now.
#include "daemon/pool/state.h"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace maru::daemon {

int Pool::make_room(uint32_t lane, const wire::RoomRequest& request, uint64_t now_ms, std::string* ret_why) {
  state_->core.now_ms = now_ms;
  if (state_->lanes.is_live(lane)) return state_->make_room_in_bucket(request, ret_why);
  *ret_why = "this lane is not in use";
  return ENOTCONN;
}

int Pool::State::make_room_in_bucket(const wire::RoomRequest& request, std::string* ret_why) {
  const shm::BucketContent content = shm::registry_content(core.region, {request.digest_lo, request.digest_hi});
  if (!content.is_full) return 0;
  if (!policy->evicts()) {
    *ret_why = "both buckets of the key are full, and the pool's policy evicts nothing";
    return EXFULL;
  }
  drain_touches(kTouchesPerDrain);
  ask_for_tenant(0);
  struct Choice {
    bool is_ordered;  // others may be pinned, or were stored just now: last
    EvictionOrder::Key key;
    uint32_t page;
  };
  std::vector<Choice> choices;
  uint32_t parents = 0, elsewhere = 0;
  for (uint32_t i = 0; i < content.count; ++i) {
    const PageRef ref = content.ref(i);
    const PageWord found = core.word(ref.page());
    if (!found.is(PageState::kReady, ref.generation()) || ref.bits == request.parent) continue;
    parents += found.low() != 0;
    elsewhere += !regions.owns_page(ref.page());
    if (found.low() != 0 || !regions.owns_page(ref.page())) continue;
    const bool is_ordered = order.knows(ref.page(), ref.generation()) && order.contains(ref.page());
    choices.push_back({is_ordered, is_ordered ? order.key(ref.page()) : EvictionOrder::Key{}, ref.page()});
  }
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.is_ordered != b.is_ordered ? a.is_ordered : a.key < b.key;
  });
  for (const Choice& choice : choices)
    if (evict_pages({&choice.page, 1}, EvictReason::kRequest) != 0) return 0;
  *ret_why = "of the " + std::to_string(content.count) + " blocks in both buckets of the key " +
             std::to_string(parents) + " have children, " + std::to_string(elsewhere) +
             " are in regions of other hosts, and the others are pinned";
  return EXFULL;
}

}  // namespace maru::daemon
