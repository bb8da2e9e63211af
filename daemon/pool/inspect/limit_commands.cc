#include "daemon/pool/inspect/limit_commands.h"

#include "daemon/base/request_fields.h"

#include <cerrno>
#include <optional>
#include <utility>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kQuotasMax = 64;  // that wait until those before them are written down

}  // namespace

json LimitCommands::run(const std::string& command, const json& request, uint64_t* ret_ticket) {
  // "quota.default" and "quota.mode" without values show what there is: that waits for nobody's disk.
  const bool changes = command == "quota.set" || command == "quota.remove" || request.contains("soft") ||
                       request.contains("hard") || request.contains("listed");
  if (!changes || !ret_ticket) return tenants_.admin(command, request);
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
      std::optional<json> written;
      if (tenants_.is_writing() && !(written = tenants_.take_written())) return;
      reply = written ? std::move(*written) : tenants_.admin(first.command, first.request, true);
      if (tenants_.is_writing()) return;
    } catch (const json::exception& exception) {
      reply = refusal(EINVAL, std::string("the request does not fit: ") + exception.what());
    }
    late_.give(first.ticket, std::move(reply));
  }
}

}  // namespace maru::daemon
