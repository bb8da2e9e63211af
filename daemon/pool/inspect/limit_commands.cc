#include "daemon/pool/inspect/limit_commands.h"

#include "daemon/base/request_fields.h"
#include "daemon/base/size_text.h"
#include "daemon/pool/inspect/tenant_rows.h"

#include <cerrno>
#include <optional>
#include <utility>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kQuotasMax = 64;  // that wait until those before them are written down

// "soft" and "hard": bytes, 0 for no limit, null for the pool's default; an absent one stays. False: something else.
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

// A soft limit above the applying hard limit would never be reached.
std::string soft_above_hard(const TenantLimits& limits, const TenantLimits& defaults) {
  const uint64_t soft = limits.soft_bytes.value_or(0);
  const uint64_t hard = limits.hard_bytes.value_or(defaults.hard_bytes.value_or(0));
  if (hard == 0 || soft <= hard) return "";
  return "found the soft limit " + size_text(soft) + ", expected at most the hard one, which is " + size_text(hard);
}

constexpr const char* kLimitText =
    "\"soft\" and \"hard\" are numbers of bytes: 0 for no limit, null for the pool's default";

json reply_to(const Result<void>& written, const std::function<json()>& reply) {
  if (written) return reply();
  // ENOSPC tells a tenant that the pool has no place for it; here a disk is full.
  return refusal(written.error().code == ENOSPC ? EIO : written.error().code, written.error().text());
}

}  // namespace

json LimitCommands::run(const std::string& command, const json& request, uint64_t* ret_ticket) {
  // "quota.default" and "quota.mode" without values show the present values, and wait for no disk.
  const bool changes = command == "quota.set" || command == "quota.remove" || request.contains("soft") ||
                       request.contains("hard") || request.contains("listed");
  if (!changes || !ret_ticket) return answer(command, request, false);
  if (*ret_ticket == 0) {
    if (waiting_.size() >= kQuotasMax) return refusal(EAGAIN, "too many limits are being set already: try again");
    waiting_.push_back({++core_.last_ticket, command, request});
    late_.wait_for(core_.last_ticket, ret_ticket);
    step();
  }
  return late_.answer(ret_ticket);
}

void LimitCommands::step() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    QuotaCommand& first = waiting_.front();
    json reply;
    try {
      if (tenants_.settings().is_writing()) {
        const auto written = tenants_.take_written();
        if (!written) return;
        reply = reply_to(*written, std::exchange(reply_, {}));
      } else {
        reply = answer(first.command, first.request, true);
        if (tenants_.settings().is_writing()) return;
      }
    } catch (const json::exception& exception) {
      reply = refusal(EINVAL, std::string("the request does not fit: ") + exception.what());
    }
    late_.give(first.ticket, std::move(reply));
  }
}

json LimitCommands::answer(const std::string& command, const json& request, bool aside) {
  tenants_.begin_request();
  if (command == "quota.set") return set(request, aside);
  if (command == "quota.remove") return remove(request, aside);
  if (command == "quota.default") return set_default(request, aside);
  if (command == "quota.mode") return set_mode(request, aside);
  if (command == "quota.list") return list_tenants(tenants_, request);
  if (command == "quota.get") return get(request);
  return refusal(EOPNOTSUPP, "there is no such command for tenants");
}

json LimitCommands::get(const json& request) {
  std::string name;
  json refused;
  const uint32_t index = tenant_named(tenants_, request, &name, &refused);
  if (!refused.is_null()) return refused;
  if (index == 0)
    return refusal(ENOENT, "this tenant has no limits of its own and has stored nothing that is known of");
  return tenant_json(tenants_, index);
}

json LimitCommands::set(const json& request, bool aside) {
  std::string name;
  json refused;
  tenant_named(tenants_, request, &name, &refused);
  if (!refused.is_null()) return refused;
  if (name.empty())
    return refusal(EINVAL, "nobody has told marud the name of this tenant, by which its limits are set");
  const TenantSettings both = tenants_.settings().both();
  const auto now = both.tenants.find(name);
  TenantLimits limits = now == both.tenants.end() ? TenantLimits{} : now->second;
  if (!read_limits(request, limits)) return refusal(EINVAL, kLimitText);
  if (const std::string wrong = soft_above_hard(limits, both.defaults); !wrong.empty()) return refusal(EINVAL, wrong);
  const uint64_t tenant = tenants_.number_of(name);
  if (!tenants_.keep_place(tenant))
    return refusal(ENOSPC, "the pool has no place for another tenant: it was formatted for " +
                               std::to_string(tenants_.table().size() - 1) +
                               " (tenants_max), and those that could have this one's place are in use");
  TenantSettings settings = tenants_.settings().at_run_time();
  settings.tenants[name] = limits;
  settings.removed.erase(name);
  return change(settings, aside, [this, tenant] { return tenant_json(tenants_, tenants_.table().index_of(tenant)); });
}

json LimitCommands::remove(const json& request, bool aside) {
  std::string name;
  json refused;
  tenant_named(tenants_, request, &name, &refused);
  if (!refused.is_null()) return refused;
  if (!tenants_.settings().both().tenants.contains(name))
    return refusal(ENOENT, "this tenant has no limits of its own, expected one that quota list shows as listed");
  TenantSettings settings = tenants_.settings().at_run_time();
  settings.tenants.erase(name);
  const bool is_configured = tenants_.settings().configured().tenants.contains(name);
  if (is_configured) settings.removed.insert(name);
  json reply = {{"tenant", name_json(name)}, {"removed", true}};
  if (is_configured)
    reply["note"] =
        "the limits that the configuration has for it do not apply any more, also after a restart; quota set gives it "
        "others";
  return change(settings, aside, [reply = std::move(reply)] { return reply; });
}

json LimitCommands::set_default(const json& request, bool aside) {
  TenantSettings settings = tenants_.settings().at_run_time();
  if (!read_limits(request, settings.defaults)) return refusal(EINVAL, kLimitText);
  const TenantLimits& configured = tenants_.settings().configured().defaults;
  TenantLimits applied = settings.defaults;
  if (!applied.soft_bytes) applied.soft_bytes = configured.soft_bytes;
  if (const std::string wrong = soft_above_hard(applied, configured); !wrong.empty()) return refusal(EINVAL, wrong);
  if (settings == tenants_.settings().at_run_time()) return default_limits_json(tenants_);
  return change(settings, aside, [this] { return default_limits_json(tenants_); });
}

json LimitCommands::set_mode(const json& request, bool aside) {
  const auto listed = request.find("listed");
  if (listed == request.end()) return mode_json(tenants_);
  if (!listed->is_boolean()) return refusal(EINVAL, "\"listed\" is true or false");
  TenantSettings settings = tenants_.settings().at_run_time();
  settings.listed_only = listed->get<bool>();
  return change(settings, aside, [this] { return mode_json(tenants_); });
}

json LimitCommands::change(const TenantSettings& at_run_time, bool aside, Reply reply) {
  if (const auto written = tenants_.change(at_run_time, aside)) return reply_to(*written, reply);
  reply_ = std::move(reply);
  return {};
}

}  // namespace maru::daemon
