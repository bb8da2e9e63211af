// The present troubles of the program, by its parts; /healthcheck tells them, and the service manager's status line.
// Thread safety: any thread may do everything.
#pragma once

#include <map>
#include <mutex>
#include <string>

namespace maru::daemon::beside {

class Health {
 public:
  enum class Weight : uint8_t {
    kDegraded,  // the rest works: status 200
    kUnhealthy  // the program does nothing of use: status 503
  };

  // `part`: "pool default". `trouble`: a whole sentence. Returns whether this is news, so that the log tells it once.
  bool set(const std::string& part, const std::string& trouble, Weight weight = Weight::kDegraded);
  bool clear(const std::string& part);

  // One line: {"status": "healthy" | "degraded" | "unhealthy", "reasons": [...]}.
  std::string json() const;
  int http_status() const;
  std::string text() const;  // the reasons, in one line; empty: all is well

 private:
  struct Trouble {
    std::string text;
    Weight weight;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Trouble> troubles_;
};

}  // namespace maru::daemon::beside
