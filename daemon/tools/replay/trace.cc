#include "daemon/tools/replay/trace.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace maru::replay {
namespace {

Result<Request> parse_request(const std::string& line, const std::string& where) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return failure(EINVAL, where + ": not a JSON object");
  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array()) return failure(EINVAL, where + ": no array \"hash_ids\"");
  Request request;
  request.hash_ids.reserve(ids->size());
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned()) return failure(EINVAL, where + ": \"hash_ids\" holds something that is no block id");
    request.hash_ids.push_back(id.get<uint64_t>());
  }
  return request;
}

}  // namespace

Result<Trace> read_trace(const std::string& path, uint64_t requests_max) {
  std::ifstream file(path);
  if (!file) return failure(errno ? errno : EIO, "open the trace " + path);
  Trace trace;
  std::unordered_set<uint64_t> distinct;
  std::string line;
  uint64_t line_number = 0;
  while ((requests_max == 0 || trace.requests.size() < requests_max) && std::getline(file, line)) {
    ++line_number;
    if (line.empty()) continue;
    Result<Request> request = parse_request(line, path + ":" + std::to_string(line_number));
    if (!request) return tl::unexpected<Error>(request.error());
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

}  // namespace maru::replay
