// A request to a Redis, and its state after each answer. Answers come from outside: none of them, hostile ones included, makes
// this class write beyond the memory of the request.
#pragma once

#include "daemon/tierd/tiers/resp_value.h"
#include "maru/tier.h"

#include <chrono>
#include <string>
#include <string_view>

struct redisReply;

namespace maru::tierd {

struct RespOperation {
  maru_tier_request request = {};
  std::string key;
  std::chrono::steady_clock::time_point deadline;
  RespHead head;
  bool has_head = false;
  bool is_census = false;   // no request: a step of the tier's own census
  size_t answers_left = 0;  // to its commands so far
  uint64_t output_end = 0;  // where these end, in RespOutput
  uint64_t next_chunk = 0;  // for a load: the chunk of the next answer, counted from 1; 0 is the head
  int result = 0;

  // The answer to the next of its commands. Returns the server's trouble, for people; empty: there is none.
  std::string take(const redisReply& reply);
  // A string in the library's buffer, which the library would copy into an answer. If it is the chunk that this load waits for,
  // it goes to the memory of the request at once, and the answer has its length alone. False: it does not.
  bool place_chunk(std::string_view bytes);
  // Its head was the last answer, and it needs more of the entry.
  bool asks_on() const;
  // After that: takes the attributes. False: the entry is not the wanted entry, and `result` says so.
  bool accept_head();

 private:
  bool take_head(const redisReply& reply);
  void take_chunk(const redisReply& reply);
  uint64_t chunk_begin() const { return (next_chunk - 1) * head.chunk_bytes; }
};

}  // namespace maru::tierd
