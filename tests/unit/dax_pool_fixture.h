// A pool on a device that a file stands in for, and what befalls it between two starts.
#pragma once

#include "tests/support/dax_stand_in.h"
#include "tests/unit/startable_pool.h"

#include <cstring>
#include <string>

namespace maru::daemon {

class DaxPool : public StartablePool {
 protected:
  test::DaxStandIn devices_{directory_.file("dax")};

  DaxPool() : StartablePool(Backend::kDax) {
    spec_.dax.rules = devices_.rules();
    spec_.dax.device = devices_.path("dax0.0");
  }
  format::Header header(const std::string& name) {
    format::Header header;
    const std::string bytes = devices_.get(name, 0, sizeof(header));
    std::memcpy(&header, bytes.data(), sizeof(header));
    return header;
  }
  void pretend_other_boot(const std::string& name, bool in_order) {
    const uint64_t at = header(name).sections[format::kSectionHosts].offset;
    format::HostRecord host;
    std::string bytes = devices_.get(name, at, sizeof(host));
    std::memcpy(&host, bytes.data(), sizeof(host));
    switch_off(host, in_order);
    std::memcpy(bytes.data(), &host, sizeof(host));
    devices_.put(name, at, bytes);
    if (auto record = state_.load("far"); record && *record) {
      (*record)->boot_id = "another boot";
      EXPECT_TRUE(state_.save(**record));
    }
  }
};

}  // namespace maru::daemon
