// marudctl support-dump: writes the facts for a bug report into one file. Keys of blocks tell users' prompts, and names of
// tenants tell users. So the file has keys and tenants only on request. It never has the configuration, or a name from its
// limits.
#include "daemon/base/json_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/version.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <initializer_list>
#include <sys/utsname.h>
#include <unistd.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;

std::string default_path() {
  const time_t now = std::time(nullptr);
  tm parts = {};
  char text[64] = "";
  if (::gmtime_r(&now, &parts)) std::strftime(text, sizeof(text), "marud-support-%Y%m%d-%H%M%S.json", &parts);
  return text;
}

// marud's answer, or the reason why it did not answer.
json answer(Conversation& conversation, const char* command, const char* list) {
  json reply;
  const int code = list ? conversation.ask_for_list({{"command", command}}, list, 1000, reply)
                        : conversation.ask({{"command", command}}, reply);
  return code == kExitDone ? reply : json({{"not_answered", conversation.said()}});
}

// A line each, for people to read; without comments, which docs/metrics.md has, too.
json lines_of(const std::string& text) {
  json lines = json::array();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (text[at] != '#') lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// In place of the text of all of them.
void split_metrics(json& reply) {
  if (const auto found = reply.find("metrics"); found != reply.end() && found->is_string())
    *found = lines_of(found->get<std::string>());
}

void erase_in_rows(json& reply, const char* list, std::initializer_list<const char*> names) {
  const auto found = reply.find(list);
  if (found == reply.end() || !found->is_array()) return;
  for (json& row : *found)
    for (const char* name : names)
      if (row.is_object()) row.erase(name);
}

json answers_about(const Arguments& arguments, const std::string& pool) {
  Arguments of_pool = arguments;
  of_pool.pool = pool;
  Conversation about(of_pool);
  about.be_silent(true);
  json said = {{"regions", answer(about, "regions", "regions")},   {"policy", answer(about, "policy", nullptr)},
               {"check", answer(about, "check", nullptr)},         {"pins", answer(about, "pins", "pins")},
               {"quotas", answer(about, "quota.list", "tenants")}, {"memory", answer(about, "memory.list", "memory")},
               {"hosts", answer(about, "host.list", nullptr)},     {"metrics", answer(about, "metrics", nullptr)}};
  split_metrics(said["metrics"]);
  if (arguments.keys) return said;
  erase_in_rows(said["pins"], "pins", {"key", "tenant", "tenant_name"});
  erase_in_rows(said["quotas"], "tenants", {"tenant"});
  return said;
}

// Written anew, readable by its owner alone; nothing is overwritten.
int write_file(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0)
    return complain(kExitRefused,
                    path + ": " + std::strerror(errno) +
                        (errno == EEXIST ? ": found a file, expected none; name another one with --output" : ""));
  size_t at = 0;
  int error = 0;
  while (at < text.size() && error == 0) {
    const ssize_t written = ::write(fd, text.data() + at, text.size() - at);
    if (written >= 0)
      at += size_t(written);
    else if (errno != EINTR)
      error = errno;
  }
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0) return kExitDone;
  ::unlink(path.c_str());
  return complain(kExitRefused, path + ": " + std::strerror(error));
}

}  // namespace

int support_dump(const Arguments& arguments) {
  bool is_wrong = false;
  utsname system = {};
  ::uname(&system);
  json dump = {{"marudctl", daemon::kVersionText},
               {"taken_unix_ms", uint64_t(std::time(nullptr)) * 1000},
               {"kernel", {{"release", system.release}, {"version", system.version}, {"machine", system.machine}}},
               {"doctor", findings_of(arguments, &is_wrong)}};
  Conversation conversation(arguments);
  conversation.be_silent(true);
  dump["status"] = answer(conversation, "status", "pools");
  dump["clients"] = answer(conversation, "clients", "clients");
  dump["devices"] = answer(conversation, "device.list", nullptr);
  dump["marud"] = answer(conversation, "metrics", nullptr);
  split_metrics(dump["marud"]);
  erase_in_rows(dump["marud"], "limit", {"user", "group"});
  json pools = json::object();
  for (const json& pool : dump["status"].value("pools", json::array())) {
    const std::string name = pool.value("name", std::string());
    pools[name] = answers_about(arguments, name);
  }
  dump["pools"] = std::move(pools);

  // The file is written all the same: its facts about the machine may tell why.
  if (const auto why = dump["status"].find("not_answered"); why != dump["status"].end())
    complain(kExitDone, "marud says nothing of itself in it: " + why->get<std::string>());
  const std::string path = arguments.output.value_or(default_path());
  const std::string text = daemon::json_text(dump, 2) + "\n";
  if (path == "-") return print(text), kExitDone;
  if (const int code = write_file(path, text); code != kExitDone) return code;
  if (arguments.json)
    print_json({{"written", path}, {"bytes", text.size()}});
  else
    print("written: " + path + " (read it before you send it; " +
          (arguments.keys ? "keys of blocks and names of tenants are in it" : "no key of a block is in it") + ")\n");
  return kExitDone;
}

}  // namespace maru::marudctl
