// A policy table without a pool: entries, and facts about blocks that a test makes up.
#pragma once

#include "daemon/policy/eviction_order.h"
#include "tests/support/random.h"

#include <functional>
#include <memory>
#include <vector>

namespace maru::test {

using daemon::EvictionOrder;

struct TestBlock {
  bool is_known = false;
  bool is_listed = false;
  uint32_t generation = 0;
  uint32_t tenant = 0;
  PolicyBlock facts;  // last_use as the test believes it; the word is unused
};

struct TestTenant {
  uint32_t tenant_class = 0;
  PolicyTenant usage;
};

// Blocks by page, tenants by number.
class TestFacts final : public daemon::BlockFacts {
 public:
  TestFacts(uint32_t pages, uint32_t tenants_count) : blocks(pages), tenants(tenants_count) {}

  void read(uint32_t page, uint32_t needs, PolicyBlock& block) const override {
    ++reads;
    const PolicyBlock& facts = blocks[page].facts;
    if (needs & kNeedsLine) {
      block.expires = facts.expires;
      block.digest = facts.digest;
      block.pages = facts.pages;
      block.depth = facts.depth;
    }
    if (needs & kNeedsDetail) {
      block.stored = facts.stored;
      block.tenant = facts.tenant;
      block.priority = facts.priority;
      block.content_type = facts.content_type;
    }
  }
  uint32_t tenant(uint32_t page) const override { return blocks[page].tenant; }
  uint32_t tenant_class(uint32_t tenant) const override { return tenants[tenant].tenant_class; }
  PolicyTenant tenant_usage(uint32_t tenant) const override { return tenants[tenant].usage; }

  std::vector<TestBlock> blocks;
  std::vector<TestTenant> tenants;
  mutable uint64_t reads = 0;
};

// Passes everything on, hides the facts that the policy did not ask for, counts, and lets a test look at what is spared.
class WatchedPolicy final : public Policy {
 public:
  explicit WatchedPolicy(Policy& watched) : watched_(&watched) {}

  const char* name() const override { return watched_->name(); }
  uint32_t needs() const override { return watched_->needs() | kNeedsLine; }  // the digest says which block it is
  Ranking ranking() const override { return watched_->ranking(); }
  bool evicts() const override { return watched_->evicts(); }
  void stored(PolicyBlock& block, const PolicyPool& pool) override {
    change(block, [&](auto& b) { watched_->stored(b, pool); });
  }
  void used(PolicyBlock& block, const PolicyPool& pool) override {
    change(block, [&](auto& b) { watched_->used(b, pool); });
  }
  void child_left(PolicyBlock& parent, const PolicyBlock& child, const PolicyPool& pool) override {
    change(parent, [&](auto& seen) { watched_->child_left(seen, hidden(child), pool); });
  }
  PolicyPlace place(const PolicyBlock& block) const override {
    ++places;
    return watched_->place(hidden(block));
  }
  bool spare(PolicyBlock& block, const PolicyPool& pool) override {
    bool is_spared = false;
    change(block, [&](auto& b) { is_spared = watched_->spare(b, pool); });
    if (on_spare) on_spare(block, is_spared);
    return is_spared;
  }
  void evicted(const PolicyBlock& block) override { watched_->evicted(hidden(block)); }
  uint64_t rank(const PolicyBlock& block, const PolicyTenant& tenant, const PolicyQueues& queues,
                const PolicyPool& pool) const override {
    return watched_->rank(hidden(block), tenant, queues, pool);
  }

  mutable uint64_t places = 0;
  std::function<void(const PolicyBlock&, bool is_spared)> on_spare;

 private:
  PolicyBlock hidden(PolicyBlock block) const {
    if (!(watched_->needs() & kNeedsLine)) block.expires = block.digest = block.pages = block.depth = 0;
    if (!(watched_->needs() & kNeedsDetail)) block.stored = block.tenant = block.priority = block.content_type = 0;
    return block;
  }
  template <typename Event>
  void change(PolicyBlock& block, Event event) {
    PolicyBlock seen = hidden(block);
    event(seen);
    block.word = seen.word;
  }

  Policy* watched_;
};

class ByTick final : public Policy {
 public:
  const char* name() const override { return "by_tick"; }
  PolicyPlace place(const PolicyBlock& block) const override { return {0, block.last_use}; }
};

inline PolicyPool test_pool(uint64_t now, uint32_t pages, uint32_t region_pages) {
  return {.now = now, .pages = pages, .region_pages = region_pages, .page_bytes = 4096};
}

}  // namespace maru::test
