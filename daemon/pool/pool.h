// A pool: one device, its control region, and all of marud's decisions about it. Used by the deciding thread alone; no method
// blocks and each does bounded work. A word that a client wrote into shared memory is copied once, checked and only then used.
// marud's own truth (regions, lanes) is private here and merely shown in the region.
#pragma once

#include "daemon/policy/policies.h"
#include "daemon/pool/feed/follow.h"
#include "daemon/pool/lanes/lane_locks.h"
#include "daemon/pool/tenants/tenants.h"
#include "daemon/system/client_identity.h"
#include "libmaru/base/result.h"
#include "maru/format/control_region.h"
#include "maru/format/wire.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::daemon {

namespace metrics {
struct PageCensus;
struct PoolSnapshot;
}  // namespace metrics

class Device;  // daemon/memory/device.h: the memory and its descriptor

// Several hosts on one pool: docs/format.md, "Hosts".
inline constexpr uint32_t kHostsDefault = 4;  // slots of a new pool
struct SharingConfig {
  bool is_shared = false;
  bool is_coherent = false;  // declared by the administrator: atomic operations hold between the hosts
  uint32_t hosts = 0;        // slots of a new pool; 0: the default
  uint32_t suspect_after_ms = 5000;
  std::vector<std::string> fencing_command;  // absolute path and arguments; empty: none
  std::vector<std::string> fencing_names;    // the only names that it gets
  uint32_t fencing_timeout_ms = 30'000;
  std::string boot_id;     // empty: the kernel's
  std::string machine_id;  // empty: the content of /etc/machine-id
};

struct PoolConfig {
  std::string name = "default";
  SharingConfig sharing;
  uint64_t page_bytes = 0;    // 0: the default for the size
  uint64_t region_bytes = 0;  // 0: the default for the size
  uint32_t lanes = 0;         // 0: the default, and so below
  uint32_t pins_max = 0;
  uint32_t touch_entries = 0;
  uint32_t key_inline_bytes = 0;
  uint32_t max_regions_per_instance = 0;  // 0: no limit
  bool checksums = false;
  uint32_t tenants_max = 0;
  TenantSettings tenants;      // as configured
  std::string policy = "lru";  // of eviction: daemon/policy/policies.h
  PolicyOptions policy_options;
  std::string policy_dir;      // folder of the policies that are not built in
  std::string tracing_socket;  // where spans of evictions go; empty: nowhere
  // Background eviction starts when this share of the page bytes is in use, and stops at the lower share. 0: no background
  // eviction, as for 1.
  double high_watermark = 0;
  double low_watermark = 0;
  uint32_t pin_overdue_ms = 30'000;  // pins older than this are counted and logged once
};

// A number of this machine above 0, for locks on memory that several hosts share.
uint32_t machine_number(const SharingConfig& sharing);

struct LaneGrant {
  uint32_t lane = 0;
  uint32_t generation = 0;
  bool kept = false;  // the previous lane, with everything it holds
};

// A region that a request took from another client, for the session of that client.
struct TakenRegion {
  uint32_t lane = 0;  // that rented it
  uint32_t region = 0;
  uint32_t generation = 0;  // of its word when it was taken
  uint64_t evicted = 0;     // its blocks that went for the takeover
  uint64_t left = 0;        // its blocks that stayed
};

// The begin of the first turn that looked for blocks to evict, and the end of the last such turn; equal: there was none.
struct Choosing {
  std::chrono::steady_clock::time_point from{}, to{};

  bool is_some() const { return from != to; }
};

struct RentResult {
  int32_t status = 0;       // 0 or -errno
  std::string explanation;  // for people, when status is negative
  std::vector<uint32_t> regions;
  std::vector<wire::RunRecord> runs;
  std::vector<std::byte> evicted_keys;  // EvictedKey records as they go on the wire
  uint32_t evicted = 0;                 // records in evicted_keys
  uint32_t evicted_total = 0;           // also of a refused request
  Choosing choosing;
  std::vector<TakenRegion> taken;
};

// The rest of the limits of the asker's user.
struct RentLimits {
  uint64_t regions_left = UINT64_MAX;
  bool own_regions_only = false;  // no pages of regions that others rent, or no lane: they would count for no user
};

// The holdings of one user's clients.
struct UserUse {
  uint64_t regions = 0;        // rented
  uint64_t bytes = 0;          // of these regions
  uint64_t found_regions = 0;  // of them, regions whose words said so when this marud took the pool over
  uint64_t found_bytes = 0;
  uint64_t pins = 0;  // at marud's last look
};

struct DeleteTreeResult {
  int32_t status = 0;
  uint64_t deleted = 0;
  uint64_t left = 0;
};

// A pin that took longer than its request.
struct DeletedTree {
  uint64_t ticket = 0;
  DeleteTreeResult result;
};

// Pins that have become overdue (inspect/pins.cc), for the log.
struct OverduePin {
  uint32_t lane = 0;
  pid_t pid = 0;
  uint32_t page = 0;
  std::string key;  // as text; empty when it cannot be read
  uint64_t age_ms = 0;
};
struct OverduePins {
  std::vector<OverduePin> pins;
  uint64_t unnamed = 0;  // more of them
};

class Pool {
 public:
  // How much of so many bytes is for the control region of a new pool in two pieces: shm::divide_pool().
  static Result<uint64_t> control_room(const PoolConfig& config, uint64_t bytes, uint64_t unit, uint64_t label_bytes);
  // Formats the device (everything in it is lost) and starts the pool's first epoch. `uuid`: the pool's, unless a cut-off
  // formatting of this device has left a uuid there; `secret`: the key of its digests, which decides where in the registry a
  // key lies. Zeros: random values.
  static Result<std::unique_ptr<Pool>> format(const PoolConfig& config, std::unique_ptr<Device> device, uint64_t now_ms,
                                              const std::array<uint8_t, 16>& uuid = {},
                                              const std::array<uint64_t, 16>& secret = {});
  // Takes over a formatted device: checks the header, audits, raises the epoch, adopts the live lanes, rebuilds the queues of
  // the eviction order. Each adopted lane counts as alive until client_died says otherwise. `is_doubtful`: verify() follows.
  // Until it has succeeded the pool keeps saying that it comes from another boot, so that a marud that is cut off leaves it as
  // doubtful.
  static Result<std::unique_ptr<Pool>> adopt(const PoolConfig& config, std::unique_ptr<Device> device, uint64_t now_ms,
                                             bool is_doubtful = false);
  ~Pool();

  // After a loss of power, before the pool serves: processes of another boot are dead. Drops each block whose bytes do not
  // match its checksum, or whose ancestors were dropped. Reads every byte. Errors: EBADMSG the bookkeeping itself is damaged,
  // so nothing in the pool can be believed; ECANCELED; EIO.
  struct Verified {
    uint64_t blocks = 0, bytes = 0, dropped = 0;
  };
  using VerifyProgress = std::function<bool(uint64_t done_bytes, uint64_t of_bytes)>;
  Result<Verified> verify(const VerifyProgress& progress, uint64_t now_ms);

  const PoolConfig& config() const;
  const format::Header& header() const;  // marud's private copy
  const Device& device() const;
  uint64_t epoch() const;
  uint32_t host() const;  // the slot of this marud; 0 in a pool that is not shared
  // Not empty: another host's marud took this host for dead and took its holdings back. The pool must be fenced.
  const std::string& lost_because() const;

  // Gives a lane to a process. With previous_lane != 0 the same process (pid, start time) gets that lane back. Errors: EUSERS
  // every lane is in use; EAGAIN likewise, and turns take a lane back: retry once is_lane_coming() says no; EMFILE, ENFILE. The
  // client of a new lane gets *ret_control as its descriptor of the control region, if that is open. The descriptor's lock
  // tells when no process maps the lane any more (lane_locks.h). Without a place for it, or when it is closed, the lane has no
  // lock.
  Result<LaneGrant> attach(const ClientIdentity& who, uint32_t previous_lane, uint32_t previous_generation,
                           uint64_t now_ms, FileDescriptor* ret_control = nullptr);
  bool is_lane_coming() const;
  // During a check at rest turns do nothing else, ended lanes wait, and the caller keeps requests that change the pool:
  // attach(), rent(), delete_tree(), grant_credit(), report_bad_page(), set_policy().
  bool is_quiesced() const;
  // Whether turns still take back, or have yet to, the holdings of a client or a host that is gone.
  bool is_reclaiming() const;
  // Limits of tenants are being written down, and others may wait behind them; or only whether a thread still writes.
  bool is_writing_limits() const;
  bool has_limits_writer() const;
  // Whether attach() would give this process this lane back.
  bool keeps_lane(const ClientIdentity& who, uint32_t lane, uint32_t generation) const;
  // The client said goodbye: its lane is reclaimed now and may be given out again.
  void detach(uint32_t lane);
  // Proof that the process is gone (pidfd, or pid and start time): reclaim; work that does not fit goes on in turn().
  void client_died(uint32_t lane);
  // The same for a pool that was fenced, whose memory is not touched any more.
  void give_up_lane(uint32_t lane);
  // It was fenced and has no turns any more: a check at rest ends without an answer, and the lanes that ended during it are
  // given up.
  void give_up_turns();
  // Lanes in use whose process is not watched yet (after adopt): processes to look for.
  struct AdoptedLane {
    uint32_t lane;
    ClientIdentity who;
    bool same_boot;     // false: the process cannot be alive on this host
    bool is_elsewhere;  // who.pid belongs to another pid namespace, or to an unknown one
    uint64_t pid_namespace;
  };
  std::vector<AdoptedLane> adopted_lanes() const;
  // Every lane of a process, watched or not; without lanes whose process ended while the pool is checked at rest.
  std::vector<AdoptedLane> live_lanes() const;
  // The process of an adopted lane lives, and marud watches for its end. `user`: of the process, by the kernel's word.
  void lane_is_watched(uint32_t lane, std::optional<uid_t> user);
  LaneLock lock_of(uint32_t lane) const;
  // An adopted lane whose process marud can neither prove to live nor to have ended.
  bool is_unproven(uint32_t lane) const;
  uint64_t unproven_lanes() const;
  const std::string& why_no_lane_locks() const;  // empty: new lanes have locks
  // The uses of the clients here, by user, added to `uses`. A client that may write to the pool can write pins and the
  // words that marud finds: so neither is a reason for anything in another pool.
  void add_uses(std::map<uid_t, UserUse>& uses) const;

  // Refused with EDQUOT when the limits alone are the reason that there is no memory. `request_id`: the client's number for the
  // memory that was taken for the request, should the answer be lost. *ret_ticket is 0 at first. It is not 0 afterwards when
  // blocks can be chosen only after some turns, or choosing them takes several. Then there is no result yet: the caller repeats
  // the request with that ticket when may_rent() says so. Without a place for a ticket the request is done when this returns.
  // `came`: the arrival of the request, if that was before this call.
  RentResult rent(uint32_t lane, const wire::RentRequest& request, uint64_t now_ms, const RentLimits& limits = {},
                  uint32_t request_id = 0, uint64_t* ret_ticket = nullptr,
                  std::optional<std::chrono::steady_clock::time_point> came = std::nullopt);
  bool may_rent(uint64_t ticket) const;
  // A waiting request of this lane ends: returns the keys that were evicted for it, which no reply has named.
  RentResult give_up_rent(uint32_t lane);
  // A tree that is small, in a small pool, is gone when this returns. Otherwise *ret_ticket is not 0 and turns go on with it:
  // its result is among take_deleted_trees() under this number. One at a time for each lane (EAGAIN).
  DeleteTreeResult delete_tree(uint32_t lane, const wire::DeleteTreeRequest& request, uint64_t now_ms,
                               uint64_t* ret_ticket);
  std::vector<DeletedTree> take_deleted_trees();
  // 0, and the account has credit for the bytes; or an errno, and why.
  int grant_credit(uint32_t lane, const wire::CreditRequest& request, uint64_t now_ms, std::string* ret_why);
  // 0, and there is a slot for the key in the registry unless another client took it; or EXFULL, and why.
  int make_room(uint32_t lane, const wire::RoomRequest& request, uint64_t now_ms, std::string* ret_why);
  // A client says that copies of these blocks (PageRefs, of any value) are elsewhere. Costs some lines a block. Returns how
  // many of them were noted.
  uint64_t note_copies(std::span<const uint64_t> blocks, uint64_t now_ms);

  // The limits of tenants hold from here on: to be called before the pool serves. `at_run_time` goes before the
  // configuration; `save` writes down each change of it before it is answered.
  void set_tenant_limits(const TenantSettings& at_run_time,
                         std::function<Result<void>(const TenantSettings& at_run_time)> save);

  // Another policy from now on; no block is lost. On an error the policy is as before.
  // `in_turns`: of a large pool it is told of the blocks in turns; until then nothing is evicted, and requests for memory wait.
  Result<void> set_policy(const std::string& name, const PolicyOptions& options, uint64_t now_ms,
                          bool in_turns = false);
  // The reply, or nothing and a ticket until that is done; and then with the ticket the reply.
  nlohmann::json when_ordered(nlohmann::json reply, uint64_t* ret_ticket);
  nlohmann::json late_policy(uint64_t* ret_ticket);

  // One more follower: docs/events.md. The caller says when its connection is over, with the incarnation that the reply names.
  // Errors: of Feed::make; EFBIG; EMFILE.
  Result<FollowGrant> follow(uint64_t now_ms);
  void unfollow(uint64_t incarnation);
  // How soon the next turn is wanted; nothing while no program follows.
  std::optional<uint64_t> feed_turn_ms() const;

  // Bounded background work: drain touch rings, sweep, free RETIRED pages whose pins are gone, reclaim. Returns true when
  // more work can be done right away.
  bool turn(uint64_t now_ms);
  // The most lines of memory that one turn and the requests before it have read since marud was started.
  uint64_t turn_lines_max() const;
  // Pins that have become overdue since the last call. Each pin is named once, even if it lasts long.
  OverduePins take_overdue_pins();
  // Draining, memory/drain.cc: no memory is rented any more and all unpinned blocks go, a bounded step a turn. Off:
  // clients may rent again.
  void set_draining(bool draining, uint64_t now_ms);
  bool is_drained() const;
  // Regions that draining took from their owners since the last call, for the sessions of these owners.
  std::vector<TakenRegion> take_drained_regions();
  nlohmann::json drain_json() const;
  // Ends the work that turns had begun to take back, as far as that is not too much, and marks the shutdown as clean.
  // Of a pool in a file on a disk the rest is written first; if that fails, the shutdown is not marked clean.
  Result<void> close();

  // Bad memory of the control region, which cannot go on: a text about it, or nothing.
  std::string bad_control_memory() const;
  // A client met bad memory in this page. Looks at it, and takes it out of use if that is so. A text for the log, or
  // nothing.
  std::string report_bad_page(uint64_t page, uint64_t now_ms);

  // Administration. `request` is the JSON object of the client; the reply is an object; errors are {"error": text}.
  // Commands: "regions", "blocks" {cursor, limit, prefix, tenant, type, min_priority, pinned}, "block" {key},
  // "pins" {cursor, limit, overdue}, "evict" {pages}, "memory.poison" {page or key}, "memory.list" {cursor, limit},
  // "delete_tree" {key}, "clear", "check" {quiesce}. A key may come with {tenant, kind}. Lists are cut at `limit` (at most
  // 200) and carry "next" for the next call's cursor. "quota.set" and others: inspect/limit_commands.h.
  // A command that takes many turns ("evict", "delete_tree", "clear", "check"), is written down first ("quota.set"), or would
  // change a quiesced pool leaves a ticket in *ret_ticket and returns nothing. The same request with that ticket, later,
  // returns the reply and makes it 0, or nothing again. Without a place for a ticket the command is done when this returns.
  nlohmann::json admin(const std::string& command, const nlohmann::json& request, uint64_t now_ms,
                       uint64_t* ret_ticket = nullptr);
  nlohmann::json status_json(uint64_t now_ms) const;
  nlohmann::json lane_json(uint32_t lane, uint64_t now_ms) const;
  // The same from a census that is complete.
  nlohmann::json status_json(const metrics::PageCensus& census) const;
  // In a shared pool: the lanes, from this lane on, that clients of other hosts have, with their host. Only the pool says so,
  // and any process that may write to the pool may have written it. [] where the pool has one host.
  nlohmann::json lanes_elsewhere(uint32_t from) const;
  bool is_shared() const;
  // Of the last audit, at start or since: violations of rules that hold always, whether clients are at work or not.
  uint64_t audit_findings() const;
  // Counts the next pages. Returns true when the census is complete.
  bool take_census(metrics::PageCensus& census, uint64_t pages) const;
  // All but the name, the condition and the census, which the caller fills in.
  void fill(metrics::PoolSnapshot& snapshot);

 private:
  struct State;
  explicit Pool(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace maru::daemon
