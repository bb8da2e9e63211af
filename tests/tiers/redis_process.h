// A redis-server of a test's own, on a Unix socket in the test's directory.
#pragma once

#include "tests/support/child_process.h"

#include <memory>
#include <string>
#include <vector>

namespace maru::test {

class RedisProcess {
 public:
  static bool is_installed();

  // `more`: further words of its command line.
  explicit RedisProcess(const std::string& directory, std::vector<std::string> more = {});
  const std::string& socket_path() const { return socket_path_; }
  void start();  // waits until it listens
  void kill() { process_.reset(); }
  void signal(int number) { process_->signal(number); }

 private:
  const std::string directory_, socket_path_;
  const std::vector<std::string> more_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace maru::test
