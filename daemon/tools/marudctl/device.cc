// marudctl device: pools that come and go while marud runs.
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace maru::marudctl {
namespace {

using nlohmann::json;

constexpr uint64_t kDeadlineDefaultS = 60;
constexpr uint32_t kAddTimeoutMs = 24 * 3'600'000;

// The row of a pool; null when it is gone. Returns the exit status.
int device_of(Conversation& conversation, const std::string& pool, json& ret_row) {
  json reply;
  if (const int code = conversation.ask({{"command", "device.list"}}, reply); code != kExitDone) return code;
  ret_row = nullptr;
  for (json& row : reply["devices"])
    if (row.value("pool", "") == pool) ret_row = std::move(row);
  return kExitDone;
}

// How far a pool is that comes or goes, which few do at a time: it has a line below the table. Empty: this one does not.
std::string progress_text(const json& row) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : ", ") + part; };
  if (row.contains("left_pages"))
    add(std::to_string(number(row, "left_pages")) + " pages left, " + std::to_string(number(row, "left_blocks")) +
        " blocks in them, " + std::to_string(number(row, "pinned_blocks")) + " pinned");
  if (row.contains("deadline_ms"))
    add("until the deadline " + std::to_string(number(row, "deadline_ms") / 1000) + " s");
  if (const std::string note = text(row, "note"); !note.empty()) add(note);
  return out;
}

void pause() {
  const timespec time = {0, 50'000'000};
  ::nanosleep(&time, nullptr);
}

}  // namespace

int device_list(const Arguments& arguments) {
  json reply;
  if (const int code = Conversation(arguments).ask({{"command", "device.list"}}, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  print(table_text(reply["devices"], {"pool", "condition", "medium", "device", "size_bytes", "pages", "clients"},
                   "marud has no pool", line_width()));
  for (const json& row : reply["devices"])
    if (const std::string said = progress_text(row); !said.empty()) print(text(row, "pool") + ": " + said + "\n");
  return kExitDone;
}

int device_add(const Arguments& arguments) {
  const std::string& what = arguments.operands.front();
  json request = {{"command", "device.add"}};
  if (what.ends_with(".toml") || what.find('/') != std::string::npos) {
    constexpr size_t kTomlBytesMax = 48u << 10;  // so much fits a message beside the rest
    errno = 0;
    std::ifstream file(what, std::ios::binary);
    const int why = errno != 0 ? errno : EIO;
    std::ostringstream text;
    if (file) text << file.rdbuf();
    if (!file) return complain(kExitRefused, what + " cannot be read: " + std::strerror(why));
    if (text.str().empty() || text.str().size() > kTomlBytesMax)
      return complain(kExitRefused, what + ": found " + std::to_string(text.str().size()) + " bytes, expected 1 to " +
                                        std::to_string(kTomlBytesMax) + " that describe a [[pool]]");
    request["toml"] = text.str();
  } else {
    request["name"] = what;
  }
  json reply;
  // The answer comes when the pool serves, and a large device takes minutes to be formatted.
  Arguments patient = arguments;
  if (arguments.timeout_ms == Arguments().timeout_ms) patient.timeout_ms = kAddTimeoutMs;  // none was said
  if (const int code = Conversation(patient).ask(request, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  for (const json& name : reply.value("added", json::array()))
    print("pool \"" + name.get<std::string>() + "\" serves\n");
  return kExitDone;
}

int device_drain(const Arguments& arguments) {
  return print_fields(arguments, {{"command", "device.drain"}, {"name", arguments.operands.front()}}, {"pool"});
}

int device_cancel(const Arguments& arguments) {
  return print_fields(arguments, {{"command", "device.cancel"}, {"name", arguments.operands.front()}}, {"pool"});
}

// Waits until the pool is gone, or marud has given up at the deadline.
int device_remove(const Arguments& arguments) {
  const std::string& pool = arguments.operands.front();
  const uint64_t deadline_s = arguments.deadline_s.value_or(kDeadlineDefaultS);
  Conversation conversation(arguments);
  json reply;
  const json request = {{"command", "device.remove"},
                        {"name", pool},
                        {"deadline_ms", deadline_s * 1000},
                        {"fence", arguments.fence},
                        {"discard", arguments.yes}};
  if (const int code = conversation.ask(request, reply); code != kExitDone)
    return conversation.refused_with() == ENOTEMPTY ? kExitUsage : code;  // --yes was wanted
  if (reply.value("forgotten", false)) {
    if (arguments.json) return print_json(reply), kExitDone;
    print("pool \"" + pool + "\" did not serve, and is not started again\n");
    return kExitDone;
  }
  if (!arguments.json && reply.value("clients", uint64_t{0}) != 0)
    print(std::to_string(reply["clients"].get<uint64_t>()) + " clients of pool \"" + pool +
          "\" are asked to leave within " + std::to_string(deadline_s) + " s\n");
  while (true) {  // ends: marud decides at its deadline
    json row;
    if (const int code = device_of(conversation, pool, row); code != kExitDone) return code;
    if (row.is_null()) break;
    if (row.value("condition", "") != "leaving") {
      if (arguments.json) print_json(row);
      return complain(kExitRefused, "pool \"" + pool + "\" is not removed: " +
                                        row.value("note", "somebody cancelled it") + " (--fence ends them)");
    }
    pause();
  }
  if (arguments.json) return print_json({{"pool", pool}, {"removed", true}}), kExitDone;
  print("pool \"" + pool + "\" is removed, its device is closed\n");
  return kExitDone;
}

}  // namespace maru::marudctl
