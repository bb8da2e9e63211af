// The findings of marud while it takes back the holdings of the dead, kept until they are worked off (reclaim/). Each
// queue has each page once, so a client that scribbles makes none longer than the pool.
#pragma once

#include "daemon/pool/page_queue.h"
#include "libmaru/shm/recovery/reclaim.h"

#include <cstdint>
#include <vector>

namespace maru::daemon {

class Findings final : public shm::ReclaimSink {
 public:
  PageQueue parents;  // their counts may be too high
  std::vector<shm::PageRef> taken;
  PageQueue orphans;  // READY and in no bucket
  uint64_t freed = 0;

  void resize(uint64_t pages) {
    parents.resize(pages);
    orphans.resize(pages);
  }
  void parent_suspect(shm::PageRef parent) override { parents.add(parent.page()); }
  void retired_taken(shm::PageRef ref) override { taken.push_back(ref); }
  void unregistered(shm::PageRef ref) override { orphans.add(ref.page()); }
  void pages_freed(uint32_t pages) override { freed += pages; }
};

}  // namespace maru::daemon
