// Pools that are opened while marud serves others. To look through a large device, clear it, format it or verify its blocks
// takes minutes. So a thread does the same work as marud at its start, with a pool that no client knows yet. The pool and its
// device are that thread's until it has ended, and the deciding thread's from then on. The description of added pools is
// written down before that, by a thread that marud does not wait for (aside.h).
//
// If marud dies here: the device is as after a marud that died at its start (docs/format.md, "Format";
// dax_judgement.h).
#pragma once

#include "daemon/hosting/added_pools.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

class PoolOpenings {
 public:
  // Pools of one request, one after the other up to the first that cannot be opened.
  struct Opening {
    uint64_t ticket = 0;  // of the waiting request; 0: none
    std::string who;      // for the log
    std::vector<PoolSpec> specs;
    std::string added_as = {};   // their description, which is written down first; empty: it stands elsewhere
    bool begins_anew = false;    // they take the places of pools that waited for their memory
    bool tries_again = false;    // they take the places of pools that were unavailable
    bool is_configured = false;  // they are new in the configuration: a pool that cannot be opened is unavailable
    // Or the one pool takes the place of a pool that waited for this memory of its own:
    std::unique_ptr<Device> memory = {};
    std::optional<PoolRecord> record = {};
    bool takes_place() const { return begins_anew || tries_again || record.has_value(); }
    HostedPools opened = {};          // in the order of specs
    std::optional<Error> error = {};  // of the pool behind them
  };

  PoolOpenings();
  PoolOpenings(const PoolOpenings&) = delete;
  PoolOpenings& operator=(const PoolOpenings&) = delete;
  ~PoolOpenings();

  void begin(Opening opening, const StateDirectory& state);
  // Takes the finished openings. Begins the openings whose descriptions are written down by now.
  std::vector<Opening> take_ended(const StateDirectory& state);
  // All of them; an early end of the work is ECANCELED. For the end of marud: waits a few seconds at most. Work that
  // lasts longer (a disk that does not answer) is left where it is, as if marud had died there.
  std::vector<Opening> end();

  // The pool of this name that is being opened, or nothing.
  const PoolSpec* find(const std::string& name) const;
  // The same, on memory that was handed back.
  bool is_adopting(const std::string& name) const;
  std::vector<const PoolSpec*> specs() const;
  bool is_idle() const { return works_.empty(); }

 private:
  struct Work;
  std::vector<std::shared_ptr<Work>> works_;
};

}  // namespace maru::daemon
