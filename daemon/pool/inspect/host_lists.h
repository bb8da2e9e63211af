// The hosts of a shared pool, as administrators see them and declare them dead. All facts come from the pool, and a client that
// may write to the pool may have written them.
//
// Thread safety: one thread.
#pragma once

#include "daemon/metrics/snapshot.h"
#include "daemon/pool/core.h"
#include "daemon/pool/hosts/host_reclaims.h"
#include "daemon/pool/hosts/hosts.h"
#include "daemon/pool/region_table.h"

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace maru::daemon {

class HostLists {
 public:
  struct Below {
    PoolCore& core;
    RegionTable& regions;
    HostReclaims& reclaims;
    Hosts& hosts;
  };
  explicit HostLists(const Below& below)
      : core_(below.core), regions_(below.regions), reclaims_(below.reclaims), hosts_(below.hosts) {}
  HostLists(const HostLists&) = delete;
  HostLists& operator=(const HostLists&) = delete;

  nlohmann::json list() const;
  nlohmann::json lanes_elsewhere(uint32_t from) const;
  // How many are live, suspect and dead; nothing of a pool that one host has for itself.
  std::optional<std::array<uint64_t, metrics::kHostStates>> hosts_by_state() const;
  nlohmann::json declare_dead(const nlohmann::json& request);

 private:
  PoolCore& core_;
  RegionTable& regions_;
  HostReclaims& reclaims_;
  Hosts& hosts_;
};

}  // namespace maru::daemon
