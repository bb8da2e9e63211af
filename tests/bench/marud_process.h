// A marud of the suite's own: its configuration, its start, its end, and what it says about itself.
#pragma once

#include "maru/maru.h"
#include "tests/bench/processes.h"

#include <cstdint>
#include <memory>
#include <string>

namespace maru::bench {

inline constexpr uint64_t kSmallPageBytes = 4096;

struct PoolShape {
  uint64_t pages = 0;  // wanted at the least
  uint64_t page_bytes = kSmallPageBytes;
  uint64_t region_bytes = 0;  // 0: the default
  uint32_t lanes = 16;
  uint32_t pins_max = 16384;
  uint32_t touch_entries = 4096;
  std::string more = "high_watermark = 1\n";  // lines of the configuration; rows that evict do it by request
  bool in_file = false;                       // a file on tmpfs, which survives marud; otherwise a memfd
};

class MarudProcess {
 public:
  // Starts `program` and waits until a client is answered. Throws with marud's log when that fails.
  MarudProcess(const std::string& program, const PoolShape& shape);
  ~MarudProcess();

  const std::string& socket_path() const { return socket_path_; }
  const std::string& directory() const { return directory_.path(); }
  pid_t pid() const { return process_->pid(); }
  void kill_now() { process_->kill_now(); }
  // Starts it again on the same configuration, without waiting.
  void start();
  // The reply of an administration command, as JSON text.
  std::string ask(const std::string& json) const;
  std::string log() const { return tail_of(log_path_); }

 private:
  std::string program_;
  TemporaryDirectory directory_;
  std::string socket_path_;
  std::string config_path_;
  std::string log_path_;
  std::unique_ptr<Child> process_;
};

// An attached client; detaches at its end.
class Client {
 public:
  explicit Client(const std::string& socket_path, uint32_t thread_cache_pages = 0);
  ~Client() { maru_detach(client_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  operator maru_client*() const { return client_; }
  maru_geometry geometry() const;

 private:
  maru_client* client_ = nullptr;
};

// 0 or the negative errno of maru_attach.
int try_attach(const std::string& socket_path, uint32_t thread_cache_pages, maru_client** ret_client);

// Throws when a call of the library failed; returns its result otherwise.
int must(int result, const char* what);

// True when the pool's control region is mapped with huge pages here.
bool pool_has_huge_pages();

}  // namespace maru::bench
