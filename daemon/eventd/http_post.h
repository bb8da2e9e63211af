// POSTs to one address, one after the other, by libcurl and without blocking. It knows TLS, proxies from the environment, and
// names with several addresses.
//
// Thread safety: one thread; wake() any.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maru::eventd {

struct HttpPostSettings {
  std::string url;
  std::vector<std::string> headers;  // "Name: value"
  uint32_t timeout_ms = 10'000;      // of a POST, from its beginning to its end
};

class HttpPost {
 public:
  struct Answer {
    int status = 0;              // 0: there was none, and `trouble` says why
    std::string body;            // its first 64 KiB
    uint64_t retry_after_s = 0;  // as the answer asks; 0: it does not
    std::string trouble;
  };

  // Errors: ENOMEM; EINVAL libcurl refuses the settings.
  static Result<std::unique_ptr<HttpPost>> open(const HttpPostSettings& settings);
  ~HttpPost();
  HttpPost(const HttpPost&) = delete;
  HttpPost& operator=(const HttpPost&) = delete;

  // Begins one; none may be under way. `body` stays the caller's until its answer is there.
  void begin(const std::string& body);
  bool is_busy() const { return is_busy_; }
  // Goes on with the POST. Waits until it has news, a descriptor can be read, wake() is called, or the time is over.
  void wait(const std::vector<int>& descriptors, int timeout_ms);
  // Of the POST that has ended; once.
  std::optional<Answer> take_answer();
  void wake();

 private:
  struct Curl;  // libcurl's, kept out of this header
  explicit HttpPost(std::unique_ptr<Curl> curl);
  void finish();

  std::unique_ptr<Curl> curl_;
  bool is_busy_ = false;
  std::optional<Answer> answer_;
  std::string received_;
};

}  // namespace maru::eventd
