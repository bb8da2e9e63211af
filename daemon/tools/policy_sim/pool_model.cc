#include "daemon/tools/policy_sim/pool_model.h"

#include <algorithm>
#include <numeric>

namespace maru::policy_sim {

using daemon::EvictionOrder;

PoolModel::PoolModel(const Workload& workload, const PoolShape& shape, Policy& policy)
    : workload_(workload),
      shape_(shape),
      region_pages_(uint32_t(shape.pages / shape.regions)),
      pages_(uint64_t(region_pages_) * shape.regions),
      entries_(std::make_unique<format::PolicyEntry[]>(pages_.size())),
      order_({entries_.get(), pages_.size()}, region_pages_, *this),
      page_of_(workload.blocks.size(), kNoPage),
      clients_(shape.clients),
      all_regions_(shape.regions),
      owner_(shape.regions) {
  std::iota(all_regions_.begin(), all_regions_.end(), 0u);
  order_.set_policy(policy, false);
}

HitRatio PoolModel::replay() {
  HitRatio ratio;
  for (size_t i = 0; i < workload_.arrivals.size(); ++i) {
    now_ = workload_.arrivals[i].tick;
    order_.set_pool({now_, pages_.size(), region_pages_, 1});
    request(workload_.arrivals[i], clients_[i % clients_.size()], ratio);
    evict_to_low_watermark();
  }
  return ratio;
}

void PoolModel::read(uint32_t page, uint32_t needs, PolicyBlock& block) const {
  const Page& each = pages_[page];
  if (each.block == kNoBlock) return;
  if (needs & kNeedsLine) {
    block.digest = workload_.blocks[each.block].digest;
    block.depth = workload_.blocks[each.block].depth;
    block.pages = 1;
  }
  if (needs & kNeedsDetail) block.stored = each.stored;
}

// -- a request --------------------------------------------------------------------------------------------------------

void PoolModel::request(const Arrival& arrival, Client& client, HitRatio& ratio) {
  const std::vector<uint32_t>& blocks = arrival.blocks;
  size_t hits = 0;
  while (hits < blocks.size() && is_there(blocks[hits])) ++hits;
  ratio.references += blocks.size();
  ratio.prefix_hits += hits;
  ratio.block_hits += uint64_t(std::count_if(blocks.begin(), blocks.end(), [&](uint32_t b) { return is_there(b); }));
  if (hits > 0) {
    pinned_ = page_of_[blocks[hits - 1]];
    touches_.push_back({pinned_, pages_[pinned_].generation, now_});
  }
  // A client allocates all or nothing.
  const size_t missing = blocks.size() - hits;
  if (client.free_pages.size() < missing && missing <= pages_.size()) rent(client, missing);
  if (client.free_pages.size() < missing) {
    not_stored_ += missing;
  } else {
    for (size_t i = hits; i < blocks.size(); ++i) {
      const uint32_t page = client.free_pages.back();
      client.free_pages.pop_back();
      if (i > 0) ++pages_[page_of_[blocks[i - 1]]].children;
      Page& stored = pages_[page];
      stored = {blocks[i], 0, stored.generation + 1, false, now_};
      page_of_[blocks[i]] = page;
      touches_.push_back({page, stored.generation, now_});
      ++used_;
    }
  }
  pinned_ = kNoPage;
}

// Until the client has `enough` FREE pages.
void PoolModel::rent(Client& client, uint64_t enough) {
  drain_touches();
  look_at_held();
  for (; regions_rented_ < shape_.regions && client.free_pages.size() < enough; ++regions_rented_) {
    client.regions.push_back(regions_rented_);
    owner_[regions_rented_] = uint32_t(&client - clients_.data());
    // From the back, so that the first page is the first to be taken.
    for (uint32_t i = region_pages_; i-- > 0;) client.free_pages.push_back(regions_rented_ * region_pages_ + i);
  }
  if (client.free_pages.size() < enough) evict(client.regions, enough - client.free_pages.size(), client.free_pages);
  if (client.free_pages.size() < enough) evict(all_regions_, enough - client.free_pages.size(), client.free_pages);
}

// -- eviction ---------------------------------------------------------------------------------------------------------

void PoolModel::evict(std::span<const uint32_t> regions, uint64_t wanted, std::vector<uint32_t>& ret_freed) {
  EvictionOrder::Coldest coldest(order_, regions);
  uint32_t page = 0;
  EvictionOrder::Key key;
  for (const size_t enough = ret_freed.size() + wanted; ret_freed.size() < enough && coldest.peek(&page, &key);) {
    order_.remove(page);
    if (pages_[page].children > 0) continue;
    if (page == pinned_) {
      pages_[page].is_held = true;
      held_.push_back(page);
      continue;
    }
    free_page(page, coldest);
    ret_freed.push_back(page);
  }
}

void PoolModel::free_page(uint32_t page, EvictionOrder::Coldest& coldest) {
  const uint32_t block = pages_[page].block, parent_block = workload_.blocks[block].parent;
  const uint64_t last_use = order_.last_use(page);
  order_.was_evicted(page);
  ++evicted_;
  --used_;
  const uint32_t parent = parent_block == kNoBlock ? kNoPage : page_of_[parent_block];
  if (parent != kNoPage) order_.child_left(parent, page);
  page_of_[block] = kNoPage;
  pages_[page].block = kNoBlock;
  if (parent == kNoPage) return;
  order_.inherit(parent, last_use);
  if (--pages_[parent].children > 0 || pages_[parent].is_held) return;
  order_.insert(parent);
  coldest.push(parent);
}

void PoolModel::drain_touches() {
  for (const Touch& touch : touches_) {
    if (pages_[touch.page].generation != touch.generation || pages_[touch.page].block == kNoBlock) continue;
    if (!order_.knows(touch.page, touch.generation)) {
      order_.learn(touch.page, touch.generation, touch.tick);
    } else if (order_.last_use(touch.page) < touch.tick) {
      order_.use(touch.page, touch.tick);
    }
    if (!order_.contains(touch.page) && !pages_[touch.page].is_held) order_.insert(touch.page);
  }
  touches_.clear();
}

void PoolModel::look_at_held() {
  std::erase_if(held_, [&](uint32_t page) {
    if (page == pinned_) return false;
    pages_[page].is_held = false;
    if (pages_[page].children == 0) order_.insert(page);
    return true;
  });
}

void PoolModel::evict_to_low_watermark() {
  if (shape_.high_watermark >= 1 || double(used_) < shape_.high_watermark * double(pages_.size())) return;
  drain_touches();
  look_at_held();
  const auto low = uint64_t(shape_.low_watermark * double(pages_.size()));
  std::vector<uint32_t> freed;
  evict(all_regions_, used_ - std::min(used_, low), freed);
  // Freed pages stay with their region. The region's client may use them.
  for (const uint32_t page : freed) clients_[owner_[page / region_pages_]].free_pages.push_back(page);
}

}  // namespace maru::policy_sim
