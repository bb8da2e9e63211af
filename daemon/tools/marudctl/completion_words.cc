#include "daemon/tools/marudctl/completion_words.h"

#include "daemon/base/plain_text.h"
#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/number_text.h"
#include "daemon/tools/marudctl/options.h"
#include "daemon/tools/marudctl/reply_fields.h"
#include "libmaru/wire/socket.h"

#include <algorithm>
#include <initializer_list>
#include <set>

namespace maru::marudctl {
namespace {

using nlohmann::json;

constexpr uint32_t kTimeoutMs = 1000;  // a person waits for a key to take effect
constexpr uint64_t kRowsMax = 500;

// The command line before the word that is being typed.
struct Line {
  Arguments arguments;  // where marud is, which pool, and the operands
  std::set<std::string> given;
  const Option* awaited = nullptr;  // the option whose value comes next
  bool is_operand = false;          // after "--" all words are
};

void set(const Option& option, const std::string& value, Arguments& arguments) {
  const std::string name = option.name;
  if (name == "socket") arguments.socket_path = value;
  if (name == "pool") arguments.pool = value;
  if (name == "timeout-ms") arguments.timeout_ms = uint32_t(read_number(value, 1, 3'600'000).value_or(kTimeoutMs));
}

Line read_line(const std::vector<std::string>& words) {
  Line line;
  line.arguments.socket_path = wire::default_socket_path();
  line.arguments.timeout_ms = kTimeoutMs;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (line.awaited) {
      set(*line.awaited, word, line.arguments);
      line.awaited = nullptr;
    } else if (line.is_operand || !word.starts_with("-")) {
      line.arguments.operands.push_back(word);
    } else if (word == "--") {
      line.is_operand = true;
    } else if (word.starts_with("--")) {
      const size_t equals = word.find('=');
      const Option* option = find_option(word.substr(2, equals == std::string::npos ? equals : equals - 2));
      if (!option) continue;
      line.given.insert(option->name);
      if (equals != std::string::npos)
        set(*option, word.substr(equals + 1), line.arguments);
      else if (option->value)
        line.awaited = option;
    }
  }
  return line;
}

std::vector<NextWord> all_of(std::initializer_list<const char*> words) {
  std::vector<NextWord> out;
  for (const char* word : words) out.push_back({word, ""});
  return out;
}

// The rows of a list that marud has; none when it does not answer.
json rows_of(const Arguments& arguments, const char* command, const char* field, bool is_long) {
  Conversation conversation(arguments);
  conversation.be_silent(true);
  json reply;
  const json request = {{"command", command}};
  const int code =
      is_long ? conversation.ask_for_list(request, field, kRowsMax, reply) : conversation.ask(request, reply);
  const auto found = reply.find(field);
  return code == kExitDone && found != reply.end() && found->is_array() ? *found : json::array();
}

std::vector<NextWord> pools(Arguments arguments) {
  arguments.pool.reset();
  std::vector<NextWord> out;
  for (const json& pool : rows_of(arguments, "status", "pools", true))
    out.push_back({text(pool, "name"), text(pool, "condition")});
  return out;
}

std::vector<NextWord> devices(const Arguments& arguments) {
  std::vector<NextWord> out;
  for (const json& row : rows_of(arguments, "device.list", "devices", false))
    out.push_back({text(row, "pool"), text(row, "condition")});
  return out;
}

std::vector<NextWord> tenants(const Arguments& arguments) {
  std::vector<NextWord> out;
  for (const json& row : rows_of(arguments, "quota.list", "tenants", true)) {
    const std::string name = text(row, "tenant");
    out.push_back({name.empty() ? tenant_text({{"tenant", row.value("id", json())}}) : name,
                   daemon::size_text(number(row, "used_bytes")) + " in use"});
  }
  return out;
}

std::vector<NextWord> policies(const Arguments& arguments) {
  std::vector<NextWord> out;
  for (const json& name : rows_of(arguments, "policy", "built_in", false))
    if (name.is_string()) out.push_back({name.get<std::string>(), ""});
  return out;
}

// Clients by pid or lane, each with a description. Lanes come from the pool that the command would choose.
std::vector<NextWord> clients(Arguments arguments, const char* name) {
  std::vector<NextWord> out;
  if (std::string(name) == "lane") {
    Conversation conversation(arguments);
    conversation.be_silent(true);
    std::string pool;
    if (pool_meant(arguments, conversation, pool) != kExitDone) return out;
    arguments.pool = pool;
  }
  for (const json& row : rows_of(arguments, "clients", "clients", true)) {
    const std::string other =
        std::string(name) == "lane" ? ", process " + std::to_string(number(row, "pid")) : ", " + text(row, "state");
    out.push_back({std::to_string(number(row, name)), text(row, "command") + other});
  }
  return out;
}

std::vector<NextWord> hosts(const Arguments& arguments) {
  std::vector<NextWord> out;
  for (const json& row : rows_of(arguments, "host.list", "hosts", false))
    out.push_back({std::to_string(number(row, "host")), text(row, "name") + " " + text(row, "state")});
  return out;
}

std::vector<NextWord> values(Word word, const Arguments& arguments) {
  switch (word) {
    case Word::kAny: return {};
    case Word::kPath:
    case Word::kPoolOrFile: return all_of({kPaths});
    case Word::kPool: return pools(arguments);
    case Word::kDevice: return devices(arguments);
    case Word::kTenant: return tenants(arguments);
    case Word::kPolicy: return policies(arguments);
    case Word::kLane: return clients(arguments, "lane");
    case Word::kProcess: return clients(arguments, "pid");
    case Word::kHost: return hosts(arguments);
    case Word::kContent: return all_of({"kv_cache", "lora_weight", "temporary", "activation", "gradient"});
    case Word::kLimit: return all_of({"none", "nothing", "default"});
    case Word::kMode: return all_of({"any", "listed"});
    case Word::kTierVerb: return all_of({"list", "set", "remove"});
    case Word::kStep: return all_of({"list", "plan", "apply", "release"});
    case Word::kShell: return all_of({"bash", "zsh", "fish", "words"});
  }
  return {};
}

// The words of commands that follow these; the purpose of each, or how it goes on.
std::vector<NextWord> command_words(const std::vector<std::string>& before) {
  std::vector<NextWord> out;
  const std::string beginning = before.empty() ? "" : before.front() + " ";
  for (const Command* command = kCommands; command->name; ++command) {
    const std::string name = command->name;
    if (!name.starts_with(beginning)) continue;
    const std::string rest = name.substr(beginning.size()), word = rest.substr(0, rest.find(' '));
    if (word == rest)
      out.push_back({word, command->help});
    else if (!out.empty() && out.back().word == word)
      out.back().help += ", " + rest.substr(word.size() + 1);
    else
      out.push_back({word, rest.substr(word.size() + 1)});
  }
  if (before.empty()) out.push_back({"help", "what there is, or what a command takes"});
  return out;
}

// The command that the operands begin with, which keep the words behind it; null when its name is not whole.
const Command* command_of(std::vector<std::string>& operands) {
  for (const Command* command = kCommands; command->name; ++command)
    for (const size_t words : {1, 2}) {
      if (operands.size() < words) continue;
      if ((words == 1 ? operands[0] : operands[0] + " " + operands[1]) != command->name) continue;
      operands.erase(operands.begin(), operands.begin() + ptrdiff_t(words));
      return command;
    }
  return nullptr;
}

std::vector<NextWord> option_words(const Command* command, const std::set<std::string>& given) {
  std::vector<NextWord> out;
  for (const Option& option : options()) {
    const bool is_taken = command ? takes(*command, option.name) : is_of_every_command(option);
    const bool is_over = given.count(option.name) != 0 && std::string(option.name) != "option";
    if (is_taken && !is_over) out.push_back({std::string("--") + option.name, option.help});
  }
  return out;
}

std::vector<NextWord> what_fits(const std::vector<std::string>& words) {
  Line line = read_line(words);
  const std::string now = words.empty() ? "" : words.back();
  if (line.awaited) return values(line.awaited->word, line.arguments);
  std::vector<std::string>& operands = line.arguments.operands;
  const bool is_help = !operands.empty() && operands.front() == "help";
  if (is_help) operands.erase(operands.begin());
  const std::vector<std::string> typed = operands;
  const Command* command = command_of(operands);
  if (!line.is_operand && now.starts_with("-")) {
    const size_t equals = now.find('=');
    if (equals == std::string::npos) return option_words(is_help ? nullptr : command, line.given);
    const Option* option = now.starts_with("--") ? find_option(now.substr(2, equals - 2)) : nullptr;
    if (!option || !option->value) return {};
    std::vector<NextWord> out = values(option->word, line.arguments);
    for (NextWord& next : out)
      if (next.word != kPaths) next.word = now.substr(0, equals + 1) + next.word;
    return out;
  }
  if (!command) return typed.size() < 2 ? command_words(typed) : std::vector<NextWord>();
  return is_help || !operands.empty() ? std::vector<NextWord>() : values(command->operand, line.arguments);
}

// The names of marud's clients must not steer the shell that reads them.
bool is_plain(const std::string& text) { return daemon::plain_text(text) == text; }

}  // namespace

std::vector<NextWord> next_words(const std::vector<std::string>& words) {
  std::vector<NextWord> out;
  std::set<std::string> seen;
  for (NextWord& next : what_fits(words)) {
    if (next.word.empty() || !is_plain(next.word) || !seen.insert(next.word).second) continue;
    if (!is_plain(next.help)) next.help.clear();
    out.push_back(std::move(next));
  }
  return out;
}

}  // namespace maru::marudctl
