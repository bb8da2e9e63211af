// The answers by HTTP of a program beside marud, besides its metrics and its health.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

namespace maru::daemon::beside {

struct HttpCall {
  std::string method, path, body;  // the path as it was asked for, with its % signs
  bool may_change = false;         // it came by the Unix socket, and not by TCP, which any user of the machine reaches
  bool wants_html = false;         // a browser asks
};

struct HttpReply {
  unsigned status = 200;
  std::string body;
  const char* content_type = "application/json";
};

// Called by threads of the HTTP server, many at a time. Nothing: there is no such path.
using HttpHandler = std::function<std::optional<HttpReply>(const HttpCall&)>;

// The program's handler, while there is one.
class HttpHandlers {
 public:
  // Afterwards the handler of before is not called any more, and no call of it is under way.
  void set(HttpHandler handler) {
    const std::lock_guard door(door_);
    const std::lock_guard lock(mutex_);
    handler_ = std::move(handler);
  }
  std::optional<HttpReply> call(const HttpCall& call) const {
    std::unique_lock door(door_);  // a set() that waits goes before later calls
    const std::shared_lock lock(mutex_);
    door.unlock();
    return handler_ ? handler_(call) : std::nullopt;
  }

 private:
  mutable std::mutex door_;
  mutable std::shared_mutex mutex_;
  HttpHandler handler_;
};

}  // namespace maru::daemon::beside
