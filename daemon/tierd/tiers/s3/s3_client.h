// Calls of S3: signed, tried again within bounds, and told apart by the caller's possible reactions.
//
// Tried again are answers that promise nothing about the next try (429, 500, 502, 503, 504, 408, a conflict of writers) and
// connections that break. The pause doubles, a random half of it, and a server that names a longer pause gets it. All tries lie
// within the deadline of the call. Not tried again are 403, 404, 412 and other refusals.
//
// Reads go before writes, but for one write at a time, and writes leave a share of the connections free for reads.
//
// Threads: one. wake() comes from any thread.
#pragma once

#include "daemon/tierd/tiers/s3/credentials.h"
#include "daemon/tierd/tiers/s3/http_transfers.h"
#include "libmaru/base/result.h"

#include <chrono>
#include <deque>
#include <map>
#include <random>

namespace maru::tierd {

struct S3Service {
  std::string scheme = "https";  // or "http"
  std::string host;              // "s3.eu-west-1.amazonaws.com", with ":port" where it is not the usual one
  std::string base_path;         // "" or "/s3"
  std::string bucket;
  bool is_virtual_host = true;  // the bucket is a part of the host's name, not of the path
  std::string region = "us-east-1";
  CredentialSource credentials;
  bool signs_payload = false;  // the hash of the body is a part of the signature
  HttpWish http;
  uint32_t connections = 16;
  uint32_t attempts_max = 5;
};

struct S3Call {
  using Clock = std::chrono::steady_clock;

  std::string verb;
  std::string name;  // of the object; empty: the bucket
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;
  std::array<std::string_view, 3> body = {};
  bool has_body = false;
  Clock::time_point deadline;
  std::function<void()> begin;  // before each try: the sink's earlier bytes do not count. May be empty
  std::function<bool(std::string_view bytes, uint32_t status, const S3Headers& headers)> sink;  // may be empty

  struct Outcome {
    // 0, or -errno: -ENOENT, -EEXIST (a condition was not met), -EACCES, -ENODEV (no such bucket), -ENOSPC, -EFBIG, -ETIMEDOUT,
    // -EBUSY (the server wants less), -ENOTCONN, -EIO, -EBADMSG.
    int result = 0;
    uint32_t status = 0;
    S3Headers headers;
    std::string body;
    std::string trouble;      // for people: the finding, the expectation, the remedy. Empty: nothing is wrong
    bool is_refusal = false;  // it is a matter of the configuration, so later calls end in the same way
  };
  std::function<void(Outcome& outcome)> done;
};

class S3Client {
 public:
  static Result<std::unique_ptr<S3Client>> create(const S3Service& service);
  ~S3Client();
  S3Client(const S3Client&) = delete;
  S3Client& operator=(const S3Client&) = delete;

  void start(S3Call call);
  void turn(std::chrono::milliseconds at_most);
  void wake() { http_->wake(); }
  uint64_t retries() const { return retries_; }

 private:
  struct Job;  // a call, and its tries
  using Clock = S3Call::Clock;

  S3Client(const S3Service& service, S3Credentials credentials, std::unique_ptr<HttpTransfers> http);
  void dispatch();
  void send(std::shared_ptr<Job> job);
  void answered(const std::shared_ptr<Job>& job, HttpAnswer& answer);
  bool try_again(const std::shared_ptr<Job>& job, const S3Headers& headers);
  S3Call::Outcome judge(const HttpAnswer& answer, uint64_t signed_by, bool* ret_may_try_again);
  bool has_other_credentials(uint64_t than);

  const S3Service service_;
  S3Credentials credentials_;
  uint64_t credentials_number_ = 0;  // grows with each change
  std::unique_ptr<HttpTransfers> http_;
  std::deque<std::shared_ptr<Job>> reads_, writes_;
  std::multimap<Clock::time_point, std::shared_ptr<Job>> delayed_;
  size_t writes_under_way_ = 0;
  uint64_t retries_ = 0;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace maru::tierd
