#include "daemon/pool/tenants/pool_tenants.h"

#include "daemon/base/log.h"
#include "libmaru/shm/blocks/hash.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace maru::daemon {
namespace {

// Credit beyond the request: an eighth of the rest, so that the last bytes are not scattered over idle lanes, and no more than
// this.
constexpr uint64_t kCreditChunkBytes = 64ull << 20;
// A pass that found something in flight is tried again after this, then after twice as long, and so on.
constexpr uint64_t kCountPauseMs = 20;
constexpr uint64_t kCountPauseMaxMs = 10'000;
constexpr uint64_t kOthersPauseMs = 2'000;
// While stores are refused for want of a place the log says so again after this.
constexpr uint64_t kRefusedSaidAgainMs = 600'000;
// Pools up to this size are counted at once where a tenant would otherwise be refused.
constexpr uint64_t kCountAtOncePages = 1u << 16;
// Tenants that one step takes up, where each costs a look for its credit in all lanes.
constexpr uint32_t kTightenedPerStep = 64;

}  // namespace

void PoolTenants::begin(const std::string& pool, const shm::ControlRegion& region, const shm::LaneSet& in_use,
                        OwnLanes lanes, const TenantSettings& configured) {
  pool_ = pool;
  region_ = &region;
  lanes_ = lanes;
  in_use_ = &in_use;
  settings_.configure(configured);
  table_ = TenantTable(region.parameters().tenants);
  keeps_.assign(table_.size(), {});
  account_indices_.assign(size_t(region.lanes()) * region.account_slots(), 0);
}

// -- tenants and their balances ---------------------------------------------------------------------------------------

// A step begins: it reads the accounts again when it needs them.
void PoolTenants::begin_step() {
  step_.has_busy = false;
  step_.tightened_left = kTightenedPerStep;
}

// Which tenants of the table some lane's account says anything of: one pass over the accounts for all questions of a step.
void PoolTenants::find_busy() {
  step_.has_busy = true;
  step_.busy.assign(table_.size(), false);
  for_each_claimed([&](uint32_t lane, uint32_t i, const format::LaneAccount& account) {
    if (i == shm::kOthersAccount) return;
    shm::TenantReading reading;
    shm::read_account(account, &reading);
    if (reading == shm::TenantReading{}) return;
    const uint64_t tenant = account.tenant.load_acquire();  // [pairs account.tenant]
    const uint32_t known = account_indices_[size_t(lane) * region_->account_slots() + i];
    step_.busy[table_.row(known).id == tenant ? known : table_.index_of(tenant)] = true;
  });
}

bool PoolTenants::is_idle(uint32_t index) {
  if (kept_place_ != 0 && table_.row(index).id == kept_place_) return false;
  // The pass's count for this tenant must not be taken for another tenant's.
  if (keeps_[index].balance != 0 || (count_.is_running && count_.bytes[index] != 0)) return false;
  // Without this its lanes' accounts would count for nothing when it comes back.
  if (!step_.has_busy) find_busy();
  return !step_.busy[index];
}

// Whether one more tenant has to wait for the next step. (Tenants that need no credit cost little.)
bool PoolTenants::has_added_enough() const {
  return step_.tightened_left == 0 && has_rules_ && table_.unlisted_need_credit();
}

uint32_t PoolTenants::add(uint64_t tenant) {
  if (const uint32_t known = table_.index_of(tenant); known != 0 || tenant == 0) return known;
  // A tenant whose first pages this pass has counted for the others must not get the rest of them alone.
  const bool may = !has_added_enough() && !(count_.is_at_page && count_.has_missed);
  const uint32_t index = may ? table_.find_or_add(tenant, [&](uint32_t other) { return is_idle(other); }) : 0;
  if (index == 0) {
    count_.has_missed = count_.has_missed || count_.is_at_page;
    missed();
    return 0;
  }
  count_.upsets += !count_.is_at_page;
  suspects_ -= keeps_[index].is_suspect;
  keeps_[index] = {};
  if (step_.has_busy) step_.busy[index] = true;  // for this step
  if (has_missed_) {
    keeps_[index].is_unsure = true;
    suspect(index);
  }
  place_listed(index);
  show(index);
  if (has_rules_ && table_.needs_credit(index)) {
    tighten(index);
    step_.tightened_left -= step_.tightened_left > 0;
  }
  return index;
}

void PoolTenants::missed() {
  if (has_missed_) return;
  has_missed_ = true;
  show_flags();
}

const TenantLimits* PoolTenants::limits_without_place(uint64_t tenant) const {
  const auto found = without_place_.listed.find(tenant);
  return found == without_place_.listed.end() ? nullptr : &found->second.limits;
}

// A tenant that an administrator has named, and that found no place until now.
void PoolTenants::place_listed(uint32_t index) {
  const auto found = without_place_.listed.find(table_.row(index).id);
  if (found == without_place_.listed.end()) return;
  table_.set(index, found->second.name, found->second.limits);
  without_place_.listed.erase(found);
  if (has_rules_) table_.finish_limits();
}

void PoolTenants::add_to_balance(uint32_t index, uint64_t bytes) {
  keeps_[index].balance += bytes;
  if (index != 0 && shows())
    region_->tenant(index - 1).balance.store_release(keeps_[index].balance);  // [pairs tenant.rules]
}

void PoolTenants::suspect(uint32_t index) {
  suspects_ += !keeps_[index].is_suspect;
  keeps_[index].is_suspect = true;
  count_.pause_ms = 0;
  count_.again_ms = 0;
}

void PoolTenants::suspect_all() {
  for (uint32_t index = 0; index < table_.size(); ++index)
    if (index == 0 || table_.row(index).id != 0) suspect(index);
}

void PoolTenants::returned(uint32_t page, uint64_t tenant, uint64_t bytes) {
  const uint32_t index = add(tenant);
  add_to_balance(index, 0 - bytes);
  table_.freed(index, bytes);
  if (count_.is_running && page < count_.next) count_.bytes[index] -= bytes;
}

void PoolTenants::fold(uint32_t lane) {
  bool has_any = false;
  for (uint32_t i = 0; i < region_->account_slots(); ++i) {
    const format::LaneAccount& account = region_->account(lane, i);
    const uint64_t tenant = i == shm::kOthersAccount ? 0 : account.tenant.load_relaxed();  // its writer is dead
    has_any = has_any || tenant != 0 || account.charged.load_relaxed() != account.returned.load_relaxed();  // as above
    if (account.in_flight.load_relaxed() == 0) continue;                                                    // as above
    if (i == shm::kOthersAccount)
      suspect_all();
    else
      suspect(add(tenant));
  }
  count_.upsets += has_any;
  shm::fold_accounts(*region_, lane, [&](uint64_t tenant, uint64_t bytes) { add_to_balance(add(tenant), bytes); });
}

void PoolTenants::adopt() {
  const auto fold_unused = [&] {
    for (uint32_t lane = lanes_.first + 1; lane < lanes_.end; ++lane)
      if (!in_use_->has(lane)) fold(lane);
    suspect_all();
  };
  if (!shows()) return fold_unused();
  has_missed_ = (region_->tenant_rules().flags.load_relaxed() & format::kRulesMissed) != 0;  // the marud before is gone
  for (uint32_t index = 1; index < table_.size(); ++index) {
    const format::TenantRecord& record = region_->tenant(index - 1);
    const uint64_t id = record.id.load_relaxed();  // the marud before is gone
    if (id == 0) continue;
    if (!table_.put(index, id)) {  // damaged: it is added again when it is met, and then counted
      has_missed_ = true;
      continue;
    }
    keeps_[index].balance = record.balance.load_relaxed();
    const uint64_t size = record.name_bytes.load_relaxed();
    if (size == 0 || size > limits::kTenantNameMax) continue;
    std::string name(limits::kTenantNameMax, '\0');
    for (size_t i = 0; i < limits::kTenantNameMax / 8; ++i) {
      const uint64_t word = record.name[i].load_relaxed();
      std::memcpy(name.data() + 8 * i, &word, 8);
    }
    name.resize(size);
    if (number_of(name) == id) table_.set_name(index, name);
  }
  fold_unused();
}

// -- the rules --------------------------------------------------------------------------------------------------------

// Writes the record in the order in which a client may believe it: first its numbers, then its owner.
void PoolTenants::show(uint32_t index) {
  if (!shows()) return;
  const TenantTable::Row& row = table_.row(index);
  format::TenantRecord& record = region_->tenant(index - 1);
  record.soft_bytes.store_relaxed(row.soft_bytes);  // for readers that only look, and so below
  record.hard_bytes.store_relaxed(row.hard_bytes);
  record.used_bytes.store_relaxed(row.used_bytes);
  record.balance.store_relaxed(keeps_[index].balance);
  std::string name = row.name;
  record.name_bytes.store_relaxed(name.size());
  name.resize(limits::kTenantNameMax, '\0');
  for (size_t i = 0; i < limits::kTenantNameMax / 8; ++i) {
    uint64_t word;
    std::memcpy(&word, name.data() + 8 * i, 8);
    record.name[i].store_relaxed(word);
  }
  // Before set_limits() it is unknown which tenants need credit, and the earlier marud's answer goes on.
  const bool unlisted_need_credit =
      (region_->tenant_rules().flags.load_relaxed() & format::kRulesUnlistedNeedCredit) != 0;  // marud's own word
  const bool needs_credit = has_rules_ ? table_.needs_credit(index) : unlisted_need_credit;
  if (has_rules_ || record.id.load_relaxed() != row.id)
    record.flags.exchange_seq_cst((needs_credit ? format::kTenantNeedsCredit : 0) |  // [pairs tenant.rules]
                                  (row.is_listed ? format::kTenantListed : 0));
  record.id.exchange_seq_cst(row.id);  // [pairs tenant.rules]
}

// Everything that lanes may have promised themselves under other rules ends: see docs/format.md.
void PoolTenants::tighten(uint32_t index) {
  shm::revoke_credit(*region_, *in_use_, table_.row(index).id, true);
  keeps_[index].unsettled = *in_use_;
  if (has_missed_) {
    keeps_[index].is_unsure = true;
    suspect(index);
  }
}

void PoolTenants::show_rules() {
  std::vector<uint32_t> tightened;
  for (uint32_t index = 1; index < table_.size(); ++index) {
    const TenantTable::Row& row = table_.row(index);
    if (row.id == 0) continue;
    Keep& keep = keeps_[index];
    const bool needs_credit = table_.needs_credit(index);
    const bool is_tighter = row.hard_bytes != 0 && (keep.hard_bytes == 0 || row.hard_bytes < keep.hard_bytes);
    if (needs_credit && (!keep.needed_credit || is_tighter)) tightened.push_back(index);
    keep.needed_credit = needs_credit;
    keep.hard_bytes = row.hard_bytes;
    show(index);
  }
  format::TenantRules& rules = region_->tenant_rules();
  rules.soft_bytes.store_relaxed(table_.defaults().soft_bytes.value_or(0));  // for readers that only look
  rules.hard_bytes.store_relaxed(table_.defaults().hard_bytes.value_or(0));
  show_flags();
  for (uint32_t index : tightened) tighten(index);
  if (table_.unlisted_need_credit()) revoke_without_place();
}

// Tenants without a place may hold credit from before the limit, or from an older version, which granted it despite limits.
void PoolTenants::revoke_without_place() {
  std::set<uint64_t> without;
  for_each_claimed([&](uint32_t, uint32_t i, const format::LaneAccount& account) {
    if (i == shm::kOthersAccount) return;
    const uint64_t tenant = account.tenant.load_acquire();  // [pairs account.tenant]
    if (tenant != 0 && table_.index_of(tenant) == 0) without.insert(tenant);
  });
  for (const uint64_t tenant : without) shm::revoke_credit(*region_, *in_use_, tenant, true);
}

void PoolTenants::show_flags() {
  if (!shows()) return;
  AtomicU64& flags = region_->tenant_rules().flags;
  uint64_t shown = has_missed_ ? format::kRulesMissed : 0;
  if (has_rules_) {
    bool is_limited = table_.unlisted_need_credit();
    for (uint32_t index = 1; index < table_.size(); ++index)
      is_limited = is_limited || (table_.row(index).id != 0 && table_.needs_credit(index));
    shown |= is_limited ? format::kRulesLimited : 0;
    shown |= table_.unlisted_need_credit() ? format::kRulesUnlistedNeedCredit : 0;
  } else {
    shown |= flags.load_relaxed() & (format::kRulesLimited | format::kRulesUnlistedNeedCredit);  // marud's own word
  }
  flags.exchange_seq_cst(shown);  // [pairs tenant.rules]
}

void PoolTenants::set_limits(const TenantSettings& at_run_time, SaveTenants save) {
  if (save) settings_.set_save(std::move(save));
  settings_.set_at_run_time(at_run_time);
  read_accounts();  // tenants that have stored by now get their records
  const TenantSettings both = settings_.both();
  table_.reset_limits(both.defaults, both.listed_only.value_or(false));
  without_place_.listed.clear();
  has_rules_ = false;  // no tenant is tightened alone
  // Tenants that have a place come first, so that no other tenant gets it.
  std::vector<std::pair<std::string_view, const TenantLimits*>> without;
  for (const auto& [name, limits] : both.tenants) {
    const uint32_t index = table_.index_of(number_of(name));
    index == 0 ? void(without.emplace_back(name, &limits)) : table_.set(index, name, limits);
  }
  bool has_hard = false;
  for (const auto& [name, limits] : without) {
    const uint64_t id = number_of(name);
    if (const uint32_t index = add(id); index != 0) {
      table_.set(index, name, *limits);
      continue;
    }
    without_place_.listed[id] = {std::string(name), *limits};
    has_hard = has_hard || limits->hard_bytes.value_or(0) != 0;
  }
  table_.set_limit_without_place(has_hard);
  table_.finish_limits();
  has_rules_ = true;
  show_rules();
}

uint64_t PoolTenants::number_of(std::string_view name) const {
  return shm::tenant_id(region_->secret(), std::as_bytes(std::span(name)));
}

void PoolTenants::begin_request() {
  if (!settings_.is_writing()) kept_place_ = 0;  // of a request that ended with an exception
  read_accounts();
}

bool PoolTenants::keep_place(uint64_t tenant) {
  begin_step();
  if (add(tenant) == 0) return false;
  kept_place_ = tenant;
  return true;
}

std::optional<Result<void>> PoolTenants::change(const TenantSettings& at_run_time, bool aside) {
  return apply(settings_.write(at_run_time, aside));
}

std::optional<Result<void>> PoolTenants::take_written() { return apply(settings_.take_written()); }

// A change that failed leaves nothing behind: another tenant may have the place again.
std::optional<Result<void>> PoolTenants::apply(const std::optional<LimitSettings::Written>& written) {
  if (!written) return std::nullopt;
  if (written->result) set_limits(written->at_run_time, {});
  kept_place_ = 0;
  return written->result;
}

// -- usage ------------------------------------------------------------------------------------------------------------

// The index of the tenant that this account names.
uint32_t PoolTenants::account_index(uint32_t lane, uint32_t account) {
  if (account == shm::kOthersAccount) return 0;
  const uint64_t tenant = region_->account(lane, account).tenant.load_acquire();  // [pairs account.tenant]
  uint32_t& known = account_indices_[size_t(lane) * region_->account_slots() + account];
  if (tenant != 0 && (known == 0 || table_.row(known).id != tenant)) known = add(tenant);
  return tenant == 0 ? 0 : known;
}

// f(lane, number, account) for each account that may hold anything, of the lanes in use.
template <typename F>
void PoolTenants::for_each_claimed(F&& f) {
  in_use_->for_each(region_->lanes(), [&](uint32_t lane) {
    if (lane == 0 || region_->lane_header(lane).accounts.load_relaxed() == 0)
      return;  // raised before the first is claimed
    for (uint32_t i = 0; i < region_->account_slots(); ++i) {
      const format::LaneAccount& account = region_->account(lane, i);
      if (i != shm::kOthersAccount && account.tenant.load_relaxed() == 0) continue;  // not claimed a moment ago
      f(lane, i, account);
    }
  });
}

// The same with the index of the tenant: f(index, account).
template <typename F>
void PoolTenants::for_each_account(F&& f) {
  for_each_claimed(
      [&](uint32_t lane, uint32_t i, const format::LaneAccount& account) { f(account_index(lane, i), account); });
}

void PoolTenants::read_accounts() {
  begin_step();
  sums_.assign(table_.size(), 0);
  for_each_account([&](uint32_t index, const format::LaneAccount& account) {
    const uint64_t returned = account.returned.load_seq_cst();  // first: returned bytes were charged before
    const uint64_t charged = account.charged.load_seq_cst();
    sums_[index] += charged - returned;
    if (index == 0 && (charged | returned) != 0) missed();
  });
  for (uint32_t index = 0; index < table_.size(); ++index) {
    if (index != 0 && table_.row(index).id == 0) continue;
    const uint64_t sum = keeps_[index].balance + sums_[index];
    const uint64_t bytes = int64_t(sum) < 0 ? 0 : sum;  // below 0 only after scribbling, or among the others
    if (bytes == table_.row(index).used_bytes) continue;
    table_.set_used(index, bytes);
    if (index != 0 && shows())
      region_->tenant(index - 1).used_bytes.store_relaxed(bytes);  // for readers that only look
  }
}

// -- counting ---------------------------------------------------------------------------------------------------------

std::vector<shm::TenantReading> PoolTenants::readings() {
  std::vector<shm::TenantReading> sums(table_.size());
  for_each_account(
      [&](uint32_t index, const format::LaneAccount& account) { shm::read_account(account, &sums[index]); });
  return sums;
}

void PoolTenants::begin_count() {
  count_.is_running = true;
  count_.has_missed = false;
  count_.next = 0;
  count_.upsets_before = count_.upsets;
  count_.bytes.assign(table_.size(), 0);
  count_.before = readings();
}

// Whether every suspect is exact now.
bool PoolTenants::finish_count() {
  count_.is_running = false;
  const std::vector<shm::TenantReading> after = readings();
  // Bytes without an account of their own may belong to any tenant.
  bool all_counted = count_.upsets == count_.upsets_before && count_.before[0].is_quiet && after[0] == count_.before[0];
  if (!all_counted) return false;
  for (uint32_t index = 0; index < table_.size(); ++index) {
    if (index != 0 && table_.row(index).id == 0) continue;
    if (!count_.before[index].is_quiet || !(after[index] == count_.before[index])) {
      all_counted = false;
      continue;
    }
    add_to_balance(index, count_.bytes[index] - count_.before[index].bytes() - keeps_[index].balance);
    suspects_ -= keeps_[index].is_suspect;
    keeps_[index].is_suspect = keeps_[index].is_unsure = false;
  }
  count_.others = after[0];
  if (all_counted && has_missed_ && after[0] == shm::TenantReading{} && count_.bytes[0] == 0) {
    has_missed_ = false;
    show_flags();
  }
  read_accounts();
  return suspects_ == 0;
}

bool PoolTenants::step_count(uint64_t pages, uint64_t now_ms) {
  begin_step();
  if (!count_.is_running) {
    if (now_ms >= count_.others_look_ms || count_.others_look_ms - now_ms > kOthersPauseMs) {
      count_.others_look_ms = now_ms + kOthersPauseMs;
      if (has_missed_ && suspects_ == 0 && !(readings()[0] == count_.others)) suspect_all();
    }
    if (suspects_ == 0 || (now_ms < count_.again_ms && count_.again_ms - now_ms <= kCountPauseMaxMs)) return false;
    begin_count();
  }
  const uint64_t to = std::min(region_->pages(), count_.next + pages);
  uint64_t last_tenant = 0;
  uint32_t last_index = 0;
  count_.is_at_page = true;
  for (; count_.next < to; ++count_.next) {
    uint64_t tenant = 0;
    const uint64_t bytes = shm::tenant_bytes(*region_, uint32_t(count_.next), &tenant);
    if (bytes == 0) continue;
    if (tenant != last_tenant && has_added_enough() && !count_.has_missed && table_.index_of(tenant) == 0) break;
    if (tenant != last_tenant) last_index = add(last_tenant = tenant);
    count_.bytes[last_index] += bytes;
  }
  count_.is_at_page = false;
  if (count_.next < region_->pages()) return true;
  if (!finish_count()) {
    count_.pause_ms = std::clamp(2 * count_.pause_ms, kCountPauseMs, kCountPauseMaxMs);
    count_.again_ms = now_ms + count_.pause_ms;
  }
  return false;
}

// -- credit -----------------------------------------------------------------------------------------------------------

uint64_t PoolTenants::available(uint32_t index) {
  const TenantTable::Row& row = table_.row(index);
  Keep& keep = keeps_[index];
  const uint64_t taken = keep.balance + shm::committed_bytes(*region_, *in_use_, row.id, &keep.unsettled);
  const uint64_t least = int64_t(taken) < 0 ? 0 : taken;  // below 0 only after scribbling
  return row.hard_bytes > least ? row.hard_bytes - least : 0;
}

// The pool counts the bytes of such tenants together, so it cannot hold each tenant to its limit.
int PoolTenants::refuse_without_place(uint64_t now_ms, std::string why, std::string* ret_why) {
  ++without_place_.refused;
  if (without_place_.said_ms == 0 || now_ms - without_place_.said_ms >= kRefusedSaidAgainMs) {
    without_place_.said_ms = now_ms;
    log_warning("pool \"{}\" refuses stores, {} until now: {}", pool_, without_place_.refused, why);
  }
  *ret_why = std::move(why);
  return EUSERS;
}

int PoolTenants::grant(uint32_t lane, uint32_t account, uint64_t tenant, uint64_t bytes, uint64_t now_ms,
                       std::string* ret_why) {
  if (account >= region_->account_slots() || bytes > uint64_t(region_->region_pages()) * region_->page_bytes() ||
      (account != shm::kOthersAccount &&
       region_->account(lane, account).tenant.load_acquire() != tenant)) {  // [pairs account.tenant]
    *ret_why = "there is no such account in this lane, or no block so large";
    return EINVAL;
  }
  begin_step();
  const uint32_t index = add(tenant);
  const TenantLimits* without_place = index == 0 ? limits_without_place(tenant) : nullptr;
  if (table_.is_listed_only() && !without_place && (index == 0 || !table_.row(index).is_listed)) {
    *ret_why = "this pool takes only tenants that its administrator has listed (marudctl quota set)";
    return EPERM;
  }
  const uint64_t default_hard = table_.defaults().hard_bytes.value_or(0);
  const uint64_t hard = index != 0      ? table_.row(index).hard_bytes
                        : without_place ? without_place->hard_bytes.value_or(default_hard)
                                        : default_hard;
  if (index == 0 && hard != 0)
    return refuse_without_place(now_ms,
                                "a hard limit holds for the tenant, and the pool has no place to count it: found " +
                                    std::to_string(table_.size() - 1) +
                                    " places (tenants_max), those for this tenant taken by others, expected a free "
                                    "one; delete the blocks of tenants that are not needed any more, or format the "
                                    "pool with a larger tenants_max",
                                ret_why);
  if (account == shm::kOthersAccount)
    return refuse_without_place(now_ms,
                                "stores of the tenant need credit, and the lane of its client has no account for it: "
                                "found " +
                                    std::to_string(region_->account_slots() - 1) +
                                    " accounts taken by other tenants, expected a free one; have the client attach "
                                    "anew, or format the pool with a larger tenants_max",
                                ret_why);
  if (hard == 0) {  // no limit applies (any more)
    shm::grant_credit(*region_, lane, account, std::max(bytes, kCreditChunkBytes));
    return 0;
  }
  Keep& keep = keeps_[index];
  // Perhaps only a client's death makes it seem that nothing is left.
  const auto count_now = [&] {
    if (region_->pages() > kCountAtOncePages || !keep.is_suspect) return;
    count_.is_running = false;
    count_.again_ms = 0;
    step_count(region_->pages(), 0);
  };
  if (keep.is_unsure) count_now();
  if (keep.is_unsure) {
    *ret_why = "the bytes of this tenant are being counted: try again in a moment";
    return EAGAIN;
  }
  uint64_t left = available(index);
  if (left < bytes && keep.is_suspect) {
    count_now();
    left = available(index);
  }
  if (left < bytes) {
    shm::revoke_credit(*region_, *in_use_, tenant, false);
    left = available(index);
  }
  if (left < bytes) {
    ++keep.refused;
    *ret_why = "the tenant is at its hard limit of " + std::to_string(hard) + " bytes: " + std::to_string(left) +
               " are left, " + std::to_string(bytes) + " were asked for";
    return EDQUOT;
  }
  const uint64_t chunk = std::min(left / 8, kCreditChunkBytes) / region_->page_bytes() * region_->page_bytes();
  shm::grant_credit(*region_, lane, account, std::max(bytes, chunk));
  return 0;
}

}  // namespace maru::daemon
