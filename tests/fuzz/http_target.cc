// Any bytes as an HTTP request, past libmicrohttpd's parser: method, target and body, then the answers of the deciding thread.
// Whatever it was, it ends in one reply after a bounded number of questions, and every question is a command that marud's own
// parser takes.
#include "daemon/http/foreign_site.h"
#include "daemon/http/request.h"
#include "tests/fuzz/target.h"

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace maru::fuzz {
namespace {

using daemon::http::Answer;
using daemon::http::Question;
using daemon::http::Request;
using daemon::http::Step;

constexpr int kStepsMax = 100;

// What a marud with two pools and a few tenants would say.
Answer answer_to(const Question& question, uint64_t mood) {
  if (mood % 5 == 4) return {int(mood % 130) + 1, "this tenant or something else: refused", nullptr};
  if (question.kind == Question::Kind::kHealth)
    return {
        0,
        R"({"status":"healthy","reasons":[],"pools":[{"name":"a","condition":"serving"},{"name":"b","condition":"fenced"}]})",
        nullptr};
  if (question.kind != Question::Kind::kAdmin) return {0, "{}", nullptr};
  const nlohmann::json command = nlohmann::json::parse(question.command);
  must(command.is_object() && command.contains("command") && command["command"].is_string(),
       "a command without a name");
  must(!command.contains("pool") || command["pool"].is_string(), "a pool that is no text");
  const std::string name = command["command"];
  if (name == "quota.list") {
    const bool is_last = mood % 3 == 0;
    nlohmann::json page = {
        {"tenants",
         {{{"tenant", "0x00ff"}, {"soft_bytes", mood}, {"hard_bytes", 0}, {"used_bytes", 1}, {"listed", mood % 7 != 0}},
          {{"tenant", nullptr}, {"soft_bytes", 0}, {"hard_bytes", 0}, {"used_bytes", 1}, {"listed", false}}}},
        {"others_used_bytes", mood}};
    if (!is_last) page["next"] = 7;
    return {0, page.dump(), nullptr};
  }
  if (name == "clients") {
    nlohmann::json page = {{"clients", {{{"pid", mood}, {"lane", 1}}}}};
    if (mood % 3 != 0) page["next"] = mood % 2;
    return {0, page.dump(), nullptr};
  }
  return {0, R"({"tenant":"a","soft_bytes":5,"hard_bytes":0,"used_bytes":3,"listed":true,"deleted_blocks":1})",
          nullptr};
}

Input input_of(std::string_view method, std::string_view target, std::string_view body) {
  return Writer().number(method.size(), 1).bytes(method).number(target.size(), 2).bytes(target).bytes(body).take();
}

std::string as_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  for (const char* target :
       {"/", "/healthcheck", "/status", "/conf", "/policy", "/quota", "/quota/config", "/api/quota/alice",
        "/quota/_default", "/quota/%5Fdefault", "/quota/%ff%00", "/metrics", "/clients", "/tenants", "/map"})
    for (const char* end : {"?pool=a", "?pool=ab", "?pool=abcdefg"})  // marud says something else for each length
      inputs.push_back(input_of("GET", std::string(target) + end, ""));
  // The headers Sec-Fetch-Site, Host and Origin, in the same places.
  for (const auto& [site, host, origin] :
       {std::array{"same-origin", "localhost:9101", "http://localhost:9101"}, std::array{"cross-site", "127.0.0.1", ""},
        std::array{"", "marud.example.com:80", ""}, std::array{"", "[::1]:80", "null"},
        std::array{"none", "localhost", "https://elsewhere.example"}})
    inputs.push_back(input_of(site, host, origin));
  inputs.push_back(input_of("PUT", "/quota/alice", R"({"limit_gb": 1.5, "hard_limit_gb": 2})"));
  inputs.push_back(input_of("PUT", "/quota/config", R"({"default_limit_gb": null})"));
  inputs.push_back(input_of("PUT", "/api/quota/a", R"({"limit_gb": 1e400})"));
  inputs.push_back(input_of("PUT", "/policy", R"({"name": "s3fifo", "options": {"threshold": 1, "x": [[[[]]]]}})"));
  inputs.push_back(input_of("PUT", "/policy", R"({"name": 3})"));
  inputs.push_back(input_of("PUT", "/quota/_default", R"({"limit_gb": 1})"));
  inputs.push_back(input_of("PUT", "/quota/alice", R"({"limit_gb": "1"})"));
  inputs.push_back(input_of("PUT", "/quota/alice", R"([1])"));
  inputs.push_back(input_of("POST", "/clear-cache", R"({"force": false})"));
  inputs.push_back(input_of("POST", "/clear-cache", R"({"force": true})"));
  inputs.push_back(input_of("DELETE", "/quota/alice", ""));
  inputs.push_back(input_of("PATCH", "/status", "x"));
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  Reader reader(data, size);
  Request request;
  request.method = as_text(reader.bytes(reader.number(1)));
  request.target = as_text(reader.bytes(reader.number(2)));
  const uint64_t mood = request.target.size() + reader.left();
  request.body = as_text(reader.bytes(reader.left()));
  const std::string foreign = maru::daemon::http::foreign_site(request.target, request.body, request.method);
  must(nlohmann::json(foreign).dump().size() < 1000,
       "a refusal that is no short text");  // it throws at what is not UTF-8
  Step step = maru::daemon::http::begin(request);
  for (int steps = 0; step.question && steps < kStepsMax; ++steps) {
    must(bool(step.then), "a question without what follows");
    step = step.then(answer_to(*step.question, mood + uint64_t(steps)));
  }
  must(!step.question, "a request that asks without end");
  must(step.reply.status >= 200 && step.reply.status < 600, "an impossible status");
  must((step.reply.status == 405) == !step.reply.allow.empty(), "405 and Allow go together");
  const auto body = nlohmann::json::parse(step.reply.body, nullptr, false);
  must(body.is_object(), "a reply that is no JSON object");
  must(step.reply.status < 400 || body.contains("error") || body.contains("status"), "a refusal that says nothing");
  return 0;
}
