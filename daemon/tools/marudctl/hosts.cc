// marudctl host: the hosts of a shared pool, and the word that ends one.
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/number_text.h"
#include "daemon/tools/marudctl/output.h"
#include "maru/format/limits.h"

#include <nlohmann/json.hpp>

namespace maru::marudctl {

using nlohmann::json;

int host_list(const Arguments& arguments) {
  json reply;
  if (const int code = Conversation(arguments).ask({{"command", "host.list"}}, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  for (json& host : reply["hosts"])
    if (host.value("this", false)) host["state"] = host.value("state", "") + " (this)";
  print(table_text(reply["hosts"],
                   {"host", "state", "name", "heartbeat_age_ms", "clients", "regions", "epoch", "boot_id", "reclaimer"},
                   "the pool has no host", line_width()));
  return kExitDone;
}

int host_declare_dead(const Arguments& arguments) {
  const std::string& text = arguments.operands.front();
  const auto host = read_number(text, 0, limits::kHostsMax - 1);
  if (!host)
    return complain(kExitUsage, number_mistake("host declare-dead HOST", text, 0, limits::kHostsMax - 1) +
                                    "; see marudctl host list");
  if (!arguments.yes)
    return complain(kExitUsage, "what host " + text +
                                    " holds is taken back at once; if it is not off, its clients go on writing into "
                                    "memory of others. Confirm with --yes");
  json reply;
  const json request = {{"command", "host.declare_dead"}, {"host", *host}, {"force", arguments.force}};
  if (const int code = Conversation(arguments).ask(request, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  print("host " + text + " is dead: what it held is taken back; see `marudctl host list`\n");
  return kExitDone;
}

}  // namespace maru::marudctl
