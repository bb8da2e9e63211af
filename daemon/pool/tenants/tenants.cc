#include "daemon/pool/tenants/tenants.h"

#include "daemon/policy/eviction_order.h"
#include "maru/format/limits.h"

#include <algorithm>

namespace maru::daemon {

TenantSettings merged(const TenantSettings& configured, const TenantSettings& at_run_time) {
  TenantSettings both = configured;
  for (const std::string& name : at_run_time.removed) both.tenants.erase(name);
  for (const auto& [name, limits] : at_run_time.tenants) both.tenants[name] = limits;
  both.removed.clear();
  const auto take = [](auto& value, const auto& newer) {
    if (newer) value = newer;
  };
  take(both.defaults.soft_bytes, at_run_time.defaults.soft_bytes);
  take(both.defaults.hard_bytes, at_run_time.defaults.hard_bytes);
  take(both.listed_only, at_run_time.listed_only);
  return both;
}

// -- places -----------------------------------------------------------------------------------------------------------

uint32_t TenantTable::tries_max() const { return std::min(uint32_t(rows_.size() - 1), limits::kTenantProbes); }

uint32_t TenantTable::place_of(uint64_t tenant, uint32_t tries) const {
  const uint64_t places = rows_.size() - 1;
  return uint32_t((tenant % places + tries) % places);
}

uint32_t TenantTable::index_of(uint64_t tenant) const {
  const auto found = indices_.find(tenant);
  return found == indices_.end() ? 0 : found->second;
}

void TenantTable::take(uint32_t index, uint64_t tenant) {
  if (rows_[index].id != 0) indices_.erase(rows_[index].id);
  rows_[index] = {};
  rows_[index].id = tenant;
  rows_[index].soft_bytes = defaults_.soft_bytes.value_or(0);
  rows_[index].hard_bytes = defaults_.hard_bytes.value_or(0);
  indices_[tenant] = index;
}

bool TenantTable::put(uint32_t index, uint64_t tenant) {
  if (tenant == 0 || rows_[index].id != 0 || index_of(tenant) != 0) return false;
  for (uint32_t tries = 0; tries < tries_max(); ++tries) {
    if (1 + place_of(tenant, tries) != index) continue;
    take(index, tenant);
    return true;
  }
  return false;
}

// -- limits -----------------------------------------------------------------------------------------------------------

void TenantTable::reset_limits(const TenantLimits& defaults, bool listed_only) {
  defaults_ = defaults;
  listed_only_ = listed_only;
  has_limit_without_place_ = false;
  for (Row& row : rows_) {
    row.own = {};
    row.is_listed = false;
  }
}

void TenantTable::set(uint32_t index, std::string_view name, const TenantLimits& limits) {
  rows_[index].name = name;
  rows_[index].own = limits;
  rows_[index].is_listed = true;
}

void TenantTable::finish_limits() {
  const uint64_t soft = defaults_.soft_bytes.value_or(0), hard = defaults_.hard_bytes.value_or(0);
  matters_ = soft != 0 || hard != 0;
  over_ = 0;
  for (uint32_t index = 1; index < rows_.size(); ++index) {
    Row& row = rows_[index];
    if (row.id == 0) continue;
    row.soft_bytes = row.own.soft_bytes.value_or(soft);
    row.hard_bytes = row.own.hard_bytes.value_or(hard);
    matters_ = matters_ || row.limit_bytes() != 0;
    over_ += row.is_over();
  }
}

bool TenantTable::needs_credit(uint32_t index) const {
  if (index == 0) return unlisted_need_credit();
  return rows_[index].hard_bytes != 0 || (listed_only_ && !rows_[index].is_listed);
}

// -- usage and eviction -----------------------------------------------------------------------------------------------

void TenantTable::set_used(uint32_t index, uint64_t bytes) {
  Row& row = rows_[index];
  over_ -= index != 0 && row.is_over();
  row.used_bytes = bytes;
  over_ += index != 0 && row.is_over();
}

void TenantTable::freed(uint32_t index, uint64_t bytes) {
  set_used(index, rows_[index].used_bytes - std::min(bytes, rows_[index].used_bytes));
}

uint32_t TenantTable::eviction_class(uint32_t index, uint32_t asker) const {
  if (!matters_) return 0;
  const Row& row = rows_[index];
  if (index == 0 || row.limit_bytes() == 0) return 1;
  if (row.is_over()) return 0;
  if (index == asker) return 2;
  return all_may_yield_ && over_ == 0 ? 3 : kTenantProtected;
}

}  // namespace maru::daemon
