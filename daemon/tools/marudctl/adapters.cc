// marudctl adapters: the LoRA adapters that users have in a pool. It reads their registers as files, without the lock, so that
// a look holds up no process. It asks marud how many pins a form has.
#include "daemon/base/adapter_files.h"
#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"
#include "libmaru/adapters/part_keys.h"
#include "libmaru/adapters/residency.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;
using namespace maru::adapters;

constexpr uint64_t kAdaptersShown = 100;
constexpr uint32_t kEntriesAtOnce = 1024;

bool read_exactly(int fd, void* to, size_t bytes, uint64_t offset) {
  return ::pread(fd, to, bytes, off_t(offset)) == ssize_t(bytes);
}

std::string hex_key(const PartDigest& digest) {
  std::string text = "0x";
  constexpr char kDigits[] = "0123456789abcdef";
  for (const uint8_t byte : digest) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

// The row of a live entry. "deepest" is the key of the form's last part; a pin of this part holds all parts.
json row_of(const Entry& entry, const Head& head, uint32_t uid, uint64_t now_ms) {
  const auto text_in = [](const char* text, size_t room) { return std::string(text, ::strnlen(text, room)); };
  json row = {{"adapter", text_in(entry.name, sizeof(entry.name))},
              {"folder", text_in(entry.folder, sizeof(entry.folder))},
              {"uid", uid},
              {"form", "cold"},
              {"rank", entry.rank},
              {"modules", entry.modules},
              {"uses", window_uses(entry, head.rules, now_ms)},
              {"file_bytes", entry.file_bytes},
              {"pool_bytes", 0}};
  for (const Form form : {Form::kWarm, Form::kHot}) {
    const uint32_t at = index_of(form), parts = entry.form_parts[at];
    if ((entry.resident.load(std::memory_order_relaxed) >> at & 1) == 0 || parts == 0) continue;
    row["form"] = form == Form::kHot ? "hot" : "warm";
    row["pool_bytes"] = number(row, "pool_bytes") + entry.form_bytes[at];
    row["deepest"] = hex_key(part_digest(entry, form, head.part_bytes, parts - 1));
  }
  return row;
}

// Appends the adapters of a register. Returns the fault of a bad register; empty: it is good.
std::string read_register(int fd, uint32_t uid, json& rows) {
  alignas(Head) std::byte head_bytes[sizeof(Head)];
  const Head& head = *reinterpret_cast<const Head*>(head_bytes);
  if (!read_exactly(fd, head_bytes, sizeof(head_bytes), 0) || head.magic != kRegisterMagic) return "is no register";
  if (head.version != kRegisterVersion) return "is of another version than marudctl";
  const Places places = places_of(head.entries_max);
  struct stat status = {};
  if (head.entries_max == 0 || head.entries_max > MARU_ADAPTERS_ENTRIES_MAX || head.rules.window_ms == 0 ||
      ::fstat(fd, &status) != 0 || places.bytes != uint64_t(status.st_size))
    return "is damaged";
  const uint32_t used = std::min(head.entries_used, head.entries_max);
  // Reads twice: when another adapter took the place of an entry meanwhile, the entry's life differs.
  std::vector<Entry> first(kEntriesAtOnce), second(kEntriesAtOnce);
  const uint64_t now_ms = monotonic_ms();
  for (uint32_t from = 0; from < used; from += kEntriesAtOnce) {
    const uint32_t count = std::min(kEntriesAtOnce, used - from);
    for (std::vector<Entry>* const entries : {&first, &second})
      if (!read_exactly(fd, static_cast<void*>(entries->data()), count * sizeof(Entry),
                        places.entries + uint64_t{from} * sizeof(Entry)))
        return "became shorter meanwhile";
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t life = first[i].life.load(std::memory_order_relaxed);
      if ((life & 1) != 0 && second[i].life.load(std::memory_order_relaxed) == life)
        rows.push_back(row_of(second[i], head, uid, now_ms));
    }
  }
  return {};
}

// The forms' pins; of a form that marud has evicted "evicted" instead.
int add_pins(Conversation& conversation, const std::string& pool, json& row) {
  const std::string key = text(row, "deepest");
  row.erase("deepest");
  if (key.empty()) return kExitDone;
  json reply;
  conversation.be_silent(true);
  const int code = conversation.ask({{"command", "block"}, {"pool", pool}, {"key", key}}, reply);
  conversation.be_silent(false);
  if (code == kExitDone)
    row["pins"] = number(reply, "pinned_by_count");
  else if (conversation.refused_with() == ENOENT)
    row["form"] = "evicted", row["pool_bytes"] = 0;
  else
    return complain(code, conversation.said());
  return kExitDone;
}

std::string sentence_of(const json& user) {
  const auto share = [&](const char* name) {
    char digits[16];
    std::snprintf(digits, sizeof(digits), "%.1f %%", 100 * user.value(name, 0.0));
    return std::string(digits);
  };
  const auto count = [&](const char* name) { return std::to_string(number(user, name)); };
  const auto size = [&](const char* name) { return daemon::size_text(number(user, name)); };
  return "user " + count("uid") + ": " + count("adapters") + " adapters, " + count("hot_adapters") + " HOT (" +
         size("hot_bytes") + "), " + count("warm_adapters") + " WARM (" + size("warm_bytes") + "); " +
         share("hot_ratio") + " of uses found HOT, " + share("warm_ratio") + " WARM; " + count("loads") + " loads (" +
         count("tier_loads") + " from a tier) of " + size("loaded_bytes") + ", " + count("promotions") +
         " promotions, " + count("demotions") + " demotions, " + count("evicted") + " evicted";
}

}  // namespace

int adapters(const Arguments& arguments) {
  Conversation conversation(arguments);
  std::string pool;
  if (const int code = pool_meant(arguments, conversation, pool); code != kExitDone) return code;
  json status;
  if (const int code = conversation.ask_for_list({{"command", "status"}}, "pools", std::nullopt, status);
      code != kExitDone)
    return code;
  const auto found = std::find_if(status["pools"].begin(), status["pools"].end(),
                                  [&](const json& row) { return text(row, "name") == pool; });
  if (found == status["pools"].end() || text(*found, "uuid").empty())
    return complain(kExitRefused, "the pool \"" + pool + "\" does not serve; see marudctl status");
  const std::string uuid = text(*found, "uuid");
  std::vector<daemon::UserAdapterFile> registers;
  if (arguments.operands.empty()) {
    registers = daemon::adapter_files_of(uuid, "");
  } else {
    const std::string& path = arguments.operands.front();
    FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat own = {};
    if (!file.is_open() || ::fstat(file.get(), &own) != 0)
      return complain(kExitRefused, "cannot open the register " + path + ": " + std::strerror(errno));
    registers.push_back({own.st_uid, path, std::move(file)});
  }
  json rows = json::array();
  for (const daemon::UserAdapterFile& one : registers) {
    const std::string wrong = one.file.is_open() ? read_register(one.file.get(), one.uid, rows)
                                                 : "may be read by user " + std::to_string(one.uid) + " and root alone";
    if (!wrong.empty()) complain(kExitDone, one.path + " " + wrong);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const json& a, const json& b) { return number(a, "uses") > number(b, "uses"); });
  const size_t limit = arguments.limit.value_or(kAdaptersShown);
  const bool is_cut = rows.size() > limit;
  if (is_cut) rows.erase(rows.begin() + ptrdiff_t(limit), rows.end());
  for (json& row : rows)
    if (const int code = add_pins(conversation, pool, row); code != kExitDone) return code;
  const json users = daemon::adapter_users_of(uuid);
  if (arguments.json) return print_json({{"adapters", rows}, {"users", users}}), kExitDone;
  print(table_text(rows, {"adapter", "uid", "form", "rank", "uses", "pins", "pool_bytes", "file_bytes", "folder"},
                   "no register of the pool has an adapter", line_width()));
  if (is_cut) print(kMoreText);
  for (const json& user : users)
    print(wrapped(sentence_of(user), "", line_width() != 0 ? line_width() : std::string::npos));
  return kExitDone;
}

}  // namespace maru::marudctl
