// The configuration of maru-tierd.
//
//   [pool]        name = "default"   socket = "/run/marud/marud.sock"
//   [store]       policy = "all" | "second_use" | "skip_pool"   pins_percent = 5   attempts = 3   forget_deleted = true
//                 bytes_a_day = "2TiB"
//   [prefetch]    socket = "/run/maru-tierd/prefetch.sock"   in_flight = "256MiB"   held_percent = 5
//   [quotas]      file = "/var/lib/maru-tierd/quotas.json"   default = "100GiB"
//   [[tier]]      name = "nvme"   kind = "file"   load_timeout_ms = 2000   store_timeout_ms = 10000   in_flight_max = 256
//     [tier.options]   the options of the kind of tier
#pragma once

#include "daemon/config/table.h"
#include "daemon/tierd/store_controller.h"
#include "daemon/tierd/tier_slot.h"

#include <string>
#include <vector>

namespace maru::tierd {

struct TierSettings {
  TierSlotSettings slot;
  std::string kind;
  TierOptions options;
};

struct Settings {
  std::string pool = "default";
  std::string socket_path;  // of marud; empty: as the library finds it
  StoreSettings store;
  uint32_t pins_percent = 5;
  std::string prefetch_socket;  // empty: no client can ask
  uint64_t in_flight_bytes_max = 256u << 20;
  uint32_t held_percent = 5;
  std::string quotas_path;          // file of the tenants' limits; empty: none
  uint64_t quota_bytes = 0;         // of a tenant without a limit of its own, in each tier; 0: no limit
  std::vector<TierSettings> tiers;  // nearest first
};

Settings read_settings(maru::daemon::ConfigTable& root);

}  // namespace maru::tierd
