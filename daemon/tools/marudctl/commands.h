// The commands of marudctl: each is one function in one table.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace maru::marudctl {

enum ExitStatus : int {
  kExitDone = 0,
  kExitRefused = 1,      // marud said no, the thing is not there, or the output cannot be written
  kExitUsage = 2,        // the command line is wrong
  kExitUnreachable = 3,  // no marud, or it does not answer
  kExitViolations = 4,   // check found damage
};

// Between two looks of `top`.
constexpr uint64_t kIntervalMinMs = 100, kIntervalMaxMs = 60'000;

struct Arguments {
  std::string socket_path;
  std::optional<std::string> pool;
  bool json = false;
  uint32_t timeout_ms = 10'000;
  // Options of single commands; the table says which command takes which option.
  std::optional<uint64_t> limit;
  std::optional<std::string> prefix;
  std::optional<std::string> tenant;  // a name, or id:NUMBER
  std::optional<std::string> type;
  std::optional<uint64_t> min_priority;
  bool pinned = false;
  bool overdue = false;
  std::optional<uint64_t> pid;
  std::vector<std::string> policy_options;  // "NAME=VALUE"
  std::optional<std::string> soft, hard;    // a size, "none", "nothing" or "default"
  std::optional<std::string> file;
  std::optional<std::string> pages;  // a path
  std::optional<std::string> config;
  bool force = false;
  bool quiesce = false;
  bool yes = false;
  bool once = false;
  std::optional<uint64_t> interval_ms;
  std::optional<std::string> output;  // a path
  bool keys = false;
  bool fence = false;
  std::optional<uint64_t> deadline_s;
  std::vector<std::string> operands;
};

// The kind of a word on the command line, for the completion.
enum class Word : uint8_t {
  kAny,
  kPath,
  kPool,
  kDevice,      // a pool that marud lists among its devices
  kPoolOrFile,  // one to be added
  kTenant,
  kPolicy,
  kLane,
  kProcess,
  kHost,
  kContent,
  kLimit,  // of a quota
  kMode,   // of quotas
  kStep,   // of provisioning
  kTierVerb,
  kShell,
};

struct Command {
  const char* name;     // one word or two
  const char* usage;    // the words that follow the name
  const char* help;     // one line
  const char* options;  // the long options it takes, separated by spaces
  int operands_min;
  int operands_max;
  Word operand;  // the first
  int (*run)(const Arguments& arguments);
};

// Ends with a command without a name.
extern const Command kCommands[];

int adapters(const Arguments& arguments);      // adapters.cc
int client_fence(const Arguments& arguments);  // client_fence.cc
int client_forget(const Arguments& arguments);
int completion(const Arguments& arguments);    // completion.cc
int doctor(const Arguments& arguments);        // doctor.cc
int support_dump(const Arguments& arguments);  // support_dump.cc
int top(const Arguments& arguments);           // top.cc
int watch(const Arguments& arguments);         // watch.cc
int device_list(const Arguments& arguments);   // device.cc
int device_add(const Arguments& arguments);
int device_drain(const Arguments& arguments);
int device_cancel(const Arguments& arguments);
int device_remove(const Arguments& arguments);
int policy_show(const Arguments& arguments);  // policy.cc
int policy_set(const Arguments& arguments);
// "s3fifo (probation=0.5)", from an object with "policy" and "policy_options". Names are printable.
std::string policy_text(const nlohmann::json& policy);
int host_list(const Arguments& arguments);  // hosts.cc
int host_declare_dead(const Arguments& arguments);
int quota_set(const Arguments& arguments);  // quota.cc
int quota_get(const Arguments& arguments);
int quota_list(const Arguments& arguments);
int quota_remove(const Arguments& arguments);
int quota_default(const Arguments& arguments);
int quota_mode(const Arguments& arguments);
int tier_list(const Arguments& arguments);  // tier.cc
int tier_status(const Arguments& arguments);
int tier_quota(const Arguments& arguments);
int tier_drain(const Arguments& arguments);
int tier_clear(const Arguments& arguments);

int record(const Arguments& arguments);  // record.cc; does not return when the program runs

int provision(const Arguments& arguments);  // provision.cc; does not return when the other program runs

// Audits a file that holds a pool, opened for reading only. `pages_path` names the pages' file when a second file holds them.
// Prints the findings. check_file.cc.
int check_file(const std::string& path, const std::optional<std::string>& pages_path, bool json);
// The rows of a report, one line each.
void print_violations(const nlohmann::json& rows);

}  // namespace maru::marudctl
