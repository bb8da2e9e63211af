// A maru-tierd of a test's own beside a marud of its own: private sockets, ended by its pid.
#pragma once

#include "maru/prefetch.h"
#include "tests/support/child_process.h"
#include "tests/support/marud_process.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace maru::test {

class TierdProcess {
 public:
  // `tiers`: the [[tier]] tables. `more`: lines of [prefetch], and tables as [store]. DIR in them is the test's directory.
  TierdProcess(const MarudProcess& marud, const std::string& tiers, const std::string& more = {});

  void start();                  // waits until it answers
  void stop();                   // SIGTERM; fails the test unless it ends with status 0
  void kill();                   // SIGKILL
  [[nodiscard]] bool suspend();  // SIGSTOP; waits until all of its threads stand still
  bool is_running() { return process_ && process_->is_running(); }
  pid_t pid() const { return process_->pid(); }
  const std::string& socket_path() const { return socket_path_; }
  const std::string& config_path() const { return config_path_; }
  std::string log() const;

  // An operator's order, as marudctl gives it. Null: it does not answer.
  nlohmann::json ask(uint32_t kind, const std::string& name = {}) const;
  nlohmann::json list() const;
  nlohmann::json tier(size_t index = 0) const { return list()["tiers"][index]; }
  // Waits until what was stored so far is written: the feed tells it some milliseconds late, so the number of entries is
  // waited for as well.
  [[nodiscard]] bool has_entries(uint64_t entries, size_t tier = 0) const;
  // The number of a metric, without labels or with them as text, from its HTTP socket. 0: it is not there.
  uint64_t metric(const std::string& name) const;
  // By HTTP on the Unix socket: the status, and what the answer says.
  std::pair<int, nlohmann::json> http(const std::string& method, const std::string& path,
                                      const std::string& body = {}) const;

 private:
  const MarudProcess& marud_;
  std::string socket_path_, config_path_, log_path_, http_path_;
  std::unique_ptr<ChildProcess> process_;
};

// A ticket with its end.
class Prefetch {
 public:
  Prefetch(const TierdProcess& tierd, const std::vector<std::string>& keys, uint32_t deadline_ms = far_too_long_ms(),
           uint32_t policy = MARU_PREFETCH_PREFIX, uint32_t compute_us = 0);
  ~Prefetch() { maru_prefetch_release(ticket_); }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  int begun() const { return begun_; }  // what maru_prefetch() returned
  int descriptor() const { return maru_prefetch_descriptor(ticket_); }
  int wait(int timeout_ms = int(far_too_long_ms()));
  int poll_status();
  const maru_prefetch_status_info& status() const { return status_; }
  void release() {
    maru_prefetch_release(ticket_);
    ticket_ = nullptr;
  }

 private:
  int begun_ = 0;
  maru_prefetch_ticket* ticket_ = nullptr;
  maru_prefetch_status_info status_ = {};
};

}  // namespace maru::test
