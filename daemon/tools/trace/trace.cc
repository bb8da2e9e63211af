#include "daemon/tools/trace/trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace maru::trace {
namespace {

// Enough of a wrong value to find it by. Not the contents of an array or object: a line may have more levels than the stack.
std::string shown(const nlohmann::json& value) {
  constexpr size_t kShownMax = 40;
  if (value.is_structured()) return std::string("an ") + value.type_name();
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= kShownMax ? text : text.substr(0, kShownMax) + "...";
}

Result<uint64_t> parse_time(const nlohmann::json& object, const std::string& where) {
  constexpr double kMsMax = 9e15;  // whole numbers up to here are exact
  const bool is_bailian = object.contains("chat_id");
  const auto found = object.find("timestamp");
  if (found == object.end())
    return failure(EINVAL, where + ": no \"timestamp\", which is needed to replay requests in time");
  const double ms = found->is_number() ? found->get<double>() * (is_bailian ? 1000 : 1) : -1;
  if (!(ms >= 0 && ms <= kMsMax))
    return failure(EINVAL, where + ": \"timestamp\" is " + shown(*found) + ", not " +
                               (is_bailian ? "seconds" : "milliseconds") + " since the trace began");
  return uint64_t(std::llround(ms));
}

Result<Request> parse_request(const std::string& line, const std::string& where, Times times) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return failure(EINVAL, where + ": not a JSON object");
  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array()) return failure(EINVAL, where + ": no array \"hash_ids\"");
  Request request;
  request.hash_ids.reserve(ids->size());
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned())
      return failure(EINVAL,
                     where + ": \"hash_ids\" holds " + shown(id) + ", where a block id was expected, a whole number");
    request.hash_ids.push_back(id.get<uint64_t>());
  }
  if (times == Times::kRequired) {
    const Result<uint64_t> time_ms = parse_time(object, where);
    if (!time_ms) return tl::unexpected<Error>(time_ms.error());
    request.time_ms = *time_ms;
  }
  return request;
}

}  // namespace

Result<Trace> read_trace(const std::string& path, uint64_t requests_max, Times times) {
  std::ifstream file(path);
  if (!file) return failure(errno ? errno : EIO, "open the trace " + path);
  Trace trace;
  std::unordered_set<uint64_t> distinct;
  std::string line;
  uint64_t line_number = 0;
  while ((requests_max == 0 || trace.requests.size() < requests_max) && std::getline(file, line)) {
    ++line_number;
    if (line.empty()) continue;
    const std::string where = path + ":" + std::to_string(line_number);
    Result<Request> request = parse_request(line, where, times);
    if (!request) return tl::unexpected<Error>(request.error());
    if (!trace.requests.empty() && request->time_ms < trace.requests.back().time_ms)
      return failure(EINVAL, where + ": \"timestamp\" says " + std::to_string(request->time_ms) +
                                 " ms, before the request in front of it (" +
                                 std::to_string(trace.requests.back().time_ms) + " ms); sort the trace by time");
    const std::vector<uint64_t>& ids = request->hash_ids;
    distinct.insert(ids.begin(), ids.end());
    trace.block_references += ids.size();
    trace.longest_request = std::max<uint64_t>(trace.longest_request, ids.size());
    trace.requests.push_back(std::move(*request));
  }
  if (file.bad()) return failure(EIO, "read the trace " + path);
  trace.distinct_blocks = distinct.size();
  return trace;
}

}  // namespace maru::trace
