#include "daemon/pool/eviction/bucket_room.h"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace maru::daemon {

int BucketRoom::make(const wire::RoomRequest& request, std::string* ret_why) {
  const shm::BucketContent content = shm::registry_content(core_.region, {request.digest_lo, request.digest_hi});
  if (!content.is_full) return 0;
  if (!queues_.policy->evicts()) {
    *ret_why = "both buckets of the key are full, and the pool's policy evicts nothing";
    return EXFULL;
  }
  recency_.drain(kTouchesPerDrain);
  queues_.ask_for_tenant(0);
  struct Choice {
    bool is_ordered;  // others may be pinned, or were stored just now: last
    EvictionOrder::Key key;
    uint32_t page;
  };
  std::vector<Choice> choices;
  uint32_t parents = 0, elsewhere = 0;
  for (uint32_t i = 0; i < content.count; ++i) {
    const PageRef ref = content.ref(i);
    const PageWord found = core_.word(ref.page());
    if (!found.is(PageState::kReady, ref.generation()) || ref.bits == request.parent) continue;
    parents += found.low() != 0;
    elsewhere += !regions_.owns_page(ref.page());
    if (found.low() != 0 || !regions_.owns_page(ref.page())) continue;
    const bool is_ordered = queues_.order.knows(ref.page(), ref.generation()) && queues_.order.contains(ref.page());
    choices.push_back({is_ordered, is_ordered ? queues_.order.key(ref.page()) : EvictionOrder::Key{}, ref.page()});
  }
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.is_ordered != b.is_ordered ? a.is_ordered : a.key < b.key;
  });
  for (const Choice& choice : choices)
    if (evictor_.evict_pages({&choice.page, 1}, EvictReason::kRequest) != 0) return 0;
  *ret_why = "of the " + std::to_string(content.count) + " blocks in both buckets of the key " +
             std::to_string(parents) + " have children, " + std::to_string(elsewhere) +
             " are in regions of other hosts, and the others are pinned";
  return EXFULL;
}

}  // namespace maru::daemon
