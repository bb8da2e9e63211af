// The HTTP thread. It has the sockets and libmicrohttpd, turns requests into questions, and sends replies. It owns nothing of
// a pool and never blocks: a question that the deciding thread does not begin in time becomes a 503.
#pragma once

#include "daemon/http/door.h"
#include "daemon/http/exchange.h"

#include <cstdint>
#include <memory>
#include <string>

namespace maru::daemon::http {

inline constexpr size_t kBodyBytesMax = 64u << 10;

class Service {
 public:
  // Opens the sockets; from here on requests are answered. The thread tries a socket that it cannot open again and again, and
  // tells the deciding thread (Question::Kind::kTrouble). `exchange` must outlive the service.
  static Result<std::unique_ptr<Service>> start(const HttpConfig& config, std::optional<gid_t> admin_group,
                                                Exchange& exchange);
  ~Service();  // requests that wait for an answer get a 503, then the thread ends
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

 private:
  class Thread;
  explicit Service(std::unique_ptr<Thread> thread);
  std::unique_ptr<Thread> thread_;
};

}  // namespace maru::daemon::http
