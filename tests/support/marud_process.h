// A marud of a test's own: private socket, private state, ended by its pid. A marud that ends in any way that the test did
// not ask for fails the test.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace maru::test {

struct PoolWish {
  std::string name = "default";
  uint64_t bytes = 16u << 20;
  uint64_t page_bytes = 4096;
  uint64_t region_bytes = 1u << 20;
  uint32_t lanes = 16;  // 0: not said, and so the next
  uint32_t pins = 1024;
  uint32_t max_regions_per_instance = 0;
  bool checksums = false;
  bool in_file = false;       // else in memory
  bool in_two_files = false;  // the pages in pool_file(), the control region in control_file()
  bool on_device = false;     // as `more` says, in which DEV/ is where the stand-ins of devices are
  std::string users{};        // "1, 2": as in the configuration
  double high_watermark = 1;  // 1: eviction in the background is not in a test's way
  std::string more{};         // further lines of its table
};

class MarudProcess {
 public:
  // `prepare` makes what must be there before marud starts.
  using Prepare = std::function<void(const TemporaryDirectory& directory)>;
  // The grace is long, for a slow machine's clients take their time until they hand a pool's memory back. Where nobody will,
  // a test says how short it is to be.
  static constexpr uint32_t kGraceMs = 120'000;
  explicit MarudProcess(std::vector<PoolWish> pools = {PoolWish{}}, uint32_t adopt_grace_ms = kGraceMs,
                        const Prepare& prepare = {});
  ~MarudProcess();

  const std::string& socket_path() const { return socket_path_; }
  const TemporaryDirectory& directory() const { return directory_; }
  std::string pool_file(const std::string& pool) const { return directory_.file(pool + ".pool"); }
  std::string control_file(const std::string& pool) const { return directory_.file(pool + ".control"); }
  pid_t pid() const { return process_->pid(); }
  bool is_running() { return process_ && process_->is_running(); }

  // Waits until connections are answered.
  void start();
  void stop();     // SIGTERM; fails the test unless marud ends with status 0
  void kill();     // SIGKILL, and waits until the kernel has closed its sockets
  void suspend();  // SIGSTOP, and waits until it stands still
  void resume();   // SIGCONT

  // An administration command. On a refusal {"refused": errno, "text": explanation}.
  nlohmann::json ask(const nlohmann::json& request) const;
  nlohmann::json pool_status(const std::string& pool = "default") const;
  std::string log() const;
  // Waits until the log contains this.
  bool has_logged(const std::string& text) const;

 private:
  bool answers_as(pid_t pid) const;

  TemporaryDirectory directory_;
  std::string socket_path_, config_path_, log_path_;
  std::unique_ptr<ChildProcess> process_;
};

// What to start: $MARU_TEST_MARUD.
std::string marud_program();

}  // namespace maru::test
