// The tenants of a pool: their names, limits and usage, and the consequences for the order of eviction. Numbers and
// rules alone: pool_tenants.h reads the bytes.
//
// A tenant has an index: its place in the pool's tenants section, + 1. Index 0 stands for blocks of no tenant and for tenants
// that found no place, "(others)". The order of eviction knows no limit of theirs, and stores of such tenants with a hard limit
// are refused (pool_tenants.h).
//
// Thread safety: one thread.
#pragma once

#include "maru/policy.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace maru::daemon {

struct TenantLimits {
  std::optional<uint64_t> soft_bytes;  // nothing: the pool's default; 0: no limit
  std::optional<uint64_t> hard_bytes;
  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

// The limits of the configuration, or the limits of run time, which go before it.
struct TenantSettings {
  std::map<std::string, TenantLimits, std::less<>> tenants;  // by name: 1 to 64 bytes of any value
  std::set<std::string, std::less<>> removed;                // at run time, though the configuration has them
  TenantLimits defaults;                                     // nothing: as configured, at last no limit
  std::optional<bool> listed_only;                           // tenants that are not in `tenants` are refused
  friend bool operator==(const TenantSettings&, const TenantSettings&) = default;
};

// Both together.
TenantSettings merged(const TenantSettings& configured, const TenantSettings& at_run_time);

class TenantTable {
 public:
  struct Row {
    uint64_t id = 0;   // 0: unused
    std::string name;  // empty: not known
    TenantLimits own;
    bool is_listed = false;   // an administrator named it
    uint64_t soft_bytes = 0;  // that apply; 0: none
    uint64_t hard_bytes = 0;
    uint64_t used_bytes = 0;
    uint64_t limit_bytes() const { return soft_bytes != 0 ? soft_bytes : hard_bytes; }
    bool is_over() const { return limit_bytes() != 0 && used_bytes > limit_bytes(); }
  };

  // The table of a pool with so many places in its tenants section.
  explicit TenantTable(uint32_t places = 0) : rows_(size_t(places) + 1) {}

  size_t size() const { return rows_.size(); }
  const Row& row(uint32_t index) const { return rows_[index]; }
  uint32_t index_of(uint64_t tenant) const;
  // The index of a tenant, which gets a place if it has none; 0 if there is none for it. It may take the place of a
  // tenant that no administrator has named, if `is_idle(index)` says that no knowledge of that tenant's bytes would be
  // lost.
  template <typename F>
  uint32_t find_or_add(uint64_t tenant, F&& is_idle);
  // Puts a tenant at a place where a marud before had it. False: that place is not one where it may lie, or it is there twice.
  bool put(uint32_t index, uint64_t tenant);

  // -- limits ---------------------------------------------------------------------------------------------------------
  // Forgets all names and limits, then takes the defaults; set() the others again. Limits apply from finish_limits() on.
  void reset_limits(const TenantLimits& defaults, bool listed_only);
  void set(uint32_t index, std::string_view name, const TenantLimits& limits);
  void set_name(uint32_t index, std::string_view name) { rows_[index].name = name; }
  void finish_limits();
  const TenantLimits& defaults() const { return defaults_; }
  bool is_listed_only() const { return listed_only_; }
  // Whether a store for it needs credit: it has a hard limit, or is to be refused.
  bool needs_credit(uint32_t index) const;
  bool unlisted_need_credit() const {
    return listed_only_ || has_limit_without_place_ || defaults_.hard_bytes.value_or(0) != 0;
  }
  // A tenant without a place has a hard limit of its own. So every tenant without a place has to ask.
  void set_limit_without_place(bool has) { has_limit_without_place_ = has; }

  // -- usage ----------------------------------------------------------------------------------------------------------
  void set_used(uint32_t index, uint64_t bytes);
  // A block went.
  void freed(uint32_t index, uint64_t bytes);

  // -- eviction -------------------------------------------------------------------------------------------------------
  // False while no limit exists: then every block is of class 0.
  bool matters() const { return matters_; }
  // Which blocks go first: 0 of tenants over their limit; 1 of no tenant, or of a tenant without a limit; 2 of the asker,
  // within its limit; 3 of other tenants within their limits. Blocks of 3 go only while no tenant is over its limit and
  // all_may_yield() was set. Else kTenantProtected. A tenant's limit is its soft limit, or the hard limit if it has no other.
  // `asker`: an index.
  uint32_t eviction_class(uint32_t index, uint32_t asker) const;
  // For a search that has found nothing of classes 0 to 2: tenants within their limits yield to each other from now on,
  // or not.
  void all_may_yield(bool may) { all_may_yield_ = may; }
  bool is_any_over() const { return over_ != 0; }
  PolicyTenant usage(uint32_t index) const { return {rows_[index].used_bytes, rows_[index].soft_bytes}; }

 private:
  uint32_t place_of(uint64_t tenant, uint32_t tries) const;
  uint32_t tries_max() const;
  void take(uint32_t index, uint64_t tenant);

  std::vector<Row> rows_;
  std::unordered_map<uint64_t, uint32_t> indices_;
  TenantLimits defaults_;
  bool listed_only_ = false;
  bool has_limit_without_place_ = false;
  bool matters_ = false;
  bool all_may_yield_ = false;
  uint32_t over_ = 0;  // tenants over their limit
};

template <typename F>
uint32_t TenantTable::find_or_add(uint64_t tenant, F&& is_idle) {
  if (const uint32_t index = index_of(tenant); index != 0 || tenant == 0) return index;
  // Clients stop looking at a place that is empty, so places are filled from the first on and never emptied.
  for (uint32_t tries = 0; tries < tries_max(); ++tries) {
    const uint32_t index = 1 + place_of(tenant, tries);
    const Row& row = rows_[index];
    if (row.id != 0 && (row.is_listed || row.used_bytes != 0 || !is_idle(index))) continue;
    take(index, tenant);
    return index;
  }
  return 0;
}

}  // namespace maru::daemon
