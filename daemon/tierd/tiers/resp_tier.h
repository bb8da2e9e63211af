// The tier in a Redis or a Valkey, by the protocol RESP: one connection, many commands under way (libhiredis).
//
// A thread of its own owns the connection. When the connection breaks, or an answer does not come in time, all operations under
// way fail, since their answers cannot be told apart any more; then the thread connects again, with pauses that double. An
// operation ends when its last command is sent and answered, so memory of requests is free as soon as they complete.
//
// Threads: any thread submits; the rest happens in the tier's own.
#pragma once

#include "daemon/tierd/tiers/completions.h"
#include "daemon/tierd/tiers/resp_census.h"
#include "daemon/tierd/tiers/resp_operation.h"
#include "daemon/tierd/tiers/resp_output.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <hiredis/read.h>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

struct redisContext;

namespace maru::tierd {

struct RespWish {
  std::string host = "127.0.0.1";
  uint16_t port = 6379;
  std::string socket_path;  // instead of host and port
  std::string user, password;
  uint32_t database = 0;
  std::string prefix = "maru:";
  uint64_t ttl_ms = 0;  // 0: the server decides
  uint32_t connect_timeout_ms = 1000, timeout_ms = 5000;
  uint64_t chunk_bytes = 64u << 20;
  uint64_t depth_bytes = 64u << 20;
  bool lists = true;
  uint32_t list_every_s = 600;  // 0: once
  uint64_t list_memory = 512ull << 20;
};

class RespTier {
 public:
  // An absent server may come later. A server that refuses the user, the password or the database is an error. The first list
  // is complete when this returns, unless it takes longer than an operation may: then it goes on beside them.
  static Result<std::unique_ptr<RespTier>> open(const RespWish& wish);
  ~RespTier();
  RespTier(const RespTier&) = delete;
  RespTier& operator=(const RespTier&) = delete;

  Completions& completions() { return completions_; }
  size_t submit(const maru_tier_request* requests, size_t n);
  void get_properties(maru_tier_properties& ret_properties) const;
  void get_usage(maru_tier_usage& ret_usage);
  void get_health(maru_tier_health& ret_health);
  int list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) const;
  void get_group(std::string_view name, maru_tier_group& ret_group) const;
  int list_groups(const maru_tier_group* after, maru_tier_group* ret_groups, size_t n) const;
  int list_oldest(std::string_view name, maru_tier_entry* ret_entries, size_t n) const;

 private:
  struct CloseContext {
    void operator()(redisContext* context) const;
  };
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kInputBytes = 256 << 10;  // of one read

  explicit RespTier(const RespWish& wish);
  Result<void> connect();
  Result<void> command(std::initializer_list<std::string> words);
  void run();
  void begin(std::unique_ptr<RespOperation> operation);
  void ask(RespOperation& operation);
  bool exchange();           // false: the connection is over
  bool break_off(int code);  // false
  bool take_replies();
  void* create_string(const redisReadTask* task, char* bytes, size_t length);
  void end(RespOperation& operation, int result);
  void note(const RespOperation& operation, int result);
  void lose(int code, const std::string& why);
  void count();  // the server's entries
  void ask_census();
  void counted();
  bool is_changing(const std::string& key) const;

  const RespWish wish_;
  Completions completions_;
  Catalogue catalogue_;
  FileDescriptor wake_;
  std::thread thread_;

  std::mutex mutex_;  // of the next seven
  std::condition_variable first_count_;
  std::deque<maru_tier_request> queue_;
  uint64_t bytes_under_way_ = 0, requests_under_way_ = 0;
  std::string trouble_ = "not connected yet", list_trouble_;
  bool is_stopping_ = false, is_counted_ = false;

  // The thread's.
  std::unique_ptr<redisContext, CloseContext> context_;
  std::deque<std::unique_ptr<RespOperation>> waiting_;          // in the order of their answers
  redisReplyObjectFunctions replies_ = {};                      // the library's, and one of our own
  const redisReplyObjectFunctions* library_replies_ = nullptr;  // its own
  RespCensus census_;
  bool is_counting_ = false;  // until the last answer of the list's last batch, also of a list that has failed
  Clock::time_point next_count_ = {};
  std::chrono::seconds count_pause_{1};
  RespOutput output_;
  std::vector<char> input_ = std::vector<char>(kInputBytes);
  std::string broken_;          // why the connection is over
  bool is_in_trouble_ = false;  // by the last answer
  Clock::time_point next_connect_ = {};
  std::chrono::milliseconds pause_{100};
};

}  // namespace maru::tierd
