// Requests by HTTP/1.1, many at a time, by libcurl. It is the transport alone: it retries nothing and follows nothing.
//
// Threads: one. No function but turn() waits; wake() comes from any thread.
#pragma once

#include "daemon/tierd/tiers/s3/s3_answers.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace maru::tierd {

struct HttpWish {
  std::string ca_file;        // empty: the system's
  bool verifies_peer = true;  // TLS only
  uint32_t connect_timeout_ms = 2000;
};

struct HttpAnswer {
  uint32_t status = 0;  // 0: there is no whole answer, and `trouble` says why
  S3Headers headers;
  std::string body;  // of an answer that is no success, and of each that has no sink
  std::string trouble;
  bool is_late = false;        // its time was over
  bool is_untrusted = false;   // the server's certificate does not verify, or the file of authorities cannot be read
  bool was_cut_short = false;  // by the sink
};

struct HttpRequest {
  std::string verb, url;
  std::vector<std::string> headers;           // "name: value"
  std::array<std::string_view, 3> body = {};  // sent one after the other; the memory is the caller's until `done`
  bool has_body = false;
  std::chrono::milliseconds timeout{0};
  // Takes the body of a success (2xx), in order; false ends the transfer, as enough has come. `status`: 200 or 206. Empty: the
  // body goes to the answer.
  std::function<bool(std::string_view bytes, uint32_t status, const S3Headers& headers)> sink;
  std::function<void(HttpAnswer& answer)> done;  // once, from turn()
};

class HttpTransfers {
 public:
  static constexpr size_t kBodyBytesMax = 8u << 20;  // of a body that goes to the answer; a longer one is trouble

  static std::unique_ptr<HttpTransfers> create(const HttpWish& wish, uint32_t connections);
  // Requests that are under way end without a call of `done`.
  ~HttpTransfers();
  HttpTransfers(const HttpTransfers&) = delete;
  HttpTransfers& operator=(const HttpTransfers&) = delete;

  void start(HttpRequest request);
  size_t under_way() const { return transfers_.size(); }
  // Moves bytes and calls `done`s; waits up to so long when there is nothing to do.
  void turn(std::chrono::milliseconds at_most);
  void wake();

 private:
  struct Transfer;  // a request, its answer so far, and libcurl's handle
  struct Multi;

  HttpTransfers(const HttpWish& wish, std::unique_ptr<Multi> multi);
  void finish_ended();

  const HttpWish wish_;
  std::unique_ptr<Multi> multi_;
  std::unordered_map<void*, std::unique_ptr<Transfer>> transfers_;  // by libcurl's handle
  std::vector<void*> idle_;                                         // handles to use again
};

}  // namespace maru::tierd
