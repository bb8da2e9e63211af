// The pool's eviction policy: chosen by name, changed while the pool is in use, and told what it asks for about blocks. What
// the policy notes down about a block, one word, lies in the policy table and so survives marud; the host record says whose
// words these are, so that another policy does not read them as its own.
#include "daemon/pool/state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
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

// Every block is told to the new policy as if it had been stored when it was last used; nothing of the old order is kept.
// Costs about a tenth of a microsecond a page: in one go, or in turns, in which nothing is chosen by it.
Result<void> Pool::State::set_policy(const std::string& name, const PolicyOptions& options, bool in_turns) {
  auto made = make_policy(name, options, core.config.policy_dir);
  if (!made) return tl::unexpected(made.error());
  const uint64_t wrote =
      core.region.host(core.host).policy.load_relaxed();  // a hint from the marud before: wrong, the order is a poor one
  const bool is_first = policy == nullptr;
  // In a pool of several hosts the words of all of them lie in one table, and zeros would end the others' order, too.
  const bool keep_words = is_first && (wrote == name_hash(name) || core.region.is_shared());
  settle_evictions();  // while config.policy names the old one
  const std::unique_ptr<Policy> old = std::exchange(policy, std::move(*made));
  if (is_first)
    order.set_policy(*policy, keep_words, core.region.is_shared());
  else
    order.change_policy(*policy);
  queues_by_tenant = has_queues_by_tenant();
  if (!keep_words) core.region.host(core.host).policy.store_relaxed(0);  // until all words are its own
  core.config.policy = name;
  core.config.policy_options = options;
  begin_reorder(!keep_words);
  if (!in_turns || core.pages() <= kMendedPagesPerTurn) reorder_now();
  return {};
}

// All queues of our own regions are built anew, shelf by shelf. Until the last one is, nobody chooses by them: a request that
// would have to waits.
void Pool::State::begin_reorder(bool is_new_policy) {
  restart_audits();
  for (uint32_t i = 0; i < shelves.size(); ++i) {
    if (regions[order.region_of_shelf(i)].is_foreign) continue;
    is_new_policy ? order.unlearn(i) : order.forget(i);
    shelves[i].is_unordered = true;
  }
  reorder_next = 0;
}

// As many shelves as this turn has room for.
void Pool::State::step_reorder() {
  order.set_pool({core.tick(core.now_ms), core.pages(), core.region.region_pages(), core.region.page_bytes()});
  for (; reorder_next < shelves.size(); ++reorder_next) {
    if (regions[order.region_of_shelf(reorder_next)].is_foreign || !shelves[reorder_next].is_unordered) continue;
    if (!may_rebuild()) return;
    rebuild_queues(reorder_next);
  }
  reorder_next = kNotReordering;
  core.region.host(core.host).policy.store_relaxed(name_hash(core.config.policy));  // for the next marud: whose the words are
  for (Ordered& waiting : std::exchange(ordered_replies, {})) keep_answer(waiting.ticket, std::move(waiting.reply));
}

void Pool::State::reorder_now() {
  if (!is_reordering()) return;
  const uint64_t left = std::exchange(mend_pages_left, kNever);
  step_reorder();
  mend_pages_left = left;
}

// From the ticks alone: what the policy before has noted down is nothing to this one.
void Pool::State::relearn(uint32_t shelf) {
  order.learn_anew(shelf);
  for (uint32_t page = order.first_page(shelf); page < order.end_page(shelf); ++page) {
    const PageWord found = core.word(page);
    if (found.is(PageState::kReady) && regions.owns_page(page) && order.knows(page, found.generation()))
      order.learn(page, found.generation(), order.last_use(page));
  }
}

// The reply, now or when the queues are built: then there is a ticket for it.
nlohmann::json Pool::State::when_ordered(nlohmann::json reply, uint64_t* ret_ticket) {
  if (!ret_ticket || !is_reordering()) return reply;
  ordered_replies.push_back({* ret_ticket = ++core.last_ticket, std::move(reply)});
  return {};
}

nlohmann::json Pool::State::late_policy(uint64_t* ret_ticket) {
  const auto is_it = [&](const Ordered& waiting) { return waiting.ticket == *ret_ticket; };
  if (std::any_of(ordered_replies.begin(), ordered_replies.end(), is_it)) return {};
  return late_answer(ret_ticket);
}

void Pool::State::read(uint32_t page, uint32_t needs, PolicyBlock& block) const {
  // All of it is written by clients: a hint about which block goes first, and nothing else.
  if (needs & kNeedsLine) {
    const format::BlockLine& line = core.region.block(page);
    const uint64_t expires_ms = line.expires_ms.load_relaxed(), shape = line.shape.load_relaxed();
    block.expires = expires_ms == 0 ? 0 : std::max<uint64_t>(1, core.tick(expires_ms));
    block.digest = line.digest_lo.load_relaxed();
    block.pages = std::clamp<uint32_t>(uint32_t(shape), 1, core.region.region_pages());
    block.depth = uint32_t(shape >> 32);
  }
  if (needs & kNeedsDetail) {
    const format::DetailLine& detail = core.region.detail(page);
    const uint64_t kind = detail.kind.load_relaxed();
    block.stored = core.tick(detail.stored_ms.load_relaxed());
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
  return queues_by_tenant ? tenants.table().index_of(core.region.detail(page).tenant.load_relaxed()) : 0;
}

uint32_t Pool::State::tenant_class(uint32_t index) const {
  return queues_by_tenant ? tenants.table().eviction_class(index, asking_tenant) : 0;
}

PolicyTenant Pool::State::tenant_usage(uint32_t index) const { return tenants.table().usage(index); }

// Tenants get queues of their own when the first limit comes, and lose them with the last one.
void Pool::State::separate_tenants() {
  if (has_queues_by_tenant() == queues_by_tenant) return;
  queues_by_tenant = !queues_by_tenant;
  begin_reorder(false);
}

// Before blocks are chosen: what tenants use now, and for whom (0: nobody) the memory is.
void Pool::State::ask_for_tenant(uint64_t asker) {
  if (!queues_by_tenant) return;
  tenants.read_accounts();
  asking_tenant = tenants.table().index_of(asker);
}

}  // namespace maru::daemon
