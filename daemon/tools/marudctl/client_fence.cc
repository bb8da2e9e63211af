// marudctl client fence: ends a process that is attached. Shows the process, asks, lets marud send SIGKILL, and waits
// until marud has taken its holdings back. marudctl client forget: says that the process of a lane is gone, where marud
// cannot know.
#include "daemon/base/json_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/number_text.h"
#include "daemon/tools/marudctl/output.h"
#include "maru/format/limits.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;

std::string process_text(const json& process) {
  return "process " + daemon::json_text(process.value("pid", json())) + " (" + process.value("command", "?") +
         ", user " + daemon::json_text(process.value("uid", json())) + ")";
}

bool same_process(const json& a, const json& b) {
  return a.value("pid", json()) == b.value("pid", json()) &&
         a.value("start_time", json()) == b.value("start_time", json());
}

// Which lane or process is meant. Returns the exit status.
int read_lane(const Arguments& arguments, const char* command, std::optional<uint64_t>& ret_lane) {
  if (arguments.operands.empty()) return kExitDone;
  const std::string& text = arguments.operands.front();
  ret_lane = read_number(text, 0, limits::kLanesMax - 1);
  if (ret_lane) return kExitDone;
  return complain(kExitUsage, number_mistake(std::string(command) + " LANE", text, 0, limits::kLanesMax - 1) +
                                  "; see marudctl clients");
}

int read_lane_or_process(const Arguments& arguments, std::optional<uint64_t>& ret_lane) {
  if (const int code = read_lane(arguments, "client fence", ret_lane); code != kExitDone) return code;
  if (ret_lane.has_value() == arguments.pid.has_value())
    return complain(kExitUsage, "client fence takes a LANE or --pid PID, one of them");
  return kExitDone;
}

// Names the meant client: a lane has a pool.
struct Meant {
  std::optional<uint64_t> lane, pid;
  std::string pool;

  bool is(const json& client) const {
    if (lane) return client.value("lane", uint64_t{0}) == *lane && client.value("pool", "") == pool;
    return client.value("pid", uint64_t{0}) == *pid;
  }
  std::string why_nobody() const {
    return (lane ? "lane " + std::to_string(*lane) + " of pool \"" + pool + "\" has no client"
                 : "process " + std::to_string(*pid) + " is no client") +
           ": it has ended and what it held was taken back, or it was never attached; see marudctl clients";
  }
};

// The lanes of the meant process. Returns the exit status. To end the wrong one of two clients cannot be made good: so
// a lane of another pool is never taken for the meant one.
int find_process(const Meant& meant, const json& clients, json& ret_lanes) {
  const auto chosen = std::find_if(clients.begin(), clients.end(), [&](const json& one) { return meant.is(one); });
  if (chosen == clients.end()) return complain(kExitRefused, meant.why_nobody());
  for (const json& client : clients)
    if (same_process(client, *chosen)) ret_lanes.push_back(client);
  return kExitDone;
}

// Returns the exit status.
int confirm(const Arguments& arguments, const char* question) {
  if (arguments.yes) return kExitDone;
  if (!::isatty(STDIN_FILENO)) return complain(kExitUsage, "there is no terminal to ask on: confirm with --yes");
  std::fprintf(stderr, "%s Type yes: ", question);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "yes" ? kExitDone : complain(kExitRefused, "nothing was done");
}

void show_lanes(const Arguments& arguments, const json& lanes) {
  if (arguments.json) return;
  print(process_text(lanes.front()) + "\n" +
        table_text(
            lanes,
            {"pool", "lane", "state", "pid_namespace", "since_ms", "pins", "pins_overdue", "oldest_pin_ms", "regions"},
            "", line_width()));
  std::fflush(stdout);
}

// Waits until none of the process's lanes is in use. False: it has not ended, or marud has not noticed, in time.
bool wait_for_end(const Arguments& arguments, Conversation& conversation, const json& process, int& ret_code) {
  const uint64_t deadline_ms = monotonic_ms() + arguments.timeout_ms;
  while (true) {
    json clients;
    ret_code = conversation.ask_for_list({{"command", "clients"}}, "clients", std::nullopt, clients);
    if (ret_code != kExitDone) return false;
    bool is_there = false;
    for (const json& client : clients["clients"]) is_there |= same_process(client, process);
    if (!is_there) return true;
    if (monotonic_ms() >= deadline_ms) return false;
    const timespec pause = {0, 20'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

void print_taken(const json& lane) {
  const uint64_t pins = lane.value("pins", uint64_t{0}), regions = lane.value("regions", uint64_t{0});
  print("lane " + daemon::json_text(lane.value("lane", json())) + " of pool \"" + lane.value("pool", "") +
        "\" is taken back: " + std::to_string(pins) + (pins == 1 ? " pin, " : " pins, ") + std::to_string(regions) +
        (regions == 1 ? " region" : " regions") + "; stored blocks stay\n");
}

void print_fenced(const json& fenced) {
  print(process_text(fenced) + (fenced.value("had_ended", false) ? " had ended already\n" : " was ended\n"));
  for (const json& lane : fenced.value("lanes", json::array())) print_taken(lane);
}

}  // namespace

int client_fence(const Arguments& arguments) {
  Meant meant = {std::nullopt, arguments.pid, ""};
  if (const int code = read_lane_or_process(arguments, meant.lane); code != kExitDone) return code;
  Conversation conversation(arguments);
  json listed, lanes = json::array();
  if (meant.lane)
    if (const int code = pool_meant(arguments, conversation, meant.pool); code != kExitDone) return code;
  if (const int code = conversation.ask_for_list({{"command", "clients"}}, "clients", std::nullopt, listed);
      code != kExitDone)
    return code;
  if (const int code = find_process(meant, listed["clients"], lanes); code != kExitDone) return code;
  const json process = lanes.front();
  show_lanes(arguments, lanes);
  const char* question = "End it with SIGKILL? What it has not finished storing is lost.";
  if (const int code = confirm(arguments, question); code != kExitDone) return code;
  const json request = {{"command", "client.fence"}, {"pid", process["pid"]}, {"start_time", process["start_time"]}};
  json fenced;
  if (const int code = conversation.ask(request, fenced); code != kExitDone) return code;
  int code = kExitDone;
  const bool is_gone = wait_for_end(arguments, conversation, process, code);
  if (code != kExitDone) return code;
  fenced["taken_back"] = is_gone;
  if (arguments.json) print_json(fenced);
  if (!is_gone)
    return complain(kExitRefused, process_text(process) +
                                      " got SIGKILL and has not ended yet (the kernel is busy on its behalf): "
                                      "what it holds is taken back as soon as it has");
  if (!arguments.json) print_fenced(fenced);
  return kExitDone;
}

int client_forget(const Arguments& arguments) {
  Meant meant = {std::nullopt, std::nullopt, ""};
  if (const int code = read_lane(arguments, "client forget", meant.lane); code != kExitDone) return code;
  Conversation conversation(arguments);
  json listed, lanes = json::array();
  if (const int code = pool_meant(arguments, conversation, meant.pool); code != kExitDone) return code;
  if (const int code = conversation.ask_for_list({{"command", "clients"}}, "clients", std::nullopt, listed);
      code != kExitDone)
    return code;
  for (const json& client : listed["clients"])
    if (meant.is(client)) lanes.push_back(client);
  if (lanes.empty()) return complain(kExitRefused, meant.why_nobody());
  json request = {{"command", "client.forget"}, {"pool", meant.pool}, {"lane", *meant.lane}};
  request["generation"] = lanes.front().value("generation", uint64_t{0});
  show_lanes(arguments, lanes);
  // A request that marud refuses needs no question.
  const bool may_be_forgotten = lanes.front().value("state", "") == "unproven";
  const char* question = "Is its process gone for certain? If it lives, it destroys what others store.";
  if (may_be_forgotten)
    if (const int code = confirm(arguments, question); code != kExitDone) return code;
  json taken;
  if (const int code = conversation.ask(request, taken); code != kExitDone) return code;
  if (arguments.json)
    print_json(taken);
  else
    print_taken(taken);
  return kExitDone;
}

}  // namespace maru::marudctl
