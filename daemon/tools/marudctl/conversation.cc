#include "daemon/tools/marudctl/conversation.h"

#include "daemon/base/json_text.h"
#include "daemon/base/plain_text.h"
#include "daemon/tools/marudctl/output.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sys/ioctl.h>
#include <unistd.h>

namespace maru::marudctl {

using nlohmann::json;

namespace {

bool says_errors_in_json = false;

}  // namespace

uint64_t monotonic_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1'000'000;
}

size_t line_width() {
  winsize size = {};
  return ::isatty(STDOUT_FILENO) && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void print(const std::string& text) {
  const std::string plain = daemon::plain_text(text, std::string::npos, "\n\t");
  std::fwrite(plain.data(), 1, plain.size(), stdout);
}

std::string printable_json(const json& value, int indent) {
  const std::string text = daemon::json_text(value, indent);
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto next = static_cast<unsigned char>(at + 1 < text.size() ? text[at + 1] : 0);
    const bool is_c1 = byte == 0xC2 && next < 0xA0;  // U+0080 to U+009F, which only a text can hold
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", is_c1 ? unsigned(next) : unsigned(byte));
    if (is_c1 || byte == 0x7F)
      out += escaped;
    else
      out += text[at];
    at += is_c1;
  }
  return out;
}

void print_json(const json& value) { print(printable_json(value, 2) + "\n"); }

void complain_in_json(bool is_in_json) { says_errors_in_json = is_in_json; }

int complain(int status, const std::string& text) {
  if (says_errors_in_json)
    std::fprintf(stderr, "%s\n", printable_json({{"error", text}, {"status", status}}, -1).c_str());
  else
    std::fprintf(stderr, "marudctl: %s\n", daemon::plain_text(text).c_str());
  return status;
}

int Conversation::fail(int status, const std::string& text) {
  said_ = text;
  return is_silent_ ? status : complain(status, text);
}

int Conversation::ask(json request, json& ret_reply) {
  refused_with_ = 0;
  if (!socket_.is_open()) {
    auto connected = wire::connect_to(arguments_.socket_path, arguments_.timeout_ms);
    if (!connected && connected.error().code == EACCES)
      return fail(kExitRefused,
                  connected.error().text() + " (this user may not use the socket: its owner and group may, and root)");
    if (!connected) return fail(kExitUnreachable, connected.error().text() + " (is marud running? see --socket)");
    socket_ = std::move(*connected);
  }
  if (arguments_.pool) request["pool"] = *arguments_.pool;
  const std::string text = daemon::json_text(request);
  if (text.size() > wire::kPayloadBytesMax) return fail(kExitUsage, "the request is too long");
  const auto packet =
      wire::encode(wire::Type::kAdmin, ++last_id_, 0, std::as_bytes(std::span(text.data(), text.size())));
  auto sent = wire::send_packet(socket_.get(), packet, -1, arguments_.timeout_ms);
  if (!sent) return fail(kExitUnreachable, sent.error().text());
  auto received = wire::receive_packet(socket_.get(), arguments_.timeout_ms);
  if (!received) return fail(kExitUnreachable, received.error().text());
  const auto foreign = [&](const std::string& what) {
    return fail(kExitUnreachable, "what answers on " + arguments_.socket_path +
                                      " is no marud of this version: " + what + " (see --socket)");
  };
  const auto header = wire::decode_reply(received->bytes);
  if (!header) return foreign(header.error().text());
  if (header->request_id != last_id_) return foreign("it answered another request");
  const auto payload = wire::payload_of(received->bytes);
  const std::string_view body(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (header->status < 0) refused_with_ = -header->status;
  if (refused_with_ != 0) return fail(kExitRefused, body.empty() ? std::strerror(refused_with_) : std::string(body));
  ret_reply = daemon::json_of(body);
  if (!ret_reply.is_object()) return foreign("its reply is not a JSON object");
  return kExitDone;
}

int Conversation::ask_for_list(json request, const char* field, std::optional<uint64_t> limit, json& ret_reply) {
  constexpr uint64_t kPartMax = 200;
  json rows = json::array();
  while (true) {
    const uint64_t left = limit ? *limit - rows.size() : kPartMax;
    if (left == 0) break;
    request["limit"] = std::min(left, kPartMax);
    json part;
    if (const int status = ask(request, part); status != kExitDone) return status;
    const auto found = part.find(field);
    if (found != part.end() && found->is_array())
      for (json& row : *found) rows.push_back(std::move(row));
    const json next = part.value("next", json());
    part[field] = json::array();
    if (ret_reply.is_object()) ret_reply.erase("next");
    ret_reply.update(part);  // fields of the first part alone stay
    // A cursor that does not move would be asked for ever.
    const bool is_end = next.is_null() || (request.contains("cursor") && request["cursor"] == next);
    if (is_end || (limit && rows.size() >= *limit)) break;
    request["cursor"] = next;
  }
  ret_reply[field] = std::move(rows);
  return kExitDone;
}

int pool_meant(const Arguments& arguments, Conversation& conversation, std::string& ret_pool) {
  ret_pool = arguments.pool.value_or("default");
  if (arguments.pool) return kExitDone;
  json status;
  const int code = conversation.ask_for_list({{"command", "status"}}, "pools", std::nullopt, status);
  if (code == kExitDone && status["pools"].size() == 1) ret_pool = status["pools"].front().value("name", ret_pool);
  return code;
}

int print_fields(const Arguments& arguments, json request, std::initializer_list<const char*> first) {
  json reply;
  if (const int code = Conversation(arguments).ask(std::move(request), reply); code != kExitDone) return code;
  if (arguments.json)
    print_json(reply);
  else
    print(fields_text(reply, first, line_width()));
  return kExitDone;
}

int print_list(const Arguments& arguments, json request, const char* field, std::initializer_list<const char*> columns,
               std::optional<uint64_t> limit, const char* when_empty, void (*for_people)(json& row)) {
  json reply;
  if (const int code = Conversation(arguments).ask_for_list(std::move(request), field, limit, reply); code != kExitDone)
    return code;
  if (arguments.json) return print_json(reply), kExitDone;
  for (json& row : reply[field])
    if (for_people && row.is_object()) for_people(row);
  print(table_text(reply[field], columns, when_empty, line_width()));
  if (reply.contains("next") && !reply["next"].is_null()) print(kMoreText);
  return kExitDone;
}

}  // namespace maru::marudctl
