// The S3 server of the tests (s3_server.py), which verifies every signature, as a process of a test's own.
#pragma once

#include "daemon/tierd/tiers/tier.h"
#include "tests/support/child_process.h"

#include <memory>
#include <string>
#include <vector>

namespace maru::test {

class S3Process {
 public:
  static constexpr const char* kSecret = "secret/of+the=test";

  // `more`: further words of its command line. With TLS the certificate is `directory`/certificate.pem, of 127.0.0.1.
  explicit S3Process(const std::string& directory, std::vector<std::string> more = {}, bool has_tls = false);

  std::string endpoint(const std::string& host = "127.0.0.1") const;
  std::string certificate_path() const { return directory_ + "/certificate.pem"; }
  // Of a tier in it; those of `more` count before these.
  tierd::TierOptions options(tierd::TierOptions more = {}) const;
  void start();  // waits until it listens; at the port of before
  void kill() { process_.reset(); }

  // An order, see there. Returns the answer.
  std::string tell(const std::string& order) const;
  // One of its numbers: how often a verb was answered with a status ("GET 206"), or a header was seen.
  uint64_t count(const std::string& name) const;

 private:
  const std::string directory_;
  std::vector<std::string> more_;
  const bool has_tls_;
  int port_ = 0, orders_port_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace maru::test
