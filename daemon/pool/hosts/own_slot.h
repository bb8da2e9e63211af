// This host's slot in a pool that several hosts share: its claim, its heartbeat, and whether another host has taken it.
//
//   (1) Nothing is written to a slot whose claim does not name this life of this host.
//   (2) A slot that was lost stays lost. The host of the pool fences it.
//
// Cost: is_lost() reads a line.
//
// Thread safety: one thread; the heartbeat has one of its own.
#pragma once

#include "daemon/base/log_budget.h"
#include "daemon/pool/core.h"
#include "daemon/pool/hosts/heartbeat.h"

#include <cstdint>
#include <memory>
#include <string>

namespace maru::daemon {

class OwnSlot {
 public:
  explicit OwnSlot(PoolCore& core) : core_(core) {}
  OwnSlot(const OwnSlot&) = delete;
  OwnSlot& operator=(const OwnSlot&) = delete;

  // Steps 2 and 3 of "Attach of a host". Blocks for kTwinWatchMs where the machine seems to have been booted again.
  Result<void> claim();
  bool is_lost();
  const std::string& lost_because() const { return lost_because_; }  // empty: it was not found lost
  // The loop is at work.
  void beat();
  void end_heartbeat() { heartbeat_.reset(); }
  // The end of marud, which holds nothing any more: the slot is free.
  void give_up();

  // About the words of hosts, which any client can write as often as it likes.
  LogBudget alarms{LogLevel::kWarning, "alarms about hosts", 16, 16};

 private:
  void write_machine_id();

  PoolCore& core_;
  uint64_t machine_id_ = 0;
  std::string boot_text_, machine_text_;  // for people and the fencing command
  std::string lost_because_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace maru::daemon
