// One configured pool and where it stands: it serves; or its memory is with clients of the marud before, and it waits for
// one of them to hand it back; or it was fenced, because its memory went away under it.
#pragma once

#include "daemon/config.h"
#include "daemon/dax_format.h"
#include "daemon/pool.h"
#include "daemon/state_file.h"
#include "libmaru/base/file_descriptor.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace maru::daemon {

class HostedPool {
 public:
  enum class Condition : uint8_t { kWaiting, kServing, kFenced };

  // Finds or makes the pool's memory. `stored`: what the service manager kept; the pool takes its own out of it.
  static Result<std::unique_ptr<HostedPool>> start(const PoolSpec& spec, const StateDirectory& state,
                                                   std::map<std::string, FileDescriptor>& stored, uint64_t now_ms);

  const PoolSpec& spec() const { return spec_; }
  void set_access(const PoolSpec& reread);  // users and groups, after a reload
  const std::string& name() const { return spec_.pool.name; }
  Condition condition() const { return condition_; }
  Pool* serving() const { return condition_ == Condition::kServing ? pool_.get() : nullptr; }
  const std::string& fenced_because() const { return fenced_because_; }

  // While waiting. Memory that somebody handed back: served from now on if it is the pool's.
  Result<void> accept_memory(FileDescriptor fd, uint64_t now_ms);
  // While waiting. Nobody handed it back: the pool begins anew, and what was in it is lost.
  Result<void> begin_anew(uint64_t now_ms);

  // To be called after calls into the pool: fences it if its memory went away. Returns true when that happened just now.
  bool fence_if_lost();

  // The end of marud. `is_held`: a client still holds the memory, so that the next marud may get it back.
  void stop(bool is_held);

 private:
  HostedPool(const PoolSpec& spec, const StateDirectory& state) : spec_(spec), state_(state) {}
  Result<void> serve(Result<std::unique_ptr<Pool>> pool);
  Result<void> remember();
  void tell_of_differences() const;
  Result<void> start_file(uint64_t now_ms);
  Result<void> start_dax(uint64_t now_ms);  // hosted_pool_device.cc
  Result<void> adopt_dax(DaxDevices devices, bool verifies, uint64_t now_ms);
  Result<void> start_memory(std::map<std::string, FileDescriptor>& stored, uint64_t now_ms);
  std::string stored_name() const { return "pool-" + name(); }

  PoolSpec spec_;
  StateDirectory state_;
  Condition condition_ = Condition::kWaiting;
  std::unique_ptr<Pool> pool_;
  std::optional<PoolRecord> record_;  // of the memory that is waited for
  std::string fenced_because_;
  bool is_stored_ = false;  // the service manager has the memory
};

}  // namespace maru::daemon
