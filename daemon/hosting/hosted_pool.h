// One configured pool and its state. It serves. Or its memory is with clients of an earlier marud, and it waits for a client to
// hand it back. Or it was fenced, because its memory went away under it. Or it is on its way out: it is drained, its clients
// were asked to leave, it is gone. Or it is unavailable: it could not be opened, and is tried again.
#pragma once

#include "daemon/base/aside.h"
#include "daemon/config/config.h"
#include "daemon/hosting/dax_format.h"
#include "daemon/hosting/power_loss.h"
#include "daemon/hosting/state_file.h"
#include "daemon/memory/file_device.h"
#include "daemon/memory/memory_device.h"
#include "daemon/pool/pool.h"
#include "libmaru/base/file_descriptor.h"

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace maru::daemon {

class HostedPool {
 public:
  enum class Condition : uint8_t { kWaiting, kServing, kDraining, kLeaving, kFenced, kGone, kUnavailable };

  // Finds or makes the pool's memory. `stored`: the descriptors that the service manager kept; the pool takes its own
  // out of it.
  static Result<std::unique_ptr<HostedPool>> start(const PoolSpec& spec, const StateDirectory& state,
                                                   std::map<std::string, FileDescriptor>& stored, uint64_t now_ms);
  // In place of a pool that waits and whose memory no client handed back: the pool begins anew, and its blocks are
  // lost. Takes long if all memory is touched first, so this is for a thread of its own (pool_openings.h).
  static Result<std::unique_ptr<HostedPool>> start_anew(const PoolSpec& spec, const StateDirectory& state,
                                                        uint64_t now_ms);
  // In the place of a pool that cannot be opened, until another attempt succeeds.
  static std::unique_ptr<HostedPool> unavailable(const PoolSpec& spec, const StateDirectory& state, const Error& why);

  const PoolSpec& spec() const { return spec_; }
  void set_access(const PoolSpec& reread);  // users and groups, after a reload
  const std::string& name() const { return spec_.pool.name; }
  Condition condition() const { return condition_; }
  // Also while it is drained and left: reads go on. Never once it was fenced.
  Pool* serving() const {
    const bool is_here =
        condition_ == Condition::kServing || condition_ == Condition::kDraining || condition_ == Condition::kLeaving;
    return is_here && fenced_because_.empty() ? pool_.get() : nullptr;
  }
  // Also when it is fenced: for marud's own knowledge of it, such as its lanes.
  Pool* known() const { return pool_.get(); }
  // A process said goodbye to its lane, or is gone.
  void lane_ended(uint32_t lane, bool said_goodbye);
  const std::string& fenced_because() const { return fenced_because_; }
  // Of a pool that is unavailable. Returns false when that was said before.
  bool set_unavailable(const PoolSpec& tried, const Error& why);
  bool may_become_available() const;  // without a change of the configuration, or of a device's content
  // Why it is fenced or unavailable; empty: it is neither.
  const std::string& reason() const {
    return condition_ == Condition::kUnavailable ? unavailable_because_ : fenced_because_;
  }

  // In place of a pool that waits, on memory that it has recognised. A pool with many blocks takes its time to be looked
  // through, so this is for a thread, too.
  static Result<std::unique_ptr<HostedPool>> start_on(std::unique_ptr<Device> memory, const PoolRecord& record,
                                                      const PoolSpec& spec, const StateDirectory& state,
                                                      uint64_t now_ms);
  // While waiting. The memory that a client handed back, if it is the pool's: a look at the descriptors, and nothing
  // else.
  Result<std::unique_ptr<Device>> recognise(HeldMemory held) const;
  const std::optional<PoolRecord>& record() const { return record_; }

  // To be called after calls into the pool: fences it if its memory went away. Returns true when that happened just now.
  bool fence_if_lost();

  // Going, hosted_pool_leave.cc. Each says why not, if not. Draining lasts until cancel(), also over a restart: the caller
  // writes that down (StateDirectory::save_draining) between the question and the deed.
  Result<void> may_drain() const;
  Result<void> may_cancel() const;
  Result<void> drain(uint64_t now_ms);
  Result<void> cancel(uint64_t now_ms);
  // Clients were asked to leave by this time (monotonic). Then the remaining clients are named, or ended with `fences`.
  struct Leave {
    uint64_t deadline_ms = 0;
    bool fences = false;
    bool is_fenced = false;  // they were ended
    bool was_draining = false;
  };
  Result<void> leave(uint64_t deadline_ms, bool fences);
  Leave& leaving() { return leave_; }
  // Some client stayed: as before leave(), with a text about it for the list.
  void stay(const std::string& why);
  const std::string& stays_because() const { return stays_because_; }
  // No client uses it any more: a thread of its own writes the rest to the disk, since that can take minutes. True once
  // all is there.
  bool is_written_out();
  // Limits of its tenants are being written down. Two threads must not write one file, so the pool is there until that
  // has ended, and no other pool of its name can come.
  bool is_writing_limits() const;
  // And then a thread closes the device, which gives memory back at the pace of the machine, and removes the pool's
  // files from the state directory. True once that is done: the pool is gone.
  bool has_ended();
  bool is_gone() const { return condition_ == Condition::kGone; }

  // The end of marud. `is_held`: a client still holds the memory, so that the next marud may get it back.
  void stop(bool is_held);

 private:
  HostedPool(const PoolSpec& spec, const StateDirectory& state) : spec_(spec), state_(state) {}
  Result<void> serve(Result<std::unique_ptr<Pool>> pool);
  Result<void> remember();
  void hand_to_service_manager();
  Result<void> adopt_memory(std::unique_ptr<Device> memory, uint64_t now_ms);
  void tell_of_differences() const;
  // hosted_pool_file.cc. `gives_up`: a pool that lies there is formatted anew.
  Result<void> start_file(uint64_t now_ms);
  Result<void> open_files(uint64_t now_ms, bool gives_up);
  void forget_pool();
  Result<void> reserve(FileDevice& file);
  Result<void> start_two_files(uint32_t machine, uint64_t now_ms, bool gives_up);
  Result<void> serve_new(Result<std::unique_ptr<Pool>> made, const std::string& places);
  Result<void> judge_identity(const DeviceLabel& label, const std::string& path) const;
  Result<void> adopt_file(std::unique_ptr<Device> device, Belief belief, uint64_t now_ms);
  Result<void> start_dax(uint64_t now_ms);  // hosted_pool_device.cc
  Result<void> adopt_dax(DaxDevices devices, bool verifies, uint64_t now_ms);
  // A pool that lost power, and whether it serves. False: nothing in it can be believed; it is closed.
  Result<bool> adopt_verified(std::unique_ptr<Device> device, const std::string& place, uint64_t now_ms);
  void close();
  void begin_end();
  Result<void> start_memory(std::map<std::string, FileDescriptor>& stored, uint64_t now_ms);
  Result<void> begin_anew(uint64_t now_ms);
  // The names under which the service manager keeps memory: the name of the control region, or of all memory; and the name of
  // the pages.
  std::string stored_name() const { return "pool-" + name(); }
  std::string stored_pages_name() const { return "pages-" + name(); }
  void forget_stored() const;
  // The text about memory that outlives marud: its keeper, and how long.
  std::string future_text(bool is_held) const;

  PoolSpec spec_;
  StateDirectory state_;
  Condition condition_ = Condition::kWaiting;
  std::unique_ptr<Pool> pool_;
  std::optional<PoolRecord> record_;  // of the memory that is waited for
  std::string fenced_because_;
  std::string unavailable_because_;
  int unavailable_code_ = 0;
  Leave leave_;
  std::string stays_because_;
  bool is_stored_ = false;             // the service manager has the memory
  Result<void> written_;               // the result of writing it out
  std::future<Result<void>> writing_;  // reads pool_, and so ends before it
  struct Ended {
    std::string device;
    Result<void> closed, undrained, forgotten;
  };
  Aside<Ended> ending_;
};

}  // namespace maru::daemon
