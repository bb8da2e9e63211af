// Models the eviction of a pool: marud's own policies and queues (EvictionOrder) over a plain array, with blocks of one page.
// The rest follows a live pool, step by step:
//
//   match   the client counts the leading blocks that are present, pins the deepest, and leaves one touch for it, which stands
//           for all its ancestors
//   rent    when the client has too few pages, marud applies the touches since the last rent. It gives, in this order: a region
//           that no client rents; pages of blocks evicted from the client's own regions; pages from any region
//   store   the missing blocks, from the head to the tail, each with a touch
//   evict   a block can go when it has no children and no pin. Any other block leaves its queue when its turn comes. It comes
//           back when its last child leaves, with the child's recency, or when its pin was seen to end
//
// Not modelled: batches of evictions, lost touches, blocks of several pages, time to live, tenants, and clients at work at the
// same time.
#pragma once

#include "daemon/policy/eviction_order.h"
#include "daemon/tools/policy_sim/hit_ratio.h"
#include "daemon/tools/policy_sim/workload.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace maru::policy_sim {

struct PoolShape {
  uint64_t pages = 0;
  uint32_t regions = 1;  // pages are rounded down to whole regions; at most as many as pages
  uint32_t clients = 1;  // requests go to them in turn
  // Shares of the pages; background eviction starts at `high`, stops at `low`, and happens between requests. high 1: never.
  double high_watermark = 1;
  double low_watermark = 1;
};

class PoolModel final : private daemon::BlockFacts {
 public:
  // The policy and the workload outlive the model.
  PoolModel(const Workload& workload, const PoolShape& shape, Policy& policy);

  HitRatio replay();

  uint64_t pages() const { return pages_.size(); }
  uint64_t evicted() const { return evicted_; }
  uint64_t not_stored() const { return not_stored_; }  // blocks for which no memory was found

 private:
  struct Page {
    uint32_t block = kNoBlock;
    uint32_t children = 0;
    uint32_t generation = 0;
    bool is_held = false;
    uint64_t stored = 0;  // tick
  };
  struct Client {
    std::vector<uint32_t> regions;
    std::vector<uint32_t> free_pages;
  };
  struct Touch {
    uint32_t page;
    uint32_t generation;
    uint64_t tick;
  };

  void request(const Arrival& arrival, Client& client, HitRatio& ratio);
  void rent(Client& client, uint64_t enough);
  void evict(std::span<const uint32_t> regions, uint64_t wanted, std::vector<uint32_t>& ret_freed);
  void free_page(uint32_t page, daemon::EvictionOrder::Coldest& coldest);
  void drain_touches();
  void look_at_held();
  void evict_to_low_watermark();
  bool is_there(uint32_t block) const { return page_of_[block] != kNoPage; }

  // daemon::BlockFacts
  void read(uint32_t page, uint32_t needs, PolicyBlock& block) const override;
  uint32_t tenant(uint32_t) const override { return 0; }
  uint32_t tenant_class(uint32_t) const override { return 0; }
  PolicyTenant tenant_usage(uint32_t) const override { return {}; }

  static constexpr uint32_t kNoPage = ~0u;

  const Workload& workload_;
  const PoolShape shape_;
  uint32_t region_pages_;
  std::vector<Page> pages_;
  std::unique_ptr<format::PolicyEntry[]> entries_;
  daemon::EvictionOrder order_;
  std::vector<uint32_t> page_of_;  // by block
  std::vector<Client> clients_;
  std::vector<uint32_t> all_regions_;
  std::vector<uint32_t> owner_;  // of a region, that is rented
  uint32_t regions_rented_ = 0;
  std::vector<Touch> touches_;  // left and not yet applied
  std::vector<uint32_t> held_;  // pages that came up while they were pinned
  uint32_t pinned_ = kNoPage;
  uint64_t now_ = 0;
  uint64_t used_ = 0;
  uint64_t evicted_ = 0, not_stored_ = 0;
};

}  // namespace maru::policy_sim
