// marudctl watch: what is stored and removed, as marud sees it. marud keeps the last events and this asks for them several
// times a second; who reads too slowly is told how many are lost.
#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <limits>
#include <memory>

namespace maru::marudctl {
namespace {

using nlohmann::json;

constexpr timespec kPause = {0, 200'000'000};
constexpr uint64_t kEventsPerAnswer = 200;

volatile std::sig_atomic_t is_stopped = 0;
void on_stop(int) { is_stopped = 1; }

// "13:04:11.250"
std::string time_text(uint64_t unix_ms) {
  const auto seconds = time_t(unix_ms / 1000);
  tm local = {};
  ::localtime_r(&seconds, &local);
  char out[32];
  const size_t bytes = std::strftime(out, sizeof(out), "%H:%M:%S", &local);
  std::snprintf(out + bytes, sizeof(out) - bytes, ".%03u", unsigned(unix_ms % 1000));
  return out;
}

constexpr size_t kKeyWidthMin = 16;

// On a terminal of this width a key gives way to what stands around it; 0: it is shown whole.
std::string line_of(const json& event, size_t width) {
  const std::string key = text(event, "key"), reason = text(event, "reason");
  char start[64];
  std::snprintf(start, sizeof(start), "%s %-8s %9s  ", time_text(number(event, "at_ms")).c_str(),
                text(event, "event").c_str(),
                event.contains("length_bytes") ? daemon::size_text(number(event, "length_bytes")).c_str() : "-");
  const std::string line = start;
  std::string end;
  if (number(event, "key_bytes") != 0) end += "... (" + std::to_string(number(event, "key_bytes")) + " bytes)";
  if (const std::string tenant = tenant_text(event); !tenant.empty()) end += "  tenant " + tenant;
  if (!reason.empty()) end += "  by " + reason;
  if (key.empty()) return line + "(key not known, page " + std::to_string(number(event, "page")) + ")" + end + "\n";
  const size_t taken = line.size() + end.size(), room = width > taken ? width - taken : 0;
  return line + (width == 0 ? key : shortened(key, std::max(kKeyWidthMin, room))) + end + "\n";
}

// Something about the watch itself: a line of its own kind, or a word beside the output.
void note(const Arguments& arguments, const json& event, const std::string& said) {
  if (arguments.json)
    print(printable_json(event, -1) + "\n");
  else
    complain(kExitDone, said);
}

}  // namespace

int watch(const Arguments& arguments) {
  struct sigaction action = {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // what is being written is written, unless a second one comes
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  auto conversation = std::make_unique<Conversation>(arguments);
  conversation->be_silent(true);  // a signal ends what it waits for, which is no mistake
  bool is_lost = false;
  json request = {{"command", "watch"}, {"limit", kEventsPerAnswer}};
  uint64_t left = arguments.limit.value_or(std::numeric_limits<uint64_t>::max());
  while (is_stopped == 0) {
    json reply;
    if (const int code = conversation->ask(request, reply); code != kExitDone) {
      if (is_stopped != 0) return kExitDone;
      // Before the first answer nothing was watched; after it marud is expected to come back, as after an upgrade. Its pool
      // may refuse for a while then, until its memory is back.
      if (!request.contains("watch") || (!is_lost && code != kExitUnreachable))
        return complain(code, conversation->said());
      if (!is_lost)
        note(arguments, {{"event", "waiting"}},
             "marud does not answer (" + conversation->said() + "); watching goes on when it does");
      if (std::fflush(stdout) != 0) return kExitDone;
      is_lost = true;
      conversation = std::make_unique<Conversation>(arguments);
      conversation->be_silent(true);
      ::nanosleep(&kPause, nullptr);
      continue;
    }
    is_lost = false;
    const uint64_t lost = number(reply, "lost");
    if (!request.contains("watch"))
      note(arguments, {{"event", "watching"}}, "watching; Ctrl-C ends it");
    else if (number(request, "watch") != number(reply, "watch"))
      note(arguments, {{"event", "watching"}},
           "marud began to watch anew: what happened since the last line is not known");
    if (lost != 0)
      note(arguments, {{"event", "lost"}, {"count", lost}},
           std::to_string(lost) + " events were lost: they came faster than they were read");
    const size_t width = line_width();  // it may change meanwhile
    uint64_t shown = 0;
    for (const json& event : reply["events"]) {
      if (left == 0 || is_stopped != 0 || !event.is_object()) break;
      print(arguments.json ? printable_json(event, -1) + "\n" : line_of(event, width));
      ++shown;
      --left;
    }
    if (std::fflush(stdout) != 0 || left == 0) return kExitDone;  // nobody reads any more, or all was shown
    request["watch"] = number(reply, "watch");
    request["cursor"] = number(reply, "next");
    if (shown != 0 && shown == reply["events"].size() && shown >= kEventsPerAnswer / 2) continue;  // there may be more
    ::nanosleep(&kPause, nullptr);
  }
  return kExitDone;
}

}  // namespace maru::marudctl
