// marudctl support-dump: one file with what a bug report needs. Keys of blocks say what users asked an engine, so they are not
// in it, nor the configuration, which may name users.
#include "daemon/marudctl/conversation.h"
#include "daemon/version.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
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

// What marud answers, or why it did not.
json answer(Conversation& conversation, const char* command, const char* list) {
  json reply;
  const int code = list ? conversation.ask_for_list({{"command", command}}, list, 1000, reply)
                        : conversation.ask({{"command", command}}, reply);
  return code == kExitDone ? reply : json({{"not_answered", conversation.said()}});
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
  dump["status"] = answer(conversation, "status", nullptr);
  dump["clients"] = answer(conversation, "clients", "clients");
  json pools = json::object();
  for (const json& pool : dump["status"].value("pools", json::array())) {
    const std::string name = pool.value("name", std::string());
    Arguments of_pool = arguments;
    of_pool.pool = name;
    Conversation about(of_pool);
    about.be_silent(true);
    json& said = pools[name];
    said["regions"] = answer(about, "regions", "regions");
    said["policy"] = answer(about, "policy", nullptr);
    said["check"] = answer(about, "check", nullptr);
    said["pins"] = answer(about, "pins", "pins");
    if (said["pins"].contains("pins"))
      for (json& pin : said["pins"]["pins"]) pin.erase("key");
  }
  dump["pools"] = std::move(pools);

  const std::string path = arguments.output.value_or(default_path());
  const std::string text = dump.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  if (path == "-") return print(text), kExitDone;
  if (const int code = write_file(path, text); code != kExitDone) return code;
  if (arguments.json)
    print_json({{"written", path}, {"bytes", text.size()}});
  else
    print("written: " + path + " (read it before you send it; no key of a block is in it)\n");
  return kExitDone;
}

}  // namespace maru::marudctl
