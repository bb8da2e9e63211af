// POST /check_blocks: which of many blocks are present, as ranges of the given list. A hint for routers.
#include "daemon/base/json_text.h"
#include "daemon/http/request.h"

#include <nlohmann/json.hpp>

namespace maru::daemon::http {

using nlohmann::json;

Step check_blocks(const Call& call) {
  std::optional<Step> wrong;
  const json body = object_in(call, {"block_hashes", "kind", "tenant"}, wrong);
  if (wrong) return *wrong;
  const auto hashes = body.find("block_hashes");
  if (hashes == body.end() || !hashes->is_array())
    return say_error(400, std::string("block_hashes: found ") +
                              (hashes == body.end() ? "nothing" : hashes->type_name()) +
                              ", expected a list of keys, each as text or as 0x and hexadecimal digits");
  json command = command_for(call, "which");
  command["keys"] = *hashes;
  for (const char* field : {"kind", "tenant"})
    if (body.contains(field)) command[field] = body[field];
  return ask(command, [](const Answer& answer) {
    if (answer.code != 0) return say_refusal(answer);
    return say(200, {{"ranges", json_of(answer.text)["ranges"]}});
  });
}

}  // namespace maru::daemon::http
