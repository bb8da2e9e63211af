// Another process with a client of its own, which does one thing at a time as the test says: the second party of the tests
// in which two processes meet.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "tests/support/child_process.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace maru::test {

class Puppet {
 public:
  // Attached when this returns. Throws if it could not attach.
  explicit Puppet(const std::string& socket_path, const std::string& pool = "default");

  // {"do": ...} as puppet.cc lists them; the reply has "result" and what else there is.
  nlohmann::json ask(const nlohmann::json& request);
  int result(const nlohmann::json& request) { return ask(request).at("result"); }

  int store(const std::string& key, const std::string& text, const std::string& parent = {}) {
    return result({{"do", "store"}, {"key", key}, {"text", text}, {"parent", parent}});
  }
  // Stays pinned until release(key).
  nlohmann::json retrieve(const std::string& key) { return ask({{"do", "retrieve"}, {"key", key}}); }
  int release(const std::string& key) { return result({{"do", "release"}, {"key", key}}); }
  int remove(const std::string& key) { return result({{"do", "delete"}, {"key", key}}); }
  int exists(const std::string& key) { return result({{"do", "exists"}, {"key", key}}); }

  ChildProcess& process() { return *process_; }

 private:
  FileDescriptor strings_;
  std::unique_ptr<ChildProcess> process_;
};

// The other end: roles.h.
int run_puppet(int argument_count, char** arguments);

}  // namespace maru::test
