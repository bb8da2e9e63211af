#include "daemon/pool/pool.h"

#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/memory/medium.h"
#include "daemon/pool/parts.h"
#include "daemon/system/boot_id.h"
#include "daemon/system/control_group.h"
#include "daemon/system/peer.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/format_claim.h"
#include "libmaru/shm/region/pool_sizing.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sys/random.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

bool fill_random(void* bytes, size_t size) {
  return ::getrandom(bytes, size, 0) == ssize_t(size);  // up to 256 bytes never come in parts
}

shm::FormatWishes wishes_of(const PoolConfig& config, uint64_t bytes) {
  shm::FormatWishes wishes;
  wishes.pool_bytes = bytes;
  wishes.page_bytes = config.page_bytes;
  wishes.region_bytes = config.region_bytes;
  wishes.lanes = config.lanes;
  wishes.pins_max = config.pins_max;
  wishes.touch_entries = config.touch_entries;
  wishes.key_inline_bytes = config.key_inline_bytes;
  wishes.tenants = config.tenants_max;
  if (config.sharing.is_shared) wishes.hosts = config.sharing.hosts != 0 ? config.sharing.hosts : kHostsDefault;
  return wishes;
}

}  // namespace

// -- life cycle -------------------------------------------------------------------------------------------------------

// From here on the region is mapped and checked, and the epoch is known.
Result<void> Pool::State::begin(uint64_t now) {
  core.now_ms = now;
  boot_words(core.config.sharing.boot_id.empty() ? current_boot_id() : core.config.sharing.boot_id, core.boot_id);
  core.pid_namespace = own_pid_namespace();
  if (auto claimed = hosts.slot.claim(); !claimed) return claimed;
  hosts.others.set_up();
  lanes.set_up();
  core.pin_counts.assign(shm::PinTable::counts_needed(core.region.layout()), AtomicU32{});
  core.pins = shm::PinTable(core.region, lanes.first, core.pin_counts);
  core.self.region = &core.region;
  core.self.pins = &core.pins;
  tenants.begin(core.config.name, core.region, lanes.in_use, {lanes.first, lanes.end}, core.config.tenants);
  core.self.returns = &tenants;
  core.self.trust = &core;
  regions.set_up();
  eviction.queues.set_up();
  if (auto begun = memory.room.set_up(); !begun) return begun;
  eviction.retired.set_up();
  removal.poison.set_up();
  findings.resize(core.pages());
  core.show_host(false);
  // Before anything else changes: a file on a disk must not say that it was left in order when it has some of the later stores.
  if (auto written = core.write_out_host(); !written) return written;
  core.self.id = lanes.daemon = shm::daemon_lane(core.region, core.host);
  if (core.region.is_shared()) lanes.set_up_own(now);
  inspect.eviction_spans.begin();
  return eviction.queues.set_policy(std::string(core.config.policy), PolicyOptions(core.config.policy_options), false);
}

Result<uint64_t> Pool::control_room(const PoolConfig& config, uint64_t bytes, uint64_t unit, uint64_t label_bytes) {
  shm::Pieces pieces;
  if (const char* problem = shm::divide_pool(wishes_of(config, bytes), unit, label_bytes, &pieces))
    return failure(EINVAL, "divide the " + size_text(bytes) + " of pool \"" + config.name + "\" in units of " +
                               size_text(unit) + ": " + problem);
  return pieces.control_room;
}

Result<std::unique_ptr<Pool>> Pool::format(const PoolConfig& config, std::unique_ptr<Device> device, uint64_t now_ms,
                                           const std::array<uint8_t, 16>& uuid,
                                           const std::array<uint64_t, 16>& secret) {
  auto state = std::make_unique<State>();
  state->core.config = config;
  state->core.device = std::move(device);
  const shm::FormatWishes wishes = wishes_of(config, state->core.device->bytes());
  format::Parameters parameters;
  shm::Layout layout;
  const shm::Pieces pieces = {state->core.device->control_room(), state->core.device->pages_room()};
  const char* problem = state->core.device->is_split()
                            ? shm::choose_parameters_in_two(wishes, pieces, &parameters, &layout)
                            : shm::choose_parameters(wishes, &parameters);
  if (problem == nullptr) problem = shm::plan_layout(parameters, &layout);
  if (problem) {
    const std::string what = "format pool \"" + config.name + "\" on " + state->core.device->name() + ": found " +
                             size_text(wishes.pool_bytes) + ", expected ";
    if (std::string_view(problem).starts_with("page_bytes"))
      return failure(EINVAL, what + "fewer and larger pages: " + problem);
    const auto least = state->core.device->is_split() ? std::nullopt : shm::least_pool_bytes(wishes);
    return failure(EINVAL, what + (least ? std::to_string(*least) + " bytes at least" : "another shape") + ": " +
                               problem + "; make it larger, or say fewer lanes, pins or touch_entries");
  }
  if (auto fits = check_memory_limit(state->core.device->control_fd(), layout.control_bytes,
                                     "the control region of pool \"" + config.name + "\"");
      !fits)
    return tl::unexpected(fits.error());
  if (auto taken = state->core.device->allocate(layout.control_bytes); !taken) return tl::unexpected(taken.error());
  if (auto mapped = state->core.device->map_control(layout.control_bytes); !mapped)
    return tl::unexpected(mapped.error());
  state->core.device->collapse_control();

  shm::FormatIdentity identity = {};
  if (!fill_random(identity.uuid, sizeof(identity.uuid)) || !fill_random(identity.secret, sizeof(identity.secret)))
    return failure(errno, "read random bytes for pool \"" + config.name + "\"");
  if (uuid != std::array<uint8_t, 16>{}) std::memcpy(identity.uuid, uuid.data(), uuid.size());
  if (secret != std::array<uint64_t, 16>{}) std::memcpy(identity.secret, secret.data(), sizeof(identity.secret));
  identity.created_unix_ms = now_ms;
  identity.checksums = config.checksums || config.sharing.is_shared;
  identity.shared = config.sharing.is_shared;
  identity.durable = !identity.shared && is_persistent(*state->core.device);
  // Before the label of the pages: a formatting that is cut off between the two is known by it.
  shm::FormatClaim found;
  if (!shm::claim_format(state->core.device->control(), identity.shared ? machine_number(config.sharing) : 0, &found))
    return failure(EBUSY, "format " + state->core.device->name() + ": found that " +
                              (found.is_one() ? "another host formats it at this moment, or died over it"
                                              : "another host has formatted it meanwhile") +
                              ", expected it blank still; start marud again when that host serves it");
  shm::settle_uuid(state->core.device->control(), identity.uuid);
  // On a disk, too, claim, label and header come in this order, so that a power loss leaves the same as a death.
  if (auto written = state->core.device->write_out(); !written) return tl::unexpected(written.error());
  if (auto labelled = state->core.device->label_pages(identity.uuid, identity.shared); !labelled)
    return tl::unexpected(labelled.error());
  if (auto written = state->core.device->write_out(); !written) return tl::unexpected(written.error());
  // A memory device was made now and is zero; clearing it would only touch all of it.
  const bool is_zero = state->core.device->kind() == "memory";
  problem =
      shm::ControlRegion::format(state->core.device->control(), parameters, identity, is_zero, &state->core.region);
  if (state->core.device->is_lost()) return failure(EIO, "format pool \"" + config.name + "\": its memory went away");
  // The claim may have gone with it, as if another process had written there.
  if (const auto bad = state->core.device->bad_control_memory(); problem && !bad.empty())
    return failure(EHWPOISON, "format pool \"" + config.name + "\": found bad memory at byte " +
                                  std::to_string(bad.front().offset) + " of " + state->core.device->name() +
                                  ", expected a device that can be written; have it repaired, or name another one");
  if (problem) return failure(EINVAL, "format pool \"" + config.name + "\": " + problem);
  shm::flush(state->core.region, state->core.device->control().data(), layout.control_bytes);
  if (auto begun = state->begin(now_ms); !begun) return tl::unexpected(begun.error());
  for (RegionEntry& entry : state->regions) entry.is_foreign = false;  // no other marud knows the pool yet
  if (state->core.region.is_shared()) state->core.device->share();
  state->core.device->keep();
  return std::unique_ptr<Pool>(new Pool(std::move(state)));
}

Result<std::unique_ptr<Pool>> Pool::adopt(const PoolConfig& config, std::unique_ptr<Device> device, uint64_t now_ms,
                                          bool is_doubtful) {
  auto state = std::make_unique<State>();
  state->core.config = config;
  state->core.device = std::move(device);
  state->core.shows_boot = !is_doubtful;
  const auto refuse = [&](const char* problem) {
    return failure(EBADMSG, "adopt pool \"" + config.name + "\": " + problem);
  };
  const uint64_t bytes = state->core.device->bytes();
  if (bytes < sizeof(format::Header)) return refuse("the device is smaller than a header");
  if (auto mapped = state->core.device->map_control(sizeof(format::Header)); !mapped)
    return tl::unexpected(mapped.error());
  format::Header header;
  std::copy_n(state->core.device->control().data(), sizeof(header), reinterpret_cast<std::byte*>(&header));
  shm::Layout layout;
  if (const char* problem = shm::ControlRegion::check_header(header, bytes, &layout)) return refuse(problem);
  if (state->core.device->is_split() &&
      header.parameters.pages * header.parameters.page_bytes > state->core.device->pages_room())
    return refuse("the device of its pages is smaller than they are");
  // A copy of the file may lack pages that are zero.
  if (auto taken = state->core.device->allocate(layout.control_bytes); !taken) return tl::unexpected(taken.error());
  if (auto mapped = state->core.device->map_control(layout.control_bytes); !mapped)
    return tl::unexpected(mapped.error());
  if (const char* problem = shm::ControlRegion::attach(state->core.device->control(), bytes, &state->core.region))
    return refuse(problem);
  if (state->core.region.is_shared() != config.sharing.is_shared)
    return refuse(config.sharing.is_shared
                      ? "found a pool of one host, expected one that was formatted with profile = \"shared\" (use "
                        "profile = \"local\", or format it anew)"
                      : "found a pool that several hosts share, expected profile = \"shared\" in the configuration: "
                        "another host may be using it");
  // The writer of the magic number may have died before this; a host that is lost now would take the whole pool with it.
  shm::flush(state->core.region, state->core.device->control().data(), sizeof(header));
  if (auto written = state->core.device->write_out_control(state->core.device->control().data(), sizeof(header));
      !written)
    return tl::unexpected(written.error());
  if (auto begun = state->begin(now_ms); !begun) return tl::unexpected(begun.error());
  std::vector<LaneId> begun;
  state->restart.adopt_lanes(&begun);
  state->tenants.adopt();
  state->restart.adopt_regions();
  state->memory.room.adopt();
  state->restart.adopt_pages(begun);
  state->memory.room.close_bare_pages();  // pages of dead lanes are FREE by now
  state->restart.finish_begun_lanes(begun);
  // A host that was lost took its caches with it: entries may be older than their pages.
  if (state->core.region.is_shared()) shm::repair_entries(state->core.region, 0, state->core.region.buckets());
  state->inspect.audits.adopt();
  if (state->core.region.is_shared()) state->core.device->share();
  if (state->core.device->is_lost()) return failure(EIO, "adopt pool \"" + config.name + "\": its memory went away");
  return std::unique_ptr<Pool>(new Pool(std::move(state)));
}

// The meter starts here: the lines that the adoption read belong to no turn of a client.
Pool::Pool(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->turns.lines_before = state_->core.meter.read();
}
Pool::~Pool() = default;

Result<void> Pool::close() {
  const bool is_shared = state_->core.region.is_shared();
  state_->hosts.slot.end_heartbeat();
  // Asked now: the last turn was a while ago, and in a slot that is being taken back nothing is written.
  if (is_shared && state_->hosts.slot.is_lost()) {
    log_warning("pool \"{}\" is not left in order: {}", config().name, lost_because());
    return {};
  }
  // No asker waits for the end of a check at rest any more, and clients that ended during it are gone.
  state_->inspect.audits.drop_at_rest();
  for (const uint32_t lane : state_->hosts.ended.take()) state_->hosts.ended.end(lane);
  state_->reclaiming.reclaim.finish_lanes(kReclaimPagesAtClose);
  state_->eviction.queues.reorder_now();  // half of that is an order that an audit takes for damaged
  if (state_->eviction.recency.has_backlog())
    state_->eviction.recency.drain_all();  // the last touches of clients that have ended
  // Attached clients go on storing, and a loss of power may then cut their stores off as if marud had been at work.
  const bool is_clean = is_shared || state_->lanes.in_use.is_empty();
  // First everything else: a file may be left with any part of its last writes. HostedPool::is_written_out may have waited for
  // the disk already, but before the last turns and the lines above: so this writes once more; it is little now. The third
  // write has the host record alone, since a single write has no order within.
  auto written = is_clean && !is_shared ? state_->core.device->write_out() : Result<void>();
  state_->core.show_host(is_clean && written);
  if (is_shared) state_->leave_slot();
  if (written) written = state_->core.write_out_host();
  return written;
}

const PoolConfig& Pool::config() const { return state_->core.config; }
const format::Header& Pool::header() const { return state_->core.region.header(); }
const Device& Pool::device() const { return *state_->core.device; }
uint64_t Pool::epoch() const { return state_->core.epoch; }
uint32_t Pool::host() const { return state_->core.host; }
const std::string& Pool::lost_because() const { return state_->hosts.slot.lost_because(); }

// -- lanes ------------------------------------------------------------------------------------------------------------

// A process may say goodbye during a check at rest.
bool Pool::State::keeps_lane(const ClientIdentity& who, uint32_t lane, uint32_t generation) const {
  if (!lanes.keeps_lane(who, lane, generation)) return false;
  return !hosts.ended.waits(lanes.id(lane));
}

Result<LaneGrant> Pool::State::attach(const ClientIdentity& who, uint32_t previous_lane, uint32_t previous_generation,
                                      FileDescriptor* ret_control) {
  if (core.region.is_shared() && hosts.slot.is_lost())
    return failure(EIO, "attach to pool \"" + core.config.name + "\": " + hosts.slot.lost_because());
  if (keeps_lane(who, previous_lane, previous_generation)) return lanes.keep(who, previous_lane);
  auto control = ret_control ? lanes.locks.open() : Result<FileDescriptor>();
  if (!control) return failure(control.error().code, control.error().doing);
  for (int tries = 0; tries < 2; ++tries) {
    if (const auto grant = lanes.give(who, *control)) {
      if (ret_control) *ret_control = std::move(*control);
      return *grant;
    }
    // All are in use, but a lane may be waiting to be taken back. This takes the lane at which turns are, and one turn's work
    // of it.
    uint32_t coming = lanes.first + 1;
    while (coming < lanes.end && lanes.records[coming].phase != LaneRecord::Phase::kReclaiming) ++coming;
    if (coming == lanes.end) break;
    if (!reclaiming.reclaim.reclaim_lane(coming, kLinesPerTurn))
      return failure(EAGAIN,
                     "attach to pool \"" + core.config.name + "\": every lane is in use, and one is being taken back");
  }
  return failure(EUSERS, "attach to pool \"" + core.config.name + "\": every lane is in use: found room for " +
                             std::to_string(core.region.lanes_per_host() - 1) +
                             " clients (lanes, fixed when the pool was formatted)");
}

Result<LaneGrant> Pool::attach(const ClientIdentity& who, uint32_t previous_lane, uint32_t previous_generation,
                               uint64_t now_ms, FileDescriptor* ret_control) {
  state_->core.now_ms = now_ms;
  return state_->attach(who, previous_lane, previous_generation, ret_control);
}

bool Pool::is_lane_coming() const {
  return state_->lanes.has_lane_in(LaneRecord::Phase::kReclaiming) &&
         !state_->lanes.has_lane_in(LaneRecord::Phase::kFree);
}

bool Pool::is_writing_limits() const { return state_->inspect.limit_commands.is_busy(); }
bool Pool::has_limits_writer() const { return state_->tenants.settings().has_writer(); }

bool Pool::is_reclaiming() const {
  return !state_->hosts.ended.waiting().empty() || state_->lanes.has_lane_in(LaneRecord::Phase::kReclaiming) ||
         state_->hosts.reclaims.is_busy();
}

bool Pool::keeps_lane(const ClientIdentity& who, uint32_t lane, uint32_t generation) const {
  return state_->keeps_lane(who, lane, generation);
}

void Pool::detach(uint32_t lane) {
  if (!state_->lanes.is_live(lane)) return;
  state_->inspect.audits.lane_ended(lane);
  if (state_->lanes.records[lane].phase == LaneRecord::Phase::kReclaiming)
    state_->reclaiming.reclaim.reclaim_lane(lane, kReclaimLinesAtOnce);
}

void Pool::client_died(uint32_t lane) { state_->inspect.audits.lane_ended(lane); }

void Pool::give_up_lane(uint32_t lane) {
  if (state_->lanes.is_live(lane)) state_->lanes.records[lane].phase = LaneRecord::Phase::kFree;
}

void Pool::give_up_turns() {
  state_->feed.end();
  state_->inspect.audits.drop_at_rest();
  for (const uint32_t lane : state_->hosts.ended.take()) give_up_lane(lane);
}

// The end of marud, which holds the slot. With a client left it stays taken, for the next marud of this machine.
void Pool::State::leave_slot() {
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane)
    if (lanes.records[lane].phase != LaneRecord::Phase::kFree) return;
  eviction.retired.finish_all();
  if (eviction.retired.size() != 0 || hosts.reclaims.is_busy()) return;
  for (uint32_t i : regions.own_regions())
    if (regions[i].state != RegionState::kUnused) memory.grants.settle_region(i);
  shm::clear_lane(core.region, lanes.first);  // its totals belong to this host, and another host may have the slot next
  lanes.show_lane(lanes.first, format::LaneState::kFree);
  shm::set_lane_bit(core.region, lanes.first, false);
  hosts.slot.give_up();
}

}  // namespace maru::daemon
