#include "daemon/tools/marudctl/options.h"

#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/near_match.h"
#include "daemon/tools/marudctl/number_text.h"

#include <algorithm>
#include <cstdint>
#include <getopt.h>
#include <iterator>
#include <sys/un.h>

namespace maru::marudctl {
namespace {

enum Flag : int {
  kSocket = 256,  // above all letters
  kPool,
  kJson,
  kTimeout,
  kOfEveryCommand,  // none: the flags above, and letters, belong to every command
  kLimit,
  kPrefix,
  kTenant,
  kType,
  kMinPriority,
  kPinned,
  kOverdue,
  kPid,
  kOption,
  kSoft,
  kHard,
  kQuiesce,
  kFile,
  kPages,
  kConfig,
  kForce,
  kYes,
  kOnce,
  kIntervalMs,
  kOutput,
  kKeys,
  kFence,
  kDeadline,
};

constexpr Option kOptions[] = {
    {"socket", "PATH", Word::kPath, "the socket of marud", kSocket},
    {"pool", "NAME", Word::kPool, "the pool (default: the only one, or that named \"default\")", kPool},
    {"json", nullptr, Word::kAny, "print marud's reply as JSON", kJson},
    {"timeout-ms", "N", Word::kAny, "wait for marud at most so long (default: 10000)", kTimeout},
    {"help", nullptr, Word::kAny, "this text", 'h'},
    {"version", nullptr, Word::kAny, "the version of marudctl", 'V'},
    {"limit", "N", Word::kAny, "how many rows are shown", kLimit},
    {"prefix", "TEXT|0xHEX", Word::kAny, "what the keys begin with", kPrefix},
    {"tenant", "TENANT", Word::kTenant, "whose blocks, or whose key", kTenant},
    {"type", "TYPE", Word::kContent, "what the blocks hold", kType},
    {"min-priority", "N", Word::kAny, "the least priority that is shown", kMinPriority},
    {"pinned", nullptr, Word::kAny, "only blocks that are pinned", kPinned},
    {"overdue", nullptr, Word::kAny, "only pins that are overdue", kOverdue},
    {"pid", "PID", Word::kProcess, "the process", kPid},
    {"option", "NAME=VALUE", Word::kAny, "an option of the policy; may be given several times", kOption},
    {"soft", "SIZE", Word::kLimit, "over it, blocks are evicted before those of others", kSoft},
    {"hard", "SIZE", Word::kLimit, "at it, stores are refused", kHard},
    {"quiesce", nullptr, Word::kAny, "also what holds only when nobody is at work", kQuiesce},
    {"file", "PATH", Word::kPath, "a pool in a file, without marud", kFile},
    {"pages", "PATH", Word::kPath, "the file with its pages, when it is another one", kPages},
    {"config", "FILE", Word::kPath, "the configuration of marud (default: /etc/marud/marud.toml)", kConfig},
    {"force", nullptr, Word::kAny, "do it although something speaks against it", kForce},
    {"yes", nullptr, Word::kAny, "that it is meant", kYes},
    {"once", nullptr, Word::kAny, "one picture instead of a live one", kOnce},
    {"interval-ms", "N", Word::kAny, "how often it looks (default: 1000)", kIntervalMs},
    {"output", "PATH", Word::kPath, "where to write; - prints it", kOutput},
    {"keys", nullptr, Word::kAny, "with keys of blocks and names of tenants", kKeys},
    {"fence", nullptr, Word::kAny, "end clients that stay, with SIGKILL", kFence},
    {"deadline", "S", Word::kAny, "for how many seconds clients are waited for (default: 60)", kDeadline},
};

std::vector<option> for_getopt() {
  std::vector<option> out;
  for (const Option& one : kOptions)
    out.push_back({one.name, one.value ? required_argument : no_argument, nullptr, one.flag});
  out.push_back({nullptr, 0, nullptr, 0});
  return out;
}

int complain_of_usage(const std::string& text) { return complain(kExitUsage, text + "; see marudctl --help"); }

const Option& with_flag(int flag) {
  return *std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& one) { return one.flag == flag; });
}

// getopt_long found `word`, which begins with "--", to be no option, or the beginning of several.
int complain_of_name(const std::string& word) {
  const std::string name = word.substr(2, word.find('=') - 2);
  std::vector<std::string> names, meant;
  for (const Option& one : kOptions) names.emplace_back(one.name);
  for (const std::string& known : names)
    if (known.starts_with(name)) meant.push_back(known);
  const bool is_short = !meant.empty();
  if (!is_short) meant = near_matches(name, names);
  std::string text;
  for (const std::string& one : meant) text += (text.empty() ? "--" : ", --") + one;
  if (is_short) return complain_of_usage("--" + name + " is the beginning of several options: " + text);
  if (text.empty()) return complain_of_usage("--" + name + " is no option");
  return complain(kExitUsage, "--" + name + " is no option, did you mean " + text + "?");
}

// A word that getopt_long did not take: `letter` is its optopt.
int complain_of_option(int found, int letter, const std::string& word) {
  if (letter == 0) return complain_of_name(word);
  const bool is_ours = letter > UINT8_MAX || letter == 'h' || letter == 'V';
  if (!is_ours) return complain_of_usage(std::string("-") + char(letter) + " is no option");
  const Option& one = with_flag(letter);
  if (found == ':') return complain_of_usage(std::string("--") + one.name + " lacks its value, " + one.value);
  return complain_of_usage(std::string("--") + one.name + " takes no value");
}

// Of the option just read. Returns the exit status.
int read_value(const Option& one, const std::string& text, Arguments& arguments) {
  const std::string name = std::string("--") + one.name;
  if (text.empty()) return complain_of_usage(name + ": found nothing, expected " + one.value);
  int code = kExitDone;
  const auto number = [&](uint64_t least, uint64_t most) {
    const auto value = read_number(text, least, most);
    if (!value) code = complain_of_usage(number_mistake(name, text, least, most));
    return value.value_or(0);
  };
  switch (one.flag) {
    case kSocket:
      if (text.size() >= sizeof(sockaddr_un::sun_path))
        return complain_of_usage(name + ": found a path of " + std::to_string(text.size()) +
                                 " bytes, expected at most " + std::to_string(sizeof(sockaddr_un::sun_path) - 1));
      arguments.socket_path = text;
      break;
    case kPool: arguments.pool = text; break;
    case kTimeout: arguments.timeout_ms = uint32_t(number(1, 3'600'000)); break;
    case kLimit: arguments.limit = number(1, UINT32_MAX); break;
    case kPrefix: arguments.prefix = text; break;
    case kTenant: arguments.tenant = text; break;
    case kType: arguments.type = text; break;
    case kMinPriority: arguments.min_priority = number(0, UINT32_MAX); break;
    case kPid: arguments.pid = number(1, INT32_MAX); break;
    case kOption: arguments.policy_options.push_back(text); break;
    case kSoft: arguments.soft = text; break;
    case kHard: arguments.hard = text; break;
    case kFile: arguments.file = text; break;
    case kPages: arguments.pages = text; break;
    case kConfig: arguments.config = text; break;
    case kIntervalMs: arguments.interval_ms = number(kIntervalMinMs, kIntervalMaxMs); break;
    case kOutput: arguments.output = text; break;
    case kDeadline: arguments.deadline_s = number(1, 86'400); break;
    default: break;
  }
  return code;
}

void set_flag(int flag, Arguments& arguments, Asked& asked) {
  switch (flag) {
    case kJson: arguments.json = true; break;
    case 'h': asked.help = true; break;
    case 'V': asked.version = true; break;
    case kPinned: arguments.pinned = true; break;
    case kOverdue: arguments.overdue = true; break;
    case kQuiesce: arguments.quiesce = true; break;
    case kForce: arguments.force = true; break;
    case kYes: arguments.yes = true; break;
    case kOnce: arguments.once = true; break;
    case kKeys: arguments.keys = true; break;
    case kFence: arguments.fence = true; break;
    default: break;
  }
}

}  // namespace

std::span<const Option> options() { return kOptions; }
bool is_of_every_command(const Option& option) { return option.flag < kOfEveryCommand; }

const Option* find_option(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& one) { return one.name == name; });
  return found == std::end(kOptions) ? nullptr : found;
}

bool takes(const Command& command, const std::string& name) {
  const Option* option = find_option(name);
  if (option && is_of_every_command(*option)) return true;
  return (" " + std::string(command.options) + " ").find(" " + name + " ") != std::string::npos;
}

int read_command_line(int count, char** values, Arguments& ret_arguments, Asked& ret_asked) {
  const std::vector<option> known = for_getopt();
  opterr = 0;
  while (true) {
    const int flag = ::getopt_long(count, values, ":hV", known.data(), nullptr);
    if (flag < 0) break;
    if (flag == ':' || flag == '?') return complain_of_option(flag, optopt, values[optind - 1]);
    const Option& one = with_flag(flag);
    if (one.value) {
      if (const int code = read_value(one, optarg, ret_arguments); code != kExitDone) return code;
    } else {
      set_flag(flag, ret_arguments, ret_asked);
    }
    if (!is_of_every_command(one)) ret_asked.special.emplace_back(one.name);
  }
  ret_arguments.operands.assign(values + optind, values + count);
  return kExitDone;
}

}  // namespace maru::marudctl
