#include "daemon/marudctl/commands.h"

#include "daemon/marudctl/output.h"
#include "daemon/version.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;

// Of the terminal; 0 when the output goes elsewhere, where nothing is shortened.
size_t line_width() {
  winsize size = {};
  return ::isatty(STDOUT_FILENO) && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void print_json(const json& value) { print(value.dump(2, ' ', false, json::error_handler_t::replace) + "\n"); }

int complain(int status, const std::string& text) {
  std::string line = text;
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  std::fprintf(stderr, "marudctl: %s\n", line.c_str());
  return status;
}

// One connection for all the requests of a command.
class Conversation {
 public:
  explicit Conversation(const Arguments& arguments) : arguments_(arguments) {}

  // Returns kExitDone and the reply, or says what went wrong and returns the exit status.
  int ask(json request, json& ret_reply) {
    if (!socket_.is_open()) {
      auto connected = wire::connect_to(arguments_.socket_path);
      if (!connected) return complain(kExitUnreachable, connected.error().text() + " (is marud running? see --socket)");
      socket_ = std::move(*connected);
    }
    if (arguments_.pool) request["pool"] = *arguments_.pool;
    const std::string text = request.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > wire::kPayloadBytesMax) return complain(kExitUsage, "the request is too long");
    const auto packet = wire::encode(wire::Type::kAdmin, ++last_id_, 0, std::as_bytes(std::span(text.data(), text.size())));
    auto sent = wire::send_packet(socket_.get(), packet, -1, arguments_.timeout_ms);
    if (!sent) return complain(kExitUnreachable, sent.error().text());
    auto received = wire::receive_packet(socket_.get(), arguments_.timeout_ms);
    if (!received) return complain(kExitUnreachable, received.error().text());
    const auto header = wire::decode_reply(received->bytes);
    if (!header) return complain(kExitUnreachable, header.error().text());
    if (header->request_id != last_id_) return complain(kExitUnreachable, "marud answered another request");
    const auto payload = wire::payload_of(received->bytes);
    const std::string_view body(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (header->status < 0)
      return complain(kExitRefused, body.empty() ? std::strerror(-header->status) : std::string(body));
    ret_reply = json::parse(body, nullptr, false);
    if (!ret_reply.is_object()) return complain(kExitUnreachable, "marud's reply is not a JSON object");
    return kExitDone;
  }

 private:
  const Arguments& arguments_;
  FileDescriptor socket_;
  uint32_t last_id_ = 0;
};

// Asks until there is no "next" or `limit` rows are there. Rows are joined under `field`.
int ask_for_list(const Arguments& arguments, json request, const char* field, std::optional<uint64_t> limit, json& ret_reply) {
  constexpr uint64_t kPartMax = 200;
  Conversation conversation(arguments);
  json rows = json::array();
  while (true) {
    const uint64_t left = limit ? *limit - rows.size() : kPartMax;
    if (left == 0) break;
    request["limit"] = std::min(left, kPartMax);
    json part;
    if (const int status = conversation.ask(request, part); status != kExitDone) return status;
    const auto found = part.find(field);
    if (found != part.end() && found->is_array())
      for (json& row : *found) rows.push_back(std::move(row));
    const json next = part.value("next", json());
    part[field] = json::array();
    ret_reply = std::move(part);
    // A cursor that does not move would be asked for ever.
    const bool is_end = next.is_null() || (request.contains("cursor") && request["cursor"] == next);
    if (is_end || (limit && rows.size() >= *limit)) break;
    request["cursor"] = next;
  }
  ret_reply[field] = std::move(rows);
  return kExitDone;
}

int status(const Arguments& arguments) {
  json reply;
  if (const int code = Conversation(arguments).ask({{"command", "status"}}, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  json pools = std::move(reply["pools"]);
  reply.erase("pools");
  print(fields_text(reply, {"version", "pid", "uptime_ms", "connections", "lanes"}));
  for (const json& pool : pools) {
    if (arguments.pool && pool.value("name", "") != *arguments.pool) continue;
    print("\n" + fields_text(pool, {"name", "condition", "reason", "backend", "device", "uuid", "epoch", "pool_bytes",
                                    "control_bytes", "page_bytes", "pages", "region_bytes", "regions", "lanes"}));
  }
  return kExitDone;
}

int list(const Arguments& arguments, json request, const char* field, std::initializer_list<const char*> columns,
         std::optional<uint64_t> limit, const char* when_empty) {
  json reply;
  if (const int code = ask_for_list(arguments, std::move(request), field, limit, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  print(table_text(reply[field], columns, when_empty, line_width()));
  if (reply.contains("next") && !reply["next"].is_null()) print("... and more: --limit says how many are shown\n");
  return kExitDone;
}

int clients(const Arguments& arguments) {
  return list(arguments, {{"command", "clients"}}, "clients",
              {"pid", "command", "uid", "pool", "lane", "state", "since_ms", "pins", "regions"}, std::nullopt,
              "no process is attached");
}

int regions(const Arguments& arguments) {
  return list(arguments, {{"command", "regions"}}, "regions",
              {"region", "state", "lane", "pid", "pages", "free_pages", "used_pages", "listed_blocks"}, std::nullopt,
              "the pool has no region");
}

int pins(const Arguments& arguments) {
  return list(arguments, {{"command", "pins"}}, "pins", {"pid", "command", "uid", "lane", "age_ms", "page", "key"},
              arguments.limit, "nothing is pinned");
}

// Names one block.
json about_key(const Arguments& arguments, const char* command) {
  json request = {{"command", command}, {"key", arguments.operands.front()}};
  if (arguments.tenant) request["tenant"] = *arguments.tenant;
  return request;
}

int blocks(const Arguments& arguments) {
  if (!arguments.operands.empty()) {
    json reply;
    const json request = about_key(arguments, "block");
    if (const int code = Conversation(arguments).ask(request, reply); code != kExitDone) return code;
    if (arguments.json) return print_json(reply), kExitDone;
    print(fields_text(reply, {"key", "state", "length_bytes", "page", "pages", "generation", "parent", "children"}));
    return kExitDone;
  }
  if (arguments.tenant) return complain(kExitUsage, "--tenant belongs to a KEY");
  json request = {{"command", "blocks"}};
  if (arguments.prefix) request["prefix"] = *arguments.prefix;
  constexpr uint64_t kShownByDefault = 100;
  return list(arguments, std::move(request), "blocks",
              {"key", "state", "page", "length_bytes", "children", "last_use_ms", "tenant"},
              arguments.limit.value_or(kShownByDefault), "no such block");
}

int evict(const Arguments& arguments) {
  char* end = nullptr;
  const std::string& text = arguments.operands.front();
  const uint64_t pages = std::strtoull(text.c_str(), &end, 10);
  if (text.front() == '-' || *end != 0 || pages == 0) return complain(kExitUsage, "PAGES is a number above zero");
  json reply;
  const int code = Conversation(arguments).ask({{"command", "evict"}, {"pages", pages}}, reply);
  if (code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  print(fields_text(reply, {}));
  return kExitDone;
}

int delete_tree(const Arguments& arguments) {
  json reply;
  if (const int code = Conversation(arguments).ask(about_key(arguments, "delete_tree"), reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  print(fields_text(reply, {}));
  return kExitDone;
}

int clear(const Arguments& arguments) {
  if (!arguments.yes) return complain(kExitUsage, "clear removes every block of the pool; confirm with --yes");
  json reply;
  if (const int code = Conversation(arguments).ask({{"command", "clear"}}, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  print(fields_text(reply, {}));
  return kExitDone;
}

int check(const Arguments& arguments) {
  if (arguments.file) return check_file(*arguments.file, arguments.json);
  json reply;
  const json request = {{"command", "check"}, {"quiesce", arguments.quiesce}};
  if (const int code = Conversation(arguments).ask(request, reply); code != kExitDone) return code;
  const auto found = reply.find("violations");
  const bool is_clean = found == reply.end() || (found->is_array() && found->empty()) || *found == 0;
  if (arguments.json) {
    print_json(reply);
  } else {
    if (found != reply.end()) print_violations(*found);
    reply.erase("violations");
    print(fields_text(reply, {}));
    print(is_clean ? "no violation found\n" : "the control region violates its invariants\n");
  }
  return is_clean ? kExitDone : kExitViolations;
}

int version(const Arguments& arguments) {
  if (arguments.json)
    print_json({{"version", daemon::kVersionText}});
  else
    print(std::string("marudctl ") + daemon::kVersionText + "\n");
  return kExitDone;
}

}  // namespace

const Command kCommands[] = {
    {"status", "", "marud and its pools", "", 0, 0, status},
    {"clients", "", "processes that hold lanes: connected, or frozen until they end", "", 0, 0, clients},
    {"regions", "", "regions of the pool, and who rents them", "", 0, 0, regions},
    {"blocks", "[--limit N] [--prefix TEXT|0xHEX] | KEY [--tenant N]",
     "blocks of the pool (100 unless told), or the one under KEY in full", "limit prefix tenant", 0, 1, blocks},
    {"pins", "[--limit N]", "pinned blocks: by whom, for how long (\"-\": not known yet)", "limit", 0, 0, pins},
    {"evict", "PAGES", "evict the coldest blocks that nobody uses until PAGES more pages are free", "", 1, 1, evict},
    {"delete-tree", "KEY [--tenant N]", "remove a block and all that is below it, as far as it is not pinned", "tenant",
     1, 1, delete_tree},
    {"clear", "--yes", "remove every block; of a pinned one the key now, the memory later", "yes", 0, 0, clear},
    {"check", "[--quiesce] [--file PATH]", "audit the control region: live, at rest, or in a file without marud",
     "quiesce file", 0, 0, check},
    {"version", "", "of marudctl", "", 0, 0, version},
    {nullptr, nullptr, nullptr, nullptr, 0, 0, nullptr},
};

}  // namespace maru::marudctl
