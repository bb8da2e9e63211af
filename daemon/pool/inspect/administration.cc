#include "daemon/pool/inspect/administration.h"

#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/replies.h"
#include "daemon/pool/inspect/which.h"

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace maru::daemon {
namespace {

using nlohmann::json;

// "quota.default" and "quota.mode" without values only ask.
bool has_limits(const json& request) {
  return request.contains("soft") || request.contains("hard") || request.contains("listed");
}

}  // namespace

json Administration::run(const std::string& command, const json& request, uint64_t* ret_ticket) {
  using Self = Administration;
  struct Command {
    std::string_view name;
    bool changes;
    json (*run)(Self& self, const json& request, uint64_t* ret_ticket);
  };
  static constexpr Command kCommands[] = {
      {"regions", false, [](Self& self, const json& asked, uint64_t*) { return self.status_.list_regions(asked); }},
      {"which", false,
       [](Self& self, const json& asked, uint64_t*) { return which_blocks(self.core_.region, self.tenants_, asked); }},
      {"map", false, [](Self& self, const json&, uint64_t*) { return self.heat_.map(); }},
      {"blocks", false, [](Self& self, const json& asked, uint64_t*) { return self.blocks_.list(asked); }},
      {"block", false, [](Self& self, const json& asked, uint64_t*) { return self.blocks_.one(asked); }},
      {"host.list", false, [](Self& self, const json&, uint64_t*) { return self.host_lists_.list(); }},
      {"host.declare_dead", true,
       [](Self& self, const json& asked, uint64_t*) { return self.host_lists_.declare_dead(asked); }},
      {"pins", false, [](Self& self, const json& asked, uint64_t*) { return self.pin_watch_.list(asked); }},
      {"memory.poison", true,
       [](Self& self, const json& asked, uint64_t*) { return self.bad_memory_.poison_page(asked); }},
      {"memory.list", false, [](Self& self, const json& asked, uint64_t*) { return self.bad_memory_.list(asked); }},
      {"check", false,
       [](Self& self, const json& asked, uint64_t* ticket) {
         return self.audits_.check(flag_in(asked, "quiesce"), ticket);
       }},
      {"evict", true, [](Self& self, const json& asked, uint64_t* ticket) { return self.make_room(asked, ticket); }},
      {"delete_tree", true,
       [](Self& self, const json& asked, uint64_t* ticket) { return self.remove("delete_tree", asked, ticket); }},
      {"clear", true,
       [](Self& self, const json& asked, uint64_t* ticket) { return self.remove("clear", asked, ticket); }},
  };
  const bool is_quota = command.starts_with("quota.");
  const auto* const found = std::ranges::find(kCommands, command, &Command::name);
  const bool changes = is_quota ? command == "quota.set" || command == "quota.remove" || has_limits(request)
                                : found != std::end(kCommands) && found->changes;
  constexpr uint64_t kHeld = UINT64_MAX;  // the ticket of a command that was not begun yet
  if (ret_ticket && *ret_ticket == kHeld) *ret_ticket = 0;
  const bool is_new = !ret_ticket || *ret_ticket == 0;
  if (is_new && audits_.is_quiesced() && changes) {
    if (!ret_ticket) return refusal(EAGAIN, "the pool is being checked at rest: try again");
    *ret_ticket = kHeld;
    return {};
  }
  if (is_quota && (command == "quota.set" || has_limits(request)) && core_.region.is_shared())
    return refusal(EOPNOTSUPP, "pool \"" + core_.config.name +
                                   "\" has profile = \"shared\", expected \"local\": limits of tenants are kept by one "
                                   "host, and the others would store beyond them");
  if (is_quota) return limit_commands_.run(command, request, ret_ticket);
  if (found == std::end(kCommands)) return refusal(EOPNOTSUPP, "there is no such command for a pool");
  return found->run(*this, request, ret_ticket);
}

// "delete_tree" or "clear", which takes every block that may go. The key of a pinned block goes now, and the memory when the
// last pin does. Without a place for a ticket it is done when this returns, and so below.
json Administration::remove(const std::string& command, const json& request, uint64_t* ret_ticket) {
  if (ret_ticket && *ret_ticket != 0) return late_.answer(ret_ticket);
  const bool is_clear = command == "clear";
  shm::Digest digest;
  json none;
  if (!is_clear && blocks_.named(request, &digest, &none).is_none()) return none;
  const auto removed = deletions_.remove(digest, is_clear, ret_ticket == nullptr);
  if (!removed) return refusal(removed.error().code, removed.error().doing);
  return removed->now ? removed_json(*removed->now) : late_.wait_for(removed->ticket, ret_ticket);
}

// "evict": so many pages become FREE.
json Administration::make_room(const json& request, uint64_t* ret_ticket) {
  if (ret_ticket && *ret_ticket != 0) return late_.answer(ret_ticket);
  const uint64_t pages = number_in(request, "pages", 0);
  if (pages == 0) return refusal(EINVAL, "\"pages\" is a number above zero");
  const auto evicted = evictions_.evict(pages, ret_ticket == nullptr);
  if (!evicted) return refusal(evicted.error().code, evicted.error().doing);
  return evicted->now ? evicted_json(*evicted->now) : late_.wait_for(evicted->ticket, ret_ticket);
}

}  // namespace maru::daemon
