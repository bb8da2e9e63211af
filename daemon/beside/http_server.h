// GET /metrics and GET /healthcheck of a program beside marud, and its handler's own answers, on a Unix socket, on a TCP port
// of this machine, or on both. It answers from threads of libmicrohttpd.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/beside/http_handler.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

struct MHD_Daemon;

namespace maru::daemon {
class ConfigTable;
}

namespace maru::daemon::beside {

// The table [http]; without it there is no HTTP.
struct HttpSettings {
  std::string socket_path;  // empty: none
  std::string listen;       // "127.0.0.1:9102" or "[::1]:9102"; empty: none
};
HttpSettings read_http(ConfigTable table);

class HttpServer {
 public:
  // The counters, the health and the handlers outlive it. Errors: the address is taken, the folder is not there.
  static Result<std::unique_ptr<HttpServer>> start(const HttpSettings& settings, const Counters& counters,
                                                   const Health& health, const HttpHandlers& handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& tcp_address() const { return tcp_address_; }  // with the port that the kernel chose for port 0

 private:
  HttpServer(const Counters& counters, const Health& health, const HttpHandlers& handlers)
      : counters_(counters), health_(health), handlers_(handlers) {}
  Result<void> open_unix(const std::string& path);
  Result<void> open_tcp(const std::string& listen);
  Result<void> serve(FileDescriptor listener, bool is_unix);

  struct Answering;
  struct Entrance {
    const HttpServer& server;
    bool is_unix;
  };

  const Counters& counters_;
  const Health& health_;
  const HttpHandlers& handlers_;
  std::deque<Entrance> entrances_;  // which do not move
  std::vector<MHD_Daemon*> daemons_;
  std::string socket_path_, tcp_address_;
};

}  // namespace maru::daemon::beside
