// The configuration of marud: a TOML file, or options of the command line. All mistakes in a file are reported at once, each
// with its line, the found value and the expected value.
//
//   [daemon]
//   socket = "/run/marud/marud.sock"     state_dir = "/run/marud/state"    log_level = "info"
//   admin_group = "maru-admin"           adopt_grace_ms = 4000           policy_dir = "/usr/lib/marud/policies"
//   tracing_socket = "/run/maru-eventd/spans.sock"
//
//   [http]
//   socket = "/run/marud/http.sock"      listen = "127.0.0.1:9101"       token_file = "/etc/marud/http-token"
//   connections = 64                     timeout_ms = 2000               read_token_file = "/etc/marud/http-read-token"
//
//   [limits]
//   connections = 1024    regions = 0            bytes = 0              pins = 0
//
//   [[limit]]
//   user = "alice"        bytes = "64GiB"
//
//   [[pool]]
//   name = "default"      backend = "memory"      size = "64GiB"     huge_pages = "try"    numa_nodes = [1]
//   page_bytes = "2MiB"   region_bytes = "256MiB" lanes = 256        pins = 16384          touch_entries = 4096
//   key_inline_bytes = 128                        max_regions_per_instance = 0             checksums = false
//   policy = "lru"        policy_options = { probation = 0.5 }          pin_overdue_ms = 30000
//   high_watermark = 0.90 low_watermark = 0.80
//   users = ["alice", 1000]                       groups = ["engines"]             admins = ["alice"]
//   tenants = "any"       tenants_max = 256       default_soft_limit = "1GiB"              default_hard_limit = "2GiB"
//
//   profile = "local"     coherent = false        hosts = 4          suspect_after_ms = 5000
//   fencing_command = ["/usr/local/sbin/fence", "--now"]             fencing_timeout_ms = 30000
//   fencing_names = ["left", "right"]
//
//   [[pool.tenant]]
//   name = "alice"        soft = "4GiB"           hard = "8GiB"
//
//   [[pool]]
//   name = "shared"       backend = "file"        path = "/mnt/pmem/pool"                  size = "1TiB"
//   control_path = "/dev/shm/control"              after_power_loss = "verify"           reserve = true
//
//   [[provision]]                                 see daemon/tools/provision/wish.h
//   [[pool]]
//   name = "far"          backend = "dax"         device = "/dev/dax0.0"                   align = "2MiB"
//   format = "blank"      after_power_loss = "verify"
#pragma once

#include "daemon/base/log.h"
#include "daemon/config/changes.h"
#include "daemon/memory/dax_sysfs.h"
#include "daemon/memory/memory_device.h"
#include "daemon/pool/pool.h"
#include "daemon/system/subordinate_users.h"
#include "daemon/tools/provision/wish.h"

#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::daemon {

class ConfigTable;

enum class Backend : uint8_t { kMemory, kFile, kDax };
const char* backend_text(Backend backend);  // as it is configured

// Of a pool on a DAX device: config/dax.cc.
struct DaxSpec {
  std::string device;          // a wish for find_dax_devices()
  std::string control_device;  // the same; empty: the control region lies on `device`, before the pages
  uint64_t alignment = 0;      // that the device must have; 0: any
  bool formats_blank = true;   // else only on command
  DaxRules rules;              // for tests; never configured
};

// A pool in a file or on a device that was neither left in order nor used in this boot.
enum class AfterPowerLoss : uint8_t { kVerify, kFormat };

// Background eviction of pools that are configured and say nothing else; a high watermark of 1 turns it off.
inline constexpr double kHighWatermark = 0.90;
inline constexpr double kLowWatermark = 0.80;
inline constexpr size_t kPolicyOptionsMax = 64;  // far more than any policy has

struct PoolSpec {
  PoolConfig pool;
  Backend backend = Backend::kMemory;
  std::string path;          // file
  std::string control_path;  // file that has the control region; empty: it lies in `path`, before the pages
  uint64_t bytes = 0;        // 0: the size that the file has, or both have
  HugePages huge_pages = HugePages::kTry;
  NumaPlacement numa;  // memory; first_touch also files
  DaxSpec dax;
  AfterPowerLoss after_power_loss = AfterPowerLoss::kVerify;
  bool is_required = false;  // without it marud does not start
  bool reserve = true;       // a file has room for all of it before it serves, where its file system can
  std::vector<uid_t> users;  // besides root and marud's own user, which always may
  std::vector<gid_t> groups;
  std::vector<uid_t> readers;  // users that may attach to read only
  std::vector<gid_t> reader_groups;
  std::vector<uid_t> admins;  // administrators of this pool, besides marud's
  std::vector<gid_t> admin_groups;
  int line = 0;                                   // in the file, 0 on the command line
  std::map<std::string, int, std::less<>> lines;  // of each key in the table
  WrittenTable written;                           // its table, empty on the command line
};

// The values of a pool without a setting.
PoolSpec default_pool_spec();

// config/http.cc.
struct HttpConfig {
  bool is_on = false;
  std::string socket_path;                             // empty: http_socket_path()
  std::string listen;                                  // empty: on the socket alone
  std::string token_file;                              // for listen: a request with it may do everything
  std::string read_token_file;                         // for listen: may only look; one of the two is there
  uint32_t connections = 64;                           // at a time
  uint32_t timeout_ms = 2000;                          // for the event loop to look at a request
  std::map<std::string, int, std::less<>> lines = {};  // of each key
};

// The limits of one user, over all pools; 0: as much as there is. users.h applies them, config/access.cc reads them.
struct UserLimits {
  uint64_t connections = limits::kConnectionsMax / 4;  // so that no user takes all connections from the others
  uint64_t regions = 0;                                // rented
  uint64_t bytes = 0;                                  // of these regions
  uint64_t pins = 0;
};
// For one user, or each user in a group. An absent limit is the limit of all users.
struct UserLimitRule {
  std::optional<uid_t> user;
  std::optional<gid_t> group;
  std::optional<uint64_t> connections, regions, bytes, pins;
  int bytes_line = 0;  // of the file
};

struct Config {
  std::string socket_path;
  std::string state_dir;
  bool state_dir_is_default = false;  // "state" beside the socket
  std::string policy_dir;             // of policies that are not built in; copied into the pools
  std::string tracing_socket;         // of maru-eventd; empty: evictions are not traced; copied into the pools
  LogLevel log_level = LogLevel::kInfo;
  std::optional<gid_t> admin_group;  // besides root and marud's own user
  uint32_t adopt_grace_ms = 4000;    // less than the five seconds that a client waits for its attachment
  HttpConfig http;
  UserLimits user_limits;  // of all users but root and marud's own
  std::vector<UserLimitRule> user_limit_rules;
  int user_limits_bytes_line = 0;      // of the file
  SubordinateUsers subordinate_users;  // not from the file: of this machine, when it was read
  std::vector<PoolSpec> pools;
  WrittenTable written_daemon, written_http;  // empty when the command line described everything
  std::vector<provision::Wish> wishes;        // for marud-provision; marud only reports their mistakes
};

struct ConfigProblem {
  int line;          // 0: no line in particular
  std::string text;  // "pool.page_bytes: found \"3KiB\", expected a power of two from 4 KiB to 4 MiB"
};

// Where policies are looked for unless the configuration says otherwise: marud/policies in the library folder of the build.
extern const char* const kPolicyDir;

// $XDG_RUNTIME_DIR/marud, else /run/marud for root and /run/user/UID/marud for others.
std::string default_runtime_dir();
// "state" beside the socket.
std::string default_state_dir(const std::string& socket_path);

// As configured, or "http.sock" beside marud's socket.
std::string http_socket_path(const Config& config);
// The reasons that would keep HTTP from being answered. `with_tokens`: also the files of the tokens, which a marud that
// runs waits for.
void check_http(const Config& config, bool with_tokens, std::vector<ConfigProblem>& problems);

// Reads the text of a file. Mistakes are appended to `problems`; the result is usable only if there is none.
Config parse_config(std::string_view text, std::vector<ConfigProblem>& problems);
Config read_config(const std::string& path, std::vector<ConfigProblem>& problems);

// Whether users other than root and marud's own may use a pool or administrate.
bool others_may_connect(const Config& config);

// The rules for pools wherever they were described: ranges, powers of two, names and paths that differ.
void check_pools(const std::vector<PoolSpec>& pools, std::vector<ConfigProblem>& problems);
// One spelling for all spellings of a path; links are not followed.
std::string normal_path(const std::string& path);

// Makes each pool's policy, and forgets it again: an unknown one, an option that it does not have and a value that cannot be
// are problems. Loads code from the policy folder. config/policy.cc.
void check_policies(const std::vector<PoolSpec>& pools, std::vector<ConfigProblem>& problems);

// Reads which users may use a pool, and which users may administrate it. config/access.cc.
void read_access(ConfigTable& table, PoolSpec& spec);
// The tables [limits] and [[limit]].
void read_user_limits(ConfigTable& root, Config& config);
// A group or a user of this machine by name.
std::optional<gid_t> group_of(const std::string& name);
std::optional<uid_t> user_of(const std::string& name);

// Reads and checks the settings of pools on DAX devices alone.
void read_dax(ConfigTable& table, PoolSpec& spec);
// Where the memory of memory pools shall lie: config/dax.cc, too.
void read_numa(ConfigTable& table, PoolSpec& spec);

// The line of this key of a pool, or of the pool when the key is not there.
int line_of(const PoolSpec& spec, const char* key);

}  // namespace maru::daemon
