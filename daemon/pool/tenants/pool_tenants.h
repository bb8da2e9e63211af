// The tenants of a pool as its control region has them: what the accounts of the lanes and the pages say, the rules that
// clients read, and credit. libmaru/shm/blocks/tenant_account.h says how these hold together; docs/format.md has the steps.
//
// Thread safety: one thread. What a client wrote is a number that is too high or too low for its tenants, and no more.
#pragma once

#include "daemon/base/aside.h"
#include "daemon/pool/tenants/tenants.h"
#include "libmaru/base/result.h"
#include "libmaru/shm/blocks/tenant_account.h"

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

// Writes down what was set at run time, for the next marud.
using SaveTenants = std::function<Result<void>(const TenantSettings& at_run_time)>;

class PoolTenants final : public shm::TenantReturns {
 public:
  // `in_use` lives as long: the lanes whose accounts count.
  // In a pool of several hosts each marud counts for itself, shows nothing and limits nobody; `lanes` are its own.
  struct OwnLanes {
    uint32_t first = 0, end = 0;
  };
  void begin(const std::string& pool, const shm::ControlRegion& region, const shm::LaneSet& in_use, OwnLanes lanes,
             const TenantSettings& configured);
  // Takes over the records and balances of the marud before, and the accounts of lanes that are nobody's.
  void adopt();
  // Limits apply from here on; what was set at run time goes before what is configured.
  void set_limits(const TenantSettings& at_run_time, SaveTenants save);

  // A lane was reclaimed: its accounts become empty.
  void fold(uint32_t lane);
  void returned(uint32_t page, uint64_t tenant, uint64_t bytes) override;

  // Reads all accounts, so that the table knows what tenants use now: before a request that may evict, and before a listing.
  // Costs a line of memory for every two accounts of lanes that stored for tenants.
  void read_accounts();
  TenantTable& table() { return table_; }
  const TenantTable& table() const { return table_; }

  // 0: the credit of this account reaches for so many bytes more. EDQUOT, EPERM, EAGAIN or EINVAL, with the reason. EUSERS: a
  // hard limit holds for the tenant, and the table or the lane has no place to count its bytes.
  int grant(uint32_t lane, uint32_t account, uint64_t tenant, uint64_t bytes, uint64_t now_ms, std::string* ret_why);

  // Counts the next pages, if an account is not exact any more. Returns true when there is more to do right away.
  bool step_count(uint64_t pages, uint64_t now_ms);
  // Whether usages may be too high until pages were counted.
  bool is_counting() const { return counting_ || suspects_ != 0; }

  // Stores of the tenant of this index that were refused, since this marud began.
  uint64_t refusals(uint32_t index) const { return keeps_[index].refused; }
  // The same of tenants that found no place.
  uint64_t refusals_without_place() const { return refused_without_place_; }

  // The tenant that "tenant" of a request about blocks means; 0, blocks of no tenant, where it is absent. A name; or "id:"
  // and the number that marud shows; or that number alone, unless a tenant of the table is called so. Nothing: it is none of
  // these. tenants/quota.cc, and so below.
  std::optional<uint64_t> tenant_in(const nlohmann::json& request) const;
  // Puts it into a row about a block: "tenant", its number, and "tenant_name" where marud knows it.
  void put_tenant(uint64_t id, nlohmann::json& row) const;

  // "quota.set" and the others. What is set is written down by a thread of its own with `aside`: then nothing is returned, and
  // the reply comes from take_written() when that is done; until then there is not another one.
  nlohmann::json admin(const std::string& command, const nlohmann::json& request, bool aside = false);
  bool is_writing() const { return writing_.saved.is_begun(); }
  bool has_writer() const { return writing_.saved.is_lasting(); }
  std::optional<nlohmann::json> take_written();
  // `no_tenant_bytes`: what blocks of no tenant use, of which no account knows.
  nlohmann::json status(uint64_t no_tenant_bytes) const;

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

  // tenants/quota.cc
  using Answer = std::function<nlohmann::json()>;
  nlohmann::json change(const TenantSettings& at_run_time, Answer answer);
  nlohmann::json changed(const Result<void>& saved, const TenantSettings& at_run_time, const Answer& answer);
  nlohmann::json row_json(uint32_t index) const;
  nlohmann::json default_json() const;
  nlohmann::json mode_json() const;
  nlohmann::json set(const nlohmann::json& request);
  nlohmann::json remove(const nlohmann::json& request);
  nlohmann::json set_default(const nlohmann::json& request);
  nlohmann::json set_mode(const nlohmann::json& request);
  nlohmann::json list(const nlohmann::json& request);
  uint32_t named(const nlohmann::json& request, std::string* ret_name, nlohmann::json* ret_refusal) const;

  std::string pool_;  // for the log
  const shm::ControlRegion* region_ = nullptr;
  const shm::LaneSet* in_use_ = nullptr;
  TenantTable table_;
  std::vector<Keep> keeps_;                // by index
  std::vector<uint32_t> account_indices_;  // by lane and account: the index found there last
  TenantSettings configured_, at_run_time_;
  SaveTenants save_;
  // What is being written down, and what is answered then.
  struct Writing {
    TenantSettings settings;
    Answer answer;
    Aside<Result<void>> saved;
  };
  Writing writing_;
  uint64_t placed_ = 0;         // the tenant whose limits are being written down: nobody else gets its place; 0: none
  bool writes_aside_ = false;   // what the request at hand changes
  std::vector<uint64_t> sums_;  // by index, scratch
  bool has_rules_ = false;
  bool has_missed_ = false;        // bytes of some tenants were counted for the others, since all were counted last
  bool is_counting_page_ = false;  // a tenant that is added now was not met by the pass before
  // Tenants with limits of their own that found no place, by their numbers.
  struct Listed {
    std::string name;
    TenantLimits limits;
  };
  std::map<uint64_t, Listed> listed_without_place_;
  uint64_t refused_without_place_ = 0;  // stores, since this marud began
  uint64_t refused_said_ms_ = 0;        // when the log said so last

  // Of a step: a turn, or a request.
  bool has_busy_ = false;
  std::vector<bool> busy_;       // by index: whose places nobody may have; if has_busy_
  uint32_t tightened_left_ = 0;  // tenants that it may add where each costs a look at all lanes

  uint32_t suspects_ = 0;
  bool counting_ = false;
  bool has_pass_missed_ = false;             // this pass has counted a tenant that found no place for the others
  uint64_t count_next_ = 0;                  // page
  uint64_t upsets_ = 0, upsets_before_ = 0;  // events that make a pass useless
  std::vector<uint64_t> counted_;            // by index
  std::vector<shm::TenantReading> before_;
  uint64_t count_again_ms_ = 0, count_pause_ms_ = 0;
  shm::TenantReading others_counted_;  // account 0 of all lanes, when all were counted last
  uint64_t look_at_others_ms_ = 0;
};

}  // namespace maru::daemon
