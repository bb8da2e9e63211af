// The tier in S3, or in a server that speaks its protocol: an object for each entry (s3_object.h).
//
// store     one PUT of head, payload and attributes out of the memory of the request.
// lookup    a GET of the head alone. load: GETs of parts of the object side by side, into the memory of the request; length and
//           checksums of all must agree with the head, and the head with the key.
// delete    a lookup, as S3 does not tell whether the entry existed, and a DELETE.
//
// A thread of its own has the connections. When an operation ends, no transfer of its own touches the memory of the request
// any more, since the kernel has copied all bytes.
//
// Threads: any thread submits, asks for usage, health and lists.
#pragma once

#include "daemon/tierd/tiers/completions.h"
#include "daemon/tierd/tiers/s3/s3_census.h"
#include "daemon/tierd/tiers/s3/s3_operation.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace maru::tierd {

struct S3Wish {
  S3Service service;
  std::string prefix = "maru/";
  bool lists = true;
  bool if_none_match = false;  // a PUT says that it wants to be the first one
  uint32_t timeout_ms = 10'000;
  uint32_t list_every_s = 600;  // 0: once
  uint64_t list_memory = 512ull << 20;
  uint64_t part_bytes = 8u << 20;
  uint64_t depth_bytes = 64u << 20;
};

class S3Tier {
 public:
  // An absent server may come later. A server that refuses, or has no such bucket, is an error, which names the
  // finding, the expectation and the remedy. The first list is complete when this returns, unless it takes longer than an
  // operation may: then it goes on beside them.
  static Result<std::unique_ptr<S3Tier>> open(const S3Wish& wish);
  ~S3Tier();
  S3Tier(const S3Tier&) = delete;
  S3Tier& operator=(const S3Tier&) = delete;

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
  using Shared = std::shared_ptr<S3Operation>;
  using Outcome = S3Call::Outcome;

  S3Tier(const S3Wish& wish, std::unique_ptr<S3Client> client);
  void run();
  void count();  // the bucket's entries
  void counted(const Outcome& outcome);
  void begin(const maru_tier_request& request);
  void look(const Shared& operation, std::function<void()> then);
  void take_head(const Shared& operation, const Outcome& outcome);
  void load(const Shared& operation);
  void load_part(const Shared& operation, uint64_t first, uint64_t end, bool is_last);
  void loaded(const Shared& operation);
  void store(const Shared& operation, bool is_conditional);
  void stored(const Shared& operation, const Outcome& outcome, bool is_conditional);
  void remove(const Shared& operation);
  void end(S3Operation& operation, int result);
  void note(const Outcome& outcome);

  const S3Wish wish_;
  Completions completions_;
  Catalogue catalogue_;
  std::unique_ptr<S3Client> client_;
  S3Census census_;
  std::thread thread_;
  // The thread's.
  S3Call::Clock::time_point next_count_ = {};
  std::chrono::seconds count_pause_{1};

  std::mutex mutex_;  // of the rest
  std::condition_variable first_count_;
  std::deque<maru_tier_request> queue_;
  uint64_t bytes_under_way_ = 0, requests_under_way_ = 0, damaged_ = 0;
  std::string trouble_ = "not connected yet", list_trouble_;
  std::optional<Outcome> first_outcome_;
  bool is_stopping_ = false;
};

}  // namespace maru::tierd
