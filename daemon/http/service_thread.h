// The inside of the HTTP thread, for service.cc (its life and its connections) and service_calls.cc (its requests).
#pragma once

#include "daemon/base/log_budget.h"
#include "daemon/http/places.h"
#include "daemon/http/request.h"
#include "daemon/http/service.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <microhttpd.h>
#include <optional>
#include <thread>
#include <vector>

namespace maru::daemon::http {

inline constexpr size_t kHeaderBytesMax = 16u << 10;  // libmicrohttpd's memory of a connection: the headers both ways

// Milliseconds of a clock that no setting of the time changes.
uint64_t now_ms();

class Service::Thread {
 public:
  Thread(const HttpConfig& config, std::optional<gid_t> admin_group, Exchange& exchange)
      : config_(config), door_(config, admin_group), exchange_(exchange) {}
  ~Thread();
  Result<void> start();

 private:
  struct Call;
  struct Connection {
    Caller caller;
    std::string shown_name;  // with the token that it showed last; empty: it showed none
    uint64_t since_ms = 0;   // end of its last request, or its arrival
    uint64_t since = 0;      // the same moment, counted: it orders connections of one millisecond
    bool is_known = false;   // the kernel identified the user, or the client has shown a token
    bool has_begun = false;  // libmicrohttpd has taken it
    bool was_ended = false;
    bool has_asked = false;      // at least one request has come
    const Call* call = nullptr;  // the request under way, from the end of its first line
  };
  // One request, from its first line on.
  struct Call {
    Thread* thread;
    MHD_Connection* connection;
    Request request;
    const char* target_end = nullptr;  // end of the target in libmicrohttpd's buffer
    std::string who;
    std::shared_ptr<const Peer> peer;
    bool has_headers = false;
    bool is_too_long = false;
    bool is_waiting = false;  // suspended
    uint64_t since_ms = 0;    // arrival of its first line, or the moment when its reply was ready
    Step step;
    std::optional<uint32_t> slot;
    bool is_begun = false;  // the deciding thread has begun it, as far as this thread knows
    uint64_t deadline_ms = 0;
    std::optional<Reply> reply;
  };

  void run();
  int poll_timeout();
  void open_doors();
  void look_at_files(bool now);
  void tell_trouble();
  void accept_all(int listener, bool is_unix);
  bool make_room(const Caller& caller, std::string& ret_why_not);
  void end(int fd, Connection& connection, const std::string& why);
  void refuse(FileDescriptor socket, const std::string& who, std::optional<uid_t> uid, const std::string& why);
  void close_refused();
  void complain(std::optional<uid_t> uid, const std::string& text);
  void end_old();

  static Connection* connection_of(MHD_Connection* connection);
  std::string token_files() const;  // the names of the configured keys
  std::optional<Step> look_at_headers(Call& call);
  void advance(Call& call, Step step);
  void settle_waiting();
  void settle(Call& call);
  void resume(Call& call);
  MHD_Result send(Call& call);

  static void* on_target(void* self, const char* target, MHD_Connection* connection);
  static MHD_Result on_access(void* self, MHD_Connection* connection, const char* url, const char* method,
                              const char* version, const char* data, size_t* data_bytes, void** context);
  static void on_completed(void* self, MHD_Connection* connection, void** context, MHD_RequestTerminationCode code);
  static void on_connection(void* self, MHD_Connection* connection, void** context,
                            MHD_ConnectionNotificationCode code);

  const HttpConfig config_;
  Door door_;
  Exchange& exchange_;
  FileDescriptor stop_;
  MHD_Daemon* mhd_ = nullptr;
  int mhd_fd_ = -1;
  std::map<int, Connection> connections_;  // by descriptor; entries do not move
  // Connections that got a reason and a refusal. Each stays open until its owner has seen this; the oldest come first.
  struct Refused {
    FileDescriptor socket;
    uint64_t since_ms;
  };
  std::deque<Refused> refused_;
  uint64_t counted_ = 0;  // source of Connection::since
  std::vector<Call*> waiting_;
  uint64_t accept_due_ms_ = 0;
  uint64_t open_due_ms_ = 0, open_pause_ms_ = 0;  // time of the next try to open sockets; a pause of 0: all are open
  std::string trouble_;                           // why a socket is closed
  uint64_t sockets_lost_ = 0;
  uint64_t files_due_ms_ = 0;
  bool is_trouble_told_ = true;
  LogBudget complaints_{LogLevel::kWarning, "refusals by HTTP", 16, 64};
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace maru::daemon::http
