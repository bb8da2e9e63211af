// The HTTP thread. It has the sockets and libmicrohttpd, turns requests into questions, and sends replies. It owns nothing of
// a pool and waits for nobody: a question that the deciding thread does not look at in time becomes a 503.
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
  // Opens the sockets; from here on requests are answered. One that cannot be opened is tried again and again, and the deciding
  // thread is told of it (Question::Kind::kTrouble). `exchange` lives as long.
  static Result<std::unique_ptr<Service>> start(const HttpConfig& config, std::optional<gid_t> admin_group,
                                                Exchange& exchange);
  ~Service();  // what waits for an answer gets a 503, then the thread ends
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

 private:
  class Thread;
  explicit Service(std::unique_ptr<Thread> thread);
  std::unique_ptr<Thread> thread_;
};

}  // namespace maru::daemon::http
