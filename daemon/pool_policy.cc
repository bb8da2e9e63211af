// The pool's eviction policy: chosen by name, changed while the pool is in use, and told what it asks for about blocks. What
// the policy notes down about a block, one word, lies in the policy table and so survives marud; the host record says whose
// words these are, so that another policy does not read them as its own.
#include "daemon/pool_state.h"

#include <algorithm>

namespace maru::daemon {
namespace {

// FNV-1a. 0 stands for no policy.
uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

}  // namespace

// Every block is told to the new policy as if it had been stored when it was last used; nothing of the old order is kept.
// Costs about a tenth of a microsecond a page, in one turn.
Result<void> Pool::State::set_policy(const std::string& name, const PolicyOptions& options) {
  auto made = make_policy(name, options, config.policy_dir);
  if (!made) return tl::unexpected(made.error());
  const uint64_t wrote =
      region.host(hosts.self).policy.load_relaxed();  // a hint from the marud before: wrong, the order is a poor one
  // In a pool of several hosts the words of all of them lie in one table, and zeros would end the others' order, too.
  const bool keep_words = policy == nullptr && (wrote == name_hash(name) || region.is_shared());
  settle_evictions();  // while config.policy names the old one
  const std::unique_ptr<Policy> old = std::exchange(policy, std::move(*made));
  order.set_pool({tick(now_ms), pages(), region.region_pages(), region.page_bytes()});
  order.set_policy(*policy, keep_words, region.is_shared());
  queues_by_tenant = has_queues_by_tenant();
  region.host(hosts.self).policy.store_relaxed(name_hash(name));  // for the next marud
  config.policy = name;
  config.policy_options = options;
  if (!keep_words)
    for (uint64_t i = 0; i < pages(); ++i) {
      const auto page = uint32_t(i);
      const PageWord found = word(page);
      if (found.is(PageState::kReady) && owns_page(page) && order.knows(page, found.generation()))
        order.learn(page, found.generation(), order.last_use(page));
    }
  for (uint32_t i = 0; i < regions.size(); ++i) rebuild_queues(i);
  return {};
}

void Pool::State::read(uint32_t page, uint32_t needs, PolicyBlock& block) const {
  // All of it is written by clients: a hint about which block goes first, and nothing else.
  if (needs & kNeedsLine) {
    const format::BlockLine& line = region.block(page);
    const uint64_t expires_ms = line.expires_ms.load_relaxed(), shape = line.shape.load_relaxed();
    block.expires = expires_ms == 0 ? 0 : std::max<uint64_t>(1, tick(expires_ms));
    block.digest = line.digest_lo.load_relaxed();
    block.pages = std::clamp<uint32_t>(uint32_t(shape), 1, region.region_pages());
    block.depth = uint32_t(shape >> 32);
  }
  if (needs & kNeedsDetail) {
    const format::DetailLine& detail = region.detail(page);
    const uint64_t kind = detail.kind.load_relaxed();
    block.stored = tick(detail.stored_ms.load_relaxed());
    block.tenant = detail.tenant.load_relaxed();
    block.priority = uint32_t(kind);
    block.content_type = uint32_t(kind >> 56);
  }
}

// Tenants have queues of their own when somebody asks whose a block is: a limit, or a policy that ranks queues.
bool Pool::State::has_queues_by_tenant() const {
  return tenants.table().matters() || policy->ranking() == Ranking::kByRank;
}

uint32_t Pool::State::tenant(uint32_t page) const {
  return queues_by_tenant ? tenants.table().index_of(region.detail(page).tenant.load_relaxed()) : 0;
}

uint32_t Pool::State::tenant_class(uint32_t index) const {
  return queues_by_tenant ? tenants.table().eviction_class(index, asking_tenant) : 0;
}

PolicyTenant Pool::State::tenant_usage(uint32_t index) const { return tenants.table().usage(index); }

// Before blocks are chosen: what tenants use now, and for whom (0: nobody) the memory is.
void Pool::State::ask_for_tenant(uint64_t asker) {
  if (const bool now = has_queues_by_tenant(); now != queues_by_tenant) {
    queues_by_tenant = now;
    for (uint32_t i = 0; i < regions.size(); ++i) rebuild_queues(i);
  }
  if (!queues_by_tenant) return;
  tenants.read_accounts();
  asking_tenant = tenants.table().index_of(asker);
}

}  // namespace maru::daemon
