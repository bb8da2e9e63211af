// A trace of requests: which blocks each prompt consists of, in order.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace maru::replay {

struct Request {
  std::vector<uint64_t> hash_ids;  // an id stands for its block and everything before it
};

struct Trace {
  std::vector<Request> requests;
  uint64_t block_references = 0;  // sum over the requests
  uint64_t distinct_blocks = 0;
  uint64_t longest_request = 0;  // blocks
};

// One JSON object a line, of which only "hash_ids" is read. requests_max 0: all. A line that is not such an object is an
// error that names the line.
Result<Trace> read_trace(const std::string& path, uint64_t requests_max);

}  // namespace maru::replay
