// The tenants of a pool as its control region has them: their bytes by the accounts of the lanes and by the pages, the
// rules that clients read, and credit. libmaru/shm/blocks/tenant_account.h says how these hold together; docs/format.md
// has the steps.
//
// Thread safety: one thread. A word of a client is a number that is too high or too low for its tenants, and no more.
#pragma once

#include "daemon/pool/tenants/limit_settings.h"
#include "daemon/pool/tenants/tenants.h"
#include "libmaru/base/result.h"
#include "libmaru/shm/blocks/tenant_account.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maru::daemon {

class PoolTenants final : public shm::TenantReturns {
 public:
  // `in_use` lives as long: the lanes whose accounts count.
  // In a pool of several hosts each marud counts for itself, shows nothing and sets no limits; `lanes` are its own.
  struct OwnLanes {
    uint32_t first = 0, end = 0;
  };
  void begin(const std::string& pool, const shm::ControlRegion& region, const shm::LaneSet& in_use, OwnLanes lanes,
             const TenantSettings& configured);
  // Takes over the records and balances of the earlier marud, and the accounts of unused lanes.
  void adopt();
  // Limits apply from here on; limits of run time go before the configuration.
  void set_limits(const TenantSettings& at_run_time, SaveTenants save);

  // A lane was reclaimed: its accounts become empty.
  void fold(uint32_t lane);
  void returned(uint32_t page, uint64_t tenant, uint64_t bytes) override;

  // Reads all accounts, so that the table has the present usage of tenants: before a request that may evict, and before
  // a listing. Costs a line of memory for every two accounts of lanes that stored for tenants.
  void read_accounts();
  TenantTable& table() { return table_; }
  const TenantTable& table() const { return table_; }

  // 0: the credit of this account reaches for so many bytes more. EDQUOT, EPERM, EAGAIN or EINVAL, with the reason. EUSERS: a
  // hard limit holds for the tenant, and the table or the lane has no place to count its bytes.
  int grant(uint32_t lane, uint32_t account, uint64_t tenant, uint64_t bytes, uint64_t now_ms, std::string* ret_why);

  // Counts the next pages, if an account is not exact any more. Returns true when there is more to do right away.
  bool step_count(uint64_t pages, uint64_t now_ms);
  // Whether usages may be too high until pages were counted.
  bool is_counting() const { return count_.is_running || suspects_ != 0; }

  // Stores of the tenant of this index that were refused, since this marud began.
  uint64_t refusals(uint32_t index) const { return keeps_[index].refused; }
  // The same of tenants that found no place.
  uint64_t refusals_without_place() const { return without_place_.refused; }

  // -- limits at run time (inspect/limit_commands.h) ------------------------------------------------------------------
  const LimitSettings& settings() const { return settings_; }
  // Before the commands of an administrator: usages are as of now.
  void begin_request();
  // The number by which the pool knows a tenant of this name.
  uint64_t number_of(std::string_view name) const;
  // The tenant gets a place in the table, and keeps it until the next change ends. False: there is none for it.
  bool keep_place(uint64_t tenant);
  // Writes new limits down, and then they apply. With `aside` a thread writes, and nothing is returned: take_written()
  // has the result. Until then there is no other change with `aside`.
  std::optional<Result<void>> change(const TenantSettings& at_run_time, bool aside);
  std::optional<Result<void>> take_written();

  // -- for listings -----------------------------------------------------------------------------------------------------
  bool is_suspect(uint32_t index) const { return keeps_[index].is_suspect; }  // its usage may be too high
  // Some tenants have no place in the table or in a lane: their bytes are counted together.
  bool counts_some_together() const { return has_missed_; }
  size_t names_without_place() const { return without_place_.listed.size(); }

 private:
  bool shows() const { return !region_->is_shared(); }

  OwnLanes lanes_;
  struct Keep {
    uint64_t balance = 0;        // wraps, as in the record
    bool is_suspect = false;     // usage may be too high
    bool is_unsure = false;      // usage may be too low: no credit before it was counted
    bool needed_credit = false;  // as was shown
    uint64_t hard_bytes = 0;     // as was shown
    shm::LaneSet unsettled;      // lanes with stores in flight that may not have seen the rules
    uint64_t refused = 0;        // stores, since this marud began
  };

  void begin_step();
  uint32_t add(uint64_t tenant);
  bool has_added_enough() const;
  void find_busy();
  bool is_idle(uint32_t index);
  void add_to_balance(uint32_t index, uint64_t bytes);
  void suspect(uint32_t index);
  void suspect_all();
  void show(uint32_t index);
  void show_rules();
  void show_flags();
  void missed();
  const TenantLimits* limits_without_place(uint64_t tenant) const;
  void place_listed(uint32_t index);
  void revoke_without_place();
  int refuse_without_place(uint64_t now_ms, std::string why, std::string* ret_why);
  void tighten(uint32_t index);
  uint64_t available(uint32_t index);
  uint32_t account_index(uint32_t lane, uint32_t account);
  template <typename F>
  void for_each_claimed(F&& f);
  template <typename F>
  void for_each_account(F&& f);
  std::vector<shm::TenantReading> readings();
  void begin_count();
  bool finish_count();

  std::optional<Result<void>> apply(const std::optional<LimitSettings::Written>& written);

  std::string pool_;  // for the log
  const shm::ControlRegion* region_ = nullptr;
  const shm::LaneSet* in_use_ = nullptr;
  TenantTable table_;
  std::vector<Keep> keeps_;                // by index
  std::vector<uint32_t> account_indices_;  // by lane and account: the index found there last
  LimitSettings settings_;
  uint64_t kept_place_ = 0;  // the tenant whose place no other tenant gets while its limits are written down; 0: none
  std::vector<uint64_t> sums_;  // by index, scratch
  bool has_rules_ = false;
  bool has_missed_ = false;  // bytes of some tenants were counted for the others since the last full count
  uint32_t suspects_ = 0;

  // Tenants that found no place, which the pool counts together.
  struct Listed {
    std::string name;
    TenantLimits limits;
  };
  struct WithoutPlace {
    std::map<uint64_t, Listed> listed;  // by number: those with limits of their own
    uint64_t refused = 0;               // stores, since this marud began
    uint64_t said_ms = 0;               // when the log said so last
  };
  WithoutPlace without_place_;

  // A step: a turn, or a request.
  struct Step {
    bool has_busy = false;
    std::vector<bool> busy;       // by index, if has_busy: tenants whose places no other tenant may have
    uint32_t tightened_left = 0;  // tenants that the step may add where each costs a look at all lanes
  };
  Step step_;

  // A pass over the pages that counts the bytes of each tenant, and the time of the next pass.
  struct Count {
    bool is_running = false;
    bool is_at_page = false;                 // a tenant that is added now was not met by the pass before
    bool has_missed = false;                 // this pass has counted a tenant without a place for the others
    uint64_t next = 0;                       // page
    uint64_t upsets = 0, upsets_before = 0;  // events that make a pass useless
    std::vector<uint64_t> bytes;             // by index
    std::vector<shm::TenantReading> before;  // by index: the accounts when it began
    uint64_t again_ms = 0, pause_ms = 0;
    shm::TenantReading others;  // account 0 of all lanes, when all were counted last
    uint64_t others_look_ms = 0;
  };
  Count count_;
};

}  // namespace maru::daemon
