#include "daemon/pool/inspect/tenant_rows.h"

#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"

#include <cerrno>
#include <utility>
#include <vector>

namespace maru::daemon {
namespace {

using nlohmann::json;

std::string name_in(const json& request) {
  const std::vector<std::byte> bytes = key_bytes(text_in(request, "tenant"));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

json limit_json(const std::optional<uint64_t>& limit) { return limit ? json(*limit) : json(nullptr); }

}  // namespace

json name_json(const std::string& name) { return name.empty() ? json(nullptr) : json(tenant_name_text(name)); }

uint32_t tenant_named(const PoolTenants& tenants, const json& request, std::string* ret_name, json* ret_refusal) {
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
  if (id == 0) id = tenants.number_of(*ret_name);
  const uint32_t index = tenants.table().index_of(id);
  if (index != 0 && ret_name->empty()) *ret_name = tenants.table().row(index).name;
  return index;
}

std::optional<uint64_t> tenant_in(const PoolTenants& tenants, const json& request) {
  const auto found = request.find("tenant");
  if (found == request.end() || found->is_null()) return 0;
  if (!found->is_string()) return id_of(*found);
  const auto& text = found->get_ref<const std::string&>();
  if (text.starts_with("id:")) return id_of(text.substr(3));
  const std::string name = name_in(request);
  if (name.empty() || name.size() > limits::kTenantNameMax) return std::nullopt;
  const uint64_t named = tenants.number_of(name);
  if (tenants.table().index_of(named) != 0) return named;
  return id_of(*found).value_or(named);
}

void put_tenant(const PoolTenants& tenants, uint64_t id, json& row) {
  if (id == 0) return;
  row["tenant"] = std::to_string(id);
  const uint32_t index = tenants.table().index_of(id);
  if (index != 0 && !tenants.table().row(index).name.empty())
    row["tenant_name"] = name_json(tenants.table().row(index).name);
}

json tenant_json(const PoolTenants& tenants, uint32_t index) {
  const TenantTable::Row& row = tenants.table().row(index);
  json out = {{"tenant", name_json(row.name)}, {"id", std::to_string(row.id)},
              {"used_bytes", row.used_bytes},  {"soft_bytes", row.soft_bytes},  // that apply: 0 is none
              {"hard_bytes", row.hard_bytes},  {"listed", row.is_listed},
              {"over", row.is_over()},         {"refusals", tenants.refusals(index)}};  // since this marud began
  if (tenants.is_suspect(index)) out["counting"] = true;  // used_bytes may be too high for a moment
  if (!row.is_listed) return out;
  out["own_soft_bytes"] = limit_json(row.own.soft_bytes);
  out["own_hard_bytes"] = limit_json(row.own.hard_bytes);
  const LimitSettings& settings = tenants.settings();
  const bool at_run_time = settings.at_run_time().tenants.contains(row.name);
  out["set_by"] = at_run_time ? "run time" : "configuration";
  if (const auto configured = settings.configured().tenants.find(row.name);
      at_run_time && configured != settings.configured().tenants.end())
    out["configured"] = {{"soft_bytes", limit_json(configured->second.soft_bytes)},
                         {"hard_bytes", limit_json(configured->second.hard_bytes)}};
  return out;
}

json default_limits_json(const PoolTenants& tenants) {
  const TenantLimits& defaults = tenants.table().defaults();
  const TenantLimits& configured = tenants.settings().configured().defaults;
  const TenantLimits& at_run_time = tenants.settings().at_run_time().defaults;
  json reply = {{"soft_bytes", defaults.soft_bytes.value_or(0)},
                {"hard_bytes", defaults.hard_bytes.value_or(0)},
                {"set_by", at_run_time == TenantLimits{} ? "configuration" : "run time"}};
  if (at_run_time.soft_bytes && configured.soft_bytes) reply["configured_soft_bytes"] = *configured.soft_bytes;
  if (at_run_time.hard_bytes && configured.hard_bytes) reply["configured_hard_bytes"] = *configured.hard_bytes;
  return reply;
}

json mode_json(const PoolTenants& tenants) {
  const std::optional<bool>& configured = tenants.settings().configured().listed_only;
  const std::optional<bool>& at_run_time = tenants.settings().at_run_time().listed_only;
  json reply = {{"listed", tenants.table().is_listed_only()}, {"set_by", at_run_time ? "run time" : "configuration"}};
  if (at_run_time && configured) reply["configured"] = *configured;
  return reply;
}

json list_tenants(const PoolTenants& tenants, const json& request) {
  const TenantTable& table = tenants.table();
  const uint64_t rows_max = rows_in(request);
  json rows = json::array();
  size_t bytes = 0;
  uint64_t index = number_in(request, "cursor", 0) + 1;
  for (; index < table.size() && rows.size() < rows_max && bytes < kAdminReplyBytesMax; ++index) {
    if (table.row(uint32_t(index)).id == 0) continue;
    json row = tenant_json(tenants, uint32_t(index));
    bytes += json_text(row).size();
    rows.push_back(std::move(row));
  }
  json reply = {{"tenants", std::move(rows)}};
  // Of tenants without a place. The caller that has counted the pages adds the blocks of no tenant, once for a list.
  if (!request.contains("cursor")) reply["others_used_bytes"] = table.row(0).used_bytes;
  reply["default"] = {{"soft_bytes", table.defaults().soft_bytes.value_or(0)},
                      {"hard_bytes", table.defaults().hard_bytes.value_or(0)}};
  reply["listed_only"] = table.is_listed_only();
  if (index < table.size()) reply["next"] = index - 1;
  return reply;
}

json tenants_status(const PoolTenants& tenants, uint64_t no_tenant_bytes) {
  const TenantTable& table = tenants.table();
  uint64_t known = 0, limited = 0;
  for (uint32_t index = 1; index < table.size(); ++index) {
    known += table.row(index).id != 0;
    limited += table.row(index).limit_bytes() != 0;
  }
  json reply = {{"tenants", known},
                {"tenants_max", table.size() - 1},
                {"limited", limited},
                {"listed_only", table.is_listed_only()},
                {"others_used_bytes", no_tenant_bytes + table.row(0).used_bytes},  // exempt from limits
                {"counting", tenants.is_counting()}};
  if (tenants.counts_some_together())
    reply["others"] =
        "some tenants have no place in the pool's table or in a lane: they are counted together, no soft limit holds "
        "for "
        "them, and stores of those with a hard limit are refused";
  if (tenants.refusals_without_place() != 0) reply["refused_without_place"] = tenants.refusals_without_place();
  if (tenants.names_without_place() != 0) reply["names_without_place"] = tenants.names_without_place();
  return reply;
}

}  // namespace maru::daemon
