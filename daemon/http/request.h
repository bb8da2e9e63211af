// The meaning of an HTTP request: its questions to the deciding thread, and the reply that follows from their answers. Pure:
// this code knows no sockets, threads or pools.
//
// A request is a sequence of steps. A step is either a question and a function for its answer, or the reply.
#pragma once

#include "daemon/http/exchange.h"

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru::daemon::http {

inline constexpr size_t kTargetBytesMax = 2048;

struct Request {
  std::string method;
  std::string target;  // path and query as they came, percent-encoding included
  std::string body;
  std::string accept;  // the header
};

// Whether this request asks for a part of the page for browsers. The page is the same for all callers, and shows nothing of
// this marud. A browser needs it before its user can type a token into it.
bool is_for_page(const Request& request);

struct Reply {
  int status = 200;
  std::string body;
  const char* content_type = "application/json";
  std::string allow;         // of 405
  uint32_t retry_after = 0;  // seconds; 0: not said
  bool is_page = false;      // a browser may run its scripts
};

struct Step {
  std::optional<Question> question;  // without `who` and `peer`, which the caller adds
  std::function<Step(const Answer&)> then;
  Reply reply;  // when there is no question
};

// The first step, for any bytes.
Step begin(const Request& request);

// -- for the routes ---------------------------------------------------------------------------------------------------

// A request whose route is known.
struct Call {
  std::string pool;            // "pool" of the query; empty: not named
  std::string salt;            // the part of the path that stands for one, decoded
  bool salt_is_plain = false;  // it had no percent-encoding
  bool wants_html = false;
  const std::string& body;
};

Step say(int status, const nlohmann::json& body);
Step say_error(int status, const std::string& text);
// The reply to a question that the deciding thread refused.
Step say_refusal(const Answer& answer);
Step ask(const nlohmann::json& command, std::function<Step(const Answer&)> then);
// A command about the pool that the call names.
nlohmann::json command_for(const Call& call, const char* command);

// The body as an object that has only these fields. On a mistake `ret_wrong` holds the reply.
nlohmann::json object_in(const Call& call, std::initializer_list<const char*> fields, std::optional<Step>& ret_wrong);

// Decodes percent-encoded text; nothing when an escape is broken. The result may have any bytes, also zero: names of tenants
// are bytes.
std::optional<std::string> decoded(std::string_view text);

// adapters.cc
Step list_adapters(const Call& call);
// The reply to /metrics: this text, and families of adapters for users with a register for a pool.
Step add_adapter_metrics(std::string text);

// lists.cc
Step list_clients(const Call& call);
Step list_tenants(const Call& call);

// which.cc
Step check_blocks(const Call& call);

// quota.cc
Step quota_list(const Call& call);
Step quota_get(const Call& call);
Step quota_put(const Call& call);
Step quota_delete(const Call& call);
Step quota_config_get(const Call& call);
Step quota_config_put(const Call& call);

}  // namespace maru::daemon::http
