// A trace of requests: the blocks of each prompt, in order, and its time of arrival. Two published formats are read, both with
// one JSON object a line:
//
//   Mooncake      timestamp (ms), input_length, output_length, hash_ids (512 tokens a block)
//   Qwen-Bailian  chat_id, parent_chat_id, timestamp (s, with a fraction), input_length, output_length, type, turn,
//                 hash_ids (16 tokens a block)
//
// A line with "chat_id" has the second format. Only "hash_ids" and "timestamp" are used.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace maru::trace {

struct Request {
  std::vector<uint64_t> hash_ids;  // an id stands for its block and everything before it
  uint64_t time_ms = 0;            // since the trace began
};

struct Trace {
  std::vector<Request> requests;
  uint64_t block_references = 0;  // sum over the requests
  uint64_t distinct_blocks = 0;
  uint64_t longest_request = 0;  // blocks
};

enum class Times : uint8_t {
  kIgnored,   // "timestamp" is not looked at, and time_ms is 0
  kRequired,  // it must be there in every line, and never fall
};

// requests_max 0: all. For a bad line the error has the line's number, the found text and the expected text.
Result<Trace> read_trace(const std::string& path, uint64_t requests_max, Times times = Times::kIgnored);

}  // namespace maru::trace
