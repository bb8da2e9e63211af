// The life of a request in the HTTP thread: the check of its headers, its questions, the wait for answers, and the reply.
#include "daemon/base/browser_headers.h"
#include "daemon/base/log.h"
#include "daemon/http/foreign_site.h"
#include "daemon/http/service_thread.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>

namespace maru::daemon::http {
namespace {

constexpr uint64_t kBegunMs = 30'000;  // the longest wait for an answer that the deciding thread has begun

// A zero byte ends the target for libmicrohttpd, though the line goes on. libmicrohttpd takes the version from the end of the
// same line. Without a zero byte, only a space stands between the two.
bool is_cut(const char* target_end, const char* version) {
  if (!std::less<>()(target_end, version) || version - target_end > std::ptrdiff_t(kHeaderBytesMax)) return false;
  return std::any_of(target_end, version, [](char c) { return c != 0 && c != ' '; });
}

}  // namespace

Service::Thread::Connection* Service::Thread::connection_of(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info ? static_cast<Connection*>(info->socket_context) : nullptr;
}

void* Service::Thread::on_target(void* self, const char* target, MHD_Connection* connection) {
  auto call = std::make_unique<Call>();
  call->thread = static_cast<Thread*>(self);
  call->connection = connection;
  call->request.target = target;
  call->target_end = target + call->request.target.size();
  call->since_ms = now_ms();
  if (Connection* entry = connection_of(connection)) {
    call->who = entry->caller.name;
    call->peer = entry->caller.peer;
    entry->has_asked = true;
    entry->call = call.get();
  }
  return call.release();
}

void Service::Thread::on_completed(void* self, MHD_Connection* connection, void** context, MHD_RequestTerminationCode) {
  Thread& thread = *static_cast<Thread*>(self);
  if (Connection* entry = connection_of(connection)) {
    entry->since_ms = now_ms();
    entry->since = ++thread.counted_;
    entry->call = nullptr;
  }
  const std::unique_ptr<Call> call(static_cast<Call*>(*context));
  *context = nullptr;
  if (!call) return;
  std::erase(thread.waiting_, call.get());
  if (call->slot && !thread.exchange_.withdraw(*call->slot)) thread.exchange_.abandon(*call->slot);
}

std::string Service::Thread::token_files() const {
  if (config_.read_token_file.empty()) return "http.token_file";
  return config_.token_file.empty() ? "http.read_token_file" : "http.token_file or http.read_token_file";
}

// Refuses requests that need no look at the body.
std::optional<Step> Service::Thread::look_at_headers(Call& call) {
  const auto header = [&](const char* name) {
    return MHD_lookup_connection_value(call.connection, MHD_HEADER_KIND, name);
  };
  if (const char* accept = header(MHD_HTTP_HEADER_ACCEPT)) call.request.accept = accept;
  const bool is_page = is_for_page(call.request);
  if (call.peer && !is_page) {
    const auto text = [&](const char* name) { return std::string_view(header(name) ? header(name) : ""); };
    const std::string foreign = foreign_site(text(MHD_HTTP_HEADER_HOST), text("Origin"), text("Sec-Fetch-Site"));
    if (!foreign.empty()) {
      complain(call.peer->who.uid, call.who + " is refused: " + foreign);
      return say_error(403, foreign);
    }
  }
  if (!call.peer && !is_page) {
    constexpr std::string_view kScheme = "Bearer ";
    const char* given = header(MHD_HTTP_HEADER_AUTHORIZATION);
    const std::string_view text = given ? given : "";
    const bool has_scheme = text.size() > kScheme.size() && ::strncasecmp(given, kScheme.data(), kScheme.size()) == 0;
    const Right right = has_scheme ? door_.right_of(text.substr(kScheme.size())) : Right::kNone;
    if (right == Right::kNone) {
      complain(std::nullopt, call.who + " does not have the token: refused");
      return say_error(401, std::string(has_scheme ? "found a wrong token" : "found no token") +
                                ", expected the header \"Authorization: Bearer TOKEN\" with the token of marud's " +
                                token_files());
    }
    // Each request on a connection may show a different token.
    call.who += right == Right::kRead ? " with the read-only token," : " with the token,";
    if (Connection* entry = connection_of(call.connection)) {
      entry->is_known = true;
      entry->shown_name = call.who;
    }
    if (right == Right::kRead && call.request.method != MHD_HTTP_METHOD_GET &&
        call.request.method != MHD_HTTP_METHOD_HEAD) {
      complain(std::nullopt, call.who + " may not " + call.request.method + " " + call.request.target + ": refused");
      return say_error(403, "found " + printable(call.request.method) +
                                " with the token of http.read_token_file, which lets GET and HEAD alone; " +
                                (config_.token_file.empty()
                                     ? "nothing can be changed over TCP, since there is no http.token_file: ask on "
                                       "marud's Unix socket"
                                     : "whatever changes something wants the token of http.token_file"));
    }
  }
  if (header(MHD_HTTP_HEADER_TRANSFER_ENCODING))
    return say_error(411, "found a body of unknown length, expected the header Content-Length");
  if (const char* text = header(MHD_HTTP_HEADER_CONTENT_LENGTH)) {
    uint64_t bytes = 0;
    const auto read = std::from_chars(text, text + std::strlen(text), bytes);
    if (read.ec != std::errc() || bytes > kBodyBytesMax)
      return say_error(
          413, "found a body of " + printable(text) + " bytes, expected at most " + std::to_string(kBodyBytesMax));
  }
  return std::nullopt;
}

MHD_Result Service::Thread::on_access(void* self, MHD_Connection* connection, const char*, const char* method,
                                      const char* version, const char* data, size_t* data_bytes, void** context) {
  Thread& thread = *static_cast<Thread*>(self);
  if (!*context) *context = on_target(self, "", connection);
  Call& call = *static_cast<Call*>(*context);
  if (call.reply) return thread.send(call);
  if (!call.has_headers) {
    call.has_headers = true;
    call.request.method = method;
    if (is_cut(call.target_end, version)) {
      call.reply = say_error(400, "found a zero byte in the path, expected %00 for one").reply;
      return thread.send(call);
    }
    if (auto refusal = thread.look_at_headers(call)) {
      call.reply = std::move(refusal->reply);
      return thread.send(call);
    }
    return MHD_YES;
  }
  if (*data_bytes > 0) {
    // libmicrohttpd passes at most Content-Length bytes. The check keeps this bounded even if it passes more.
    call.is_too_long |= call.request.body.size() + *data_bytes > kBodyBytesMax;
    if (!call.is_too_long) call.request.body.append(data, *data_bytes);
    *data_bytes = 0;
    return MHD_YES;
  }
  if (thread.is_stopping_) return MHD_NO;
  thread.advance(call, call.is_too_long ? say_error(413, "found a body that is too long") : begin(call.request));
  if (call.reply) return thread.send(call);
  call.is_waiting = true;
  thread.waiting_.push_back(&call);
  MHD_suspend_connection(connection);
  return MHD_YES;
}

void Service::Thread::advance(Call& call, Step step) {
  call.slot.reset();
  call.is_begun = false;
  if (step.question) {
    step.question->who = call.who;
    step.question->peer = call.peer;
    call.slot = exchange_.ask(std::move(*step.question));
    call.deadline_ms = now_ms() + config_.timeout_ms;
    if (!call.slot) {
      step = say_error(503, "as many requests as are let in wait for marud's event loop already");
      step.reply.retry_after = 1;
    }
  }
  call.step = std::move(step);
  if (!call.slot) call.reply = std::move(call.step.reply);
}

void Service::Thread::resume(Call& call) {
  call.is_waiting = false;
  call.since_ms = now_ms();
  std::erase(waiting_, &call);
  MHD_resume_connection(call.connection);
}

void Service::Thread::settle(Call& call) {
  if (auto answer = exchange_.take(*call.slot)) {
    Step next;
    try {
      next = call.step.then(*answer);
    } catch (const std::exception& exception) {
      next = say_error(500, std::string("marud does not understand its own answer: ") + exception.what());
    }
    advance(call, std::move(next));
    if (call.reply) resume(call);
    return;
  }
  if (!is_stopping_ && now_ms() < call.deadline_ms) return;
  if (exchange_.withdraw(*call.slot)) {
    call.slot.reset();
    Step late = say_error(503, is_stopping_ ? "marud stops"
                                            : "marud's event loop is late: it did not look at this within " +
                                                  std::to_string(config_.timeout_ms) + " ms, and nothing was done");
    late.reply.retry_after = 1;
    call.reply = std::move(late.reply);
  } else if (!is_stopping_ && !call.is_begun) {
    call.is_begun = true;
    call.deadline_ms = now_ms() + kBegunMs;
    return;
  } else {
    exchange_.abandon(*call.slot);
    call.slot.reset();
    call.reply =
        say_error(504, "marud has begun this and is not ready yet; it goes on, and the outcome is not known").reply;
  }
  resume(call);
}

void Service::Thread::settle_waiting() {
  const std::vector<Call*> waiting = waiting_;
  for (Call* call : waiting) settle(*call);
}

MHD_Result Service::Thread::send(Call& call) {
  const Reply& reply = *call.reply;
  MHD_Response* response =
      MHD_create_response_from_buffer(reply.body.size(), const_cast<char*>(reply.body.data()), MHD_RESPMEM_MUST_COPY);
  if (!response) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply.content_type);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  for (const auto& [name, value] : kSafetyHeaders) MHD_add_response_header(response, name, value);
  MHD_add_response_header(response, "Content-Security-Policy", reply.is_page ? kPagePolicy : kDataPolicy);
  if (reply.is_page) MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ACCEPT);
  if (!reply.allow.empty()) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, reply.allow.c_str());
  if (reply.status == 401) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer realm=\"marud\"");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");  // frees the place for the next client
  }
  if (reply.retry_after != 0)
    MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, std::to_string(reply.retry_after).c_str());
  const MHD_Result queued = MHD_queue_response(call.connection, unsigned(reply.status), response);
  MHD_destroy_response(response);
  return queued;
}

}  // namespace maru::daemon::http
