// The pool's eviction policy: chosen by name, changed while the pool is in use, and told the facts about blocks that it asks
// for. The policy's note about a block, one word, lies in the policy table and so survives marud. The host record names the
// policy that wrote these words, so that another policy does not read them as its own.

#include "daemon/pool/eviction/queues.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {
namespace {

// FNV-1a. 0 stands for no policy.
uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

}  // namespace

Result<void> Queues::set_policy(const std::string& name, const PolicyOptions& options, bool in_turns) {
  auto made = make_policy(name, options, core_.config.policy_dir);
  if (!made) return tl::unexpected(made.error());
  const uint64_t wrote = core_.region.host(core_.host)
                             .policy.load_relaxed();  // a hint from the marud before: wrong, the order is a poor one
  const bool is_first = policy == nullptr;
  // In a pool of several hosts the words of all of them lie in one table, and zeros would end the others' order, too.
  const bool keep_words = is_first && (wrote == name_hash(name) || core_.region.is_shared());
  core_.totals.settle_evictions(core_.config.policy);  // while config.policy names the old one
  const std::unique_ptr<Policy> old = std::exchange(policy, std::move(*made));
  if (is_first)
    order.set_policy(*policy, keep_words, core_.region.is_shared());
  else
    order.change_policy(*policy);
  queues_by_tenant_ = has_queues_by_tenant();
  if (!keep_words) core_.region.host(core_.host).policy.store_relaxed(0);  // until all words are its own
  core_.config.policy = name;
  core_.config.policy_options = options;
  begin_reorder(!keep_words);
  if (!in_turns || core_.pages() <= kMendedPagesPerTurn) reorder_now();
  return {};
}

// Builds all queues of our own regions anew, shelf by shelf. Until the last shelf is built, no work chooses by them: a request
// that would have to waits.
void Queues::begin_reorder(bool is_new_policy) {
  ++reorders_begun_;
  for (uint32_t i = 0; i < shelves.size(); ++i) {
    if (regions_[order.region_of_shelf(i)].is_foreign) continue;
    is_new_policy ? order.unlearn(i) : order.forget(i);
    shelves[i].is_unordered = true;
  }
  reorder_next_ = 0;
}

// As many shelves as this turn has room for.
void Queues::step_reorder() {
  tell_time();
  for (; reorder_next_ < shelves.size(); ++reorder_next_) {
    if (regions_[order.region_of_shelf(reorder_next_)].is_foreign || !shelves[reorder_next_].is_unordered) continue;
    if (!may_rebuild()) return;
    rebuild(reorder_next_);
  }
  reorder_next_ = kNotReordering;
  core_.region.host(core_.host)
      .policy.store_relaxed(name_hash(core_.config.policy));  // tells the next marud who wrote the words
}

void Queues::reorder_now() {
  if (!is_reordering()) return;
  const uint64_t left = std::exchange(mend_pages_left_, kNever);
  step_reorder();
  mend_pages_left_ = left;
}

// From the ticks alone: the earlier policy's notes mean nothing to this policy.
void Queues::relearn(uint32_t shelf) {
  order.learn_anew(shelf);
  for (uint32_t page = order.first_page(shelf); page < order.end_page(shelf); ++page) {
    const PageWord found = core_.word(page);
    if (found.is(PageState::kReady) && regions_.owns_page(page) && order.knows(page, found.generation()))
      order.learn(page, found.generation(), order.last_use(page));
  }
}

void Queues::read(uint32_t page, uint32_t needs, PolicyBlock& block) const {
  // All of it is written by clients: a hint about which block goes first, and nothing else.
  if (needs & kNeedsLine) {
    const format::BlockLine& line = core_.region.block(page);
    const uint64_t expires_ms = line.expires_ms.load_relaxed(), shape = line.shape.load_relaxed();
    block.expires = expires_ms == 0 ? 0 : std::max<uint64_t>(1, core_.tick(expires_ms));
    block.digest = line.digest_lo.load_relaxed();
    block.pages = std::clamp<uint32_t>(uint32_t(shape), 1, core_.region.region_pages());
    block.depth = uint32_t(shape >> 32);
  }
  if (needs & kNeedsDetail) {
    const format::DetailLine& detail = core_.region.detail(page);
    const uint64_t kind = detail.kind.load_relaxed();
    block.stored = core_.tick(detail.stored_ms.load_relaxed());
    block.tenant = detail.tenant.load_relaxed();
    block.priority = uint32_t(kind);
    block.content_type = uint32_t(kind >> 56);
  }
}

// Tenants have queues of their own when a limit or a policy that ranks queues needs a block's tenant.
bool Queues::has_queues_by_tenant() const {
  return tenants_.table().matters() || policy->ranking() == Ranking::kByRank;
}

uint32_t Queues::tenant(uint32_t page) const {
  return queues_by_tenant_ ? tenants_.table().index_of(core_.region.detail(page).tenant.load_relaxed()) : 0;
}

uint32_t Queues::tenant_class(uint32_t index) const {
  return queues_by_tenant_ ? tenants_.table().eviction_class(index, asking_tenant_) : 0;
}

PolicyTenant Queues::tenant_usage(uint32_t index) const { return tenants_.table().usage(index); }

void Queues::separate_tenants() {
  if (has_queues_by_tenant() == queues_by_tenant_) return;
  queues_by_tenant_ = !queues_by_tenant_;
  begin_reorder(false);
}

void Queues::ask_for_tenant(uint64_t asker) {
  if (!queues_by_tenant_) return;
  tenants_.read_accounts();
  asking_tenant_ = tenants_.table().index_of(asker);
}

}  // namespace maru::daemon
