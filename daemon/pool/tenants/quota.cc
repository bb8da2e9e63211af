// What administrators ask about tenants and set: "quota.set" and the others. Names are text, or 0x and hexadecimal digits, as
// keys are. What is set at run time is written down before it is answered, and goes before the configuration after a restart,
// too.
#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/base/size_text.h"
#include "daemon/pool/tenants/pool_tenants.h"
#include "libmaru/shm/blocks/hash.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

namespace maru::daemon {
namespace {

using nlohmann::json;

std::string name_in(const json& request) {
  const std::vector<std::byte> bytes = key_bytes(text_in(request, "tenant"));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

json name_json(const std::string& name) { return name.empty() ? json(nullptr) : json(tenant_name_text(name)); }

json limit_json(const std::optional<uint64_t>& limit) { return limit ? json(*limit) : json(nullptr); }

// "soft" and "hard": bytes, 0 for no limit, null for the pool's default; what is absent stays. False: something else.
bool read_limits(const json& request, TenantLimits& limits) {
  const auto read = [&](const char* key, std::optional<uint64_t>& value) {
    const auto found = request.find(key);
    if (found == request.end()) return true;
    if (found->is_null()) {
      value.reset();
      return true;
    }
    if (!found->is_number_integer() || (!found->is_number_unsigned() && found->get<int64_t>() < 0)) return false;
    value = found->get<uint64_t>();
    return true;
  };
  return read("soft", limits.soft_bytes) && read("hard", limits.hard_bytes);
}

// A soft limit above the hard one that applies would never be reached.
std::string soft_above_hard(const TenantLimits& limits, const TenantLimits& defaults) {
  const uint64_t soft = limits.soft_bytes.value_or(0);
  const uint64_t hard = limits.hard_bytes.value_or(defaults.hard_bytes.value_or(0));
  if (hard == 0 || soft <= hard) return "";
  return "found the soft limit " + size_text(soft) + ", expected at most the hard one, which is " + size_text(hard);
}

constexpr const char* kLimitText =
    "\"soft\" and \"hard\" are numbers of bytes: 0 for no limit, null for the pool's default";

}  // namespace

json PoolTenants::changed(const Result<void>& saved, const TenantSettings& at_run_time, const Answer& answer) {
  // Of a change that failed nothing stays: the place is for whoever needs it, as before.
  if (saved) set_limits(at_run_time, {});
  placed_ = 0;
  if (saved) return answer();
  // ENOSPC is what a tenant gets for whom the pool has no place; here a disk is full.
  return refusal(saved.error().code == ENOSPC ? EIO : saved.error().code, saved.error().text());
}

json PoolTenants::change(const TenantSettings& at_run_time, Answer answer) {
  if (!writes_aside_ || !save_) return changed(save_ ? save_(at_run_time) : Result<void>(), at_run_time, answer);
  writing_.settings = at_run_time;
  writing_.answer = std::move(answer);
  writing_.saved.begin([save = save_, at_run_time] { return save(at_run_time); },
                       failure(ENOMEM, "write down the limits of tenants"));
  return {};
}

std::optional<json> PoolTenants::take_written() {
  const auto saved = writing_.saved.take();
  if (!saved) return std::nullopt;
  return changed(*saved, writing_.settings, std::exchange(writing_.answer, {}));
}

// The tenant that "tenant", a name, or "id" means; 0 if the table does not have it.
uint32_t PoolTenants::named(const json& request, std::string* ret_name, json* ret_refusal) const {
  *ret_name = name_in(request);
  const auto given = request.find("id");
  uint64_t id = given == request.end() ? 0 : id_of(*given).value_or(0);
  if (ret_name->empty() == (id == 0) || ret_name->size() > limits::kTenantNameMax) {
    *ret_refusal =
        refusal(EINVAL,
                "\"tenant\" is a name of 1 to 64 bytes, as text or as 0x and hexadecimal digits; or \"id\" is the "
                "tenant's number");
    return 0;
  }
  if (id == 0) id = shm::tenant_id(region_->secret(), std::as_bytes(std::span(*ret_name)));
  const uint32_t index = table_.index_of(id);
  if (index != 0 && ret_name->empty()) *ret_name = table_.row(index).name;
  return index;
}

std::optional<uint64_t> PoolTenants::tenant_in(const json& request) const {
  const auto found = request.find("tenant");
  if (found == request.end() || found->is_null()) return 0;
  if (!found->is_string()) return id_of(*found);
  const auto& text = found->get_ref<const std::string&>();
  if (text.starts_with("id:")) return id_of(text.substr(3));
  const std::string name = name_in(request);
  if (name.empty() || name.size() > limits::kTenantNameMax) return std::nullopt;
  const uint64_t named = shm::tenant_id(region_->secret(), std::as_bytes(std::span(name)));
  if (table_.index_of(named) != 0) return named;
  return id_of(*found).value_or(named);
}

void PoolTenants::put_tenant(uint64_t id, json& row) const {
  if (id == 0) return;
  row["tenant"] = std::to_string(id);
  const uint32_t index = table_.index_of(id);
  if (index != 0 && !table_.row(index).name.empty()) row["tenant_name"] = name_json(table_.row(index).name);
}

json PoolTenants::row_json(uint32_t index) const {
  const TenantTable::Row& row = table_.row(index);
  json out = {{"tenant", name_json(row.name)}, {"id", std::to_string(row.id)},
              {"used_bytes", row.used_bytes},  {"soft_bytes", row.soft_bytes},  // that apply: 0 is none
              {"hard_bytes", row.hard_bytes},  {"listed", row.is_listed},
              {"over", row.is_over()},         {"refusals", keeps_[index].refused}};  // since this marud began
  if (keeps_[index].is_suspect) out["counting"] = true;  // used_bytes may be too high for a moment
  if (!row.is_listed) return out;
  out["own_soft_bytes"] = limit_json(row.own.soft_bytes);
  out["own_hard_bytes"] = limit_json(row.own.hard_bytes);
  const bool at_run_time = at_run_time_.tenants.contains(row.name);
  out["set_by"] = at_run_time ? "run time" : "configuration";
  if (const auto configured = configured_.tenants.find(row.name);
      at_run_time && configured != configured_.tenants.end())
    out["configured"] = {{"soft_bytes", limit_json(configured->second.soft_bytes)},
                         {"hard_bytes", limit_json(configured->second.hard_bytes)}};
  return out;
}

json PoolTenants::set(const json& request) {
  std::string name;
  json refused;
  named(request, &name, &refused);
  if (!refused.is_null()) return refused;
  if (name.empty())
    return refusal(EINVAL, "nobody has told marud the name of this tenant, by which its limits are set");
  TenantSettings settings = at_run_time_;
  const TenantSettings both = merged(configured_, at_run_time_);
  const auto now = both.tenants.find(name);
  TenantLimits limits = now == both.tenants.end() ? TenantLimits{} : now->second;
  if (!read_limits(request, limits)) return refusal(EINVAL, kLimitText);
  if (const std::string wrong = soft_above_hard(limits, both.defaults); !wrong.empty()) return refusal(EINVAL, wrong);
  const uint64_t id = shm::tenant_id(region_->secret(), std::as_bytes(std::span(name)));
  begin_step();
  if (add(id) == 0)
    return refusal(ENOSPC, "the pool has no place for another tenant: it was formatted for " +
                               std::to_string(table_.size() - 1) +
                               " (tenants_max), and those that could have this one's place are in use");
  settings.tenants[name] = limits;
  settings.removed.erase(name);
  placed_ = id;
  return change(settings, [this, id] { return row_json(table_.index_of(id)); });
}

json PoolTenants::remove(const json& request) {
  std::string name;
  json refused;
  named(request, &name, &refused);
  if (!refused.is_null()) return refused;
  if (!merged(configured_, at_run_time_).tenants.contains(name))
    return refusal(ENOENT, "this tenant has no limits of its own, expected one that quota list shows as listed");
  TenantSettings settings = at_run_time_;
  settings.tenants.erase(name);
  const bool is_configured = configured_.tenants.contains(name);
  if (is_configured) settings.removed.insert(name);
  json reply = {{"tenant", name_json(name)}, {"removed", true}};
  if (is_configured)
    reply["note"] =
        "the limits that the configuration has for it do not apply any more, also after a restart; quota set gives it "
        "others";
  return change(settings, [reply = std::move(reply)] { return reply; });
}

json PoolTenants::default_json() const {
  json reply = {{"soft_bytes", table_.defaults().soft_bytes.value_or(0)},
                {"hard_bytes", table_.defaults().hard_bytes.value_or(0)},
                {"set_by", at_run_time_.defaults == TenantLimits{} ? "configuration" : "run time"}};
  if (at_run_time_.defaults.soft_bytes && configured_.defaults.soft_bytes)
    reply["configured_soft_bytes"] = *configured_.defaults.soft_bytes;
  if (at_run_time_.defaults.hard_bytes && configured_.defaults.hard_bytes)
    reply["configured_hard_bytes"] = *configured_.defaults.hard_bytes;
  return reply;
}

json PoolTenants::set_default(const json& request) {
  TenantSettings settings = at_run_time_;
  if (!read_limits(request, settings.defaults)) return refusal(EINVAL, kLimitText);
  TenantLimits applied = settings.defaults;
  if (!applied.soft_bytes) applied.soft_bytes = configured_.defaults.soft_bytes;
  if (const std::string wrong = soft_above_hard(applied, configured_.defaults); !wrong.empty())
    return refusal(EINVAL, wrong);
  if (settings == at_run_time_) return default_json();
  return change(settings, [this] { return default_json(); });
}

json PoolTenants::mode_json() const {
  json reply = {{"listed", table_.is_listed_only()},
                {"set_by", at_run_time_.listed_only ? "run time" : "configuration"}};
  if (at_run_time_.listed_only && configured_.listed_only) reply["configured"] = *configured_.listed_only;
  return reply;
}

json PoolTenants::set_mode(const json& request) {
  const auto listed = request.find("listed");
  if (listed == request.end()) return mode_json();
  if (!listed->is_boolean()) return refusal(EINVAL, "\"listed\" is true or false");
  TenantSettings settings = at_run_time_;
  settings.listed_only = listed->get<bool>();
  return change(settings, [this] { return mode_json(); });
}

json PoolTenants::list(const json& request) {
  const uint64_t rows_max = rows_in(request);
  json rows = json::array();
  size_t bytes = 0;
  uint64_t index = number_in(request, "cursor", 0) + 1;
  for (; index < table_.size() && rows.size() < rows_max && bytes < kAdminReplyBytesMax; ++index) {
    if (table_.row(uint32_t(index)).id == 0) continue;
    json row = row_json(uint32_t(index));
    bytes += json_text(row).size();
    rows.push_back(std::move(row));
  }
  json reply = {{"tenants", std::move(rows)}};
  // Of tenants without a place. Whoever has counted the pages adds the blocks of no tenant, once for a list.
  if (!request.contains("cursor")) reply["others_used_bytes"] = table_.row(0).used_bytes;
  reply["default"] = {{"soft_bytes", table_.defaults().soft_bytes.value_or(0)},
                      {"hard_bytes", table_.defaults().hard_bytes.value_or(0)}};
  reply["listed_only"] = table_.is_listed_only();
  if (index < table_.size()) reply["next"] = index - 1;
  return reply;
}

json PoolTenants::admin(const std::string& command, const json& request, bool aside) {
  writes_aside_ = aside;
  if (!is_writing()) placed_ = 0;  // of a request that ended with an exception
  read_accounts();
  if (command == "quota.set") return set(request);
  if (command == "quota.remove") return remove(request);
  if (command == "quota.default") return set_default(request);
  if (command == "quota.mode") return set_mode(request);
  if (command == "quota.list") return list(request);
  if (command != "quota.get") return refusal(EOPNOTSUPP, "there is no such command for tenants");
  std::string name;
  json refused;
  const uint32_t index = named(request, &name, &refused);
  if (!refused.is_null()) return refused;
  if (index == 0)
    return refusal(ENOENT, "this tenant has no limits of its own and has stored nothing that is known of");
  return row_json(index);
}

json PoolTenants::status(uint64_t no_tenant_bytes) const {
  uint64_t tenants = 0, limited = 0;
  for (uint32_t index = 1; index < table_.size(); ++index) {
    tenants += table_.row(index).id != 0;
    limited += table_.row(index).limit_bytes() != 0;
  }
  json reply = {{"tenants", tenants},
                {"tenants_max", table_.size() - 1},
                {"limited", limited},
                {"listed_only", table_.is_listed_only()},
                {"others_used_bytes", no_tenant_bytes + table_.row(0).used_bytes},  // exempt from limits
                {"counting", is_counting()}};
  if (has_missed_)
    reply["others"] =
        "some tenants have no place in the pool's table or in a lane: they are counted together, no soft limit holds "
        "for "
        "them, and stores of those with a hard limit are refused";
  if (refused_without_place_ != 0) reply["refused_without_place"] = refused_without_place_;
  if (!listed_without_place_.empty()) reply["names_without_place"] = listed_without_place_.size();
  return reply;
}

}  // namespace maru::daemon
