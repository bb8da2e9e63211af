#include "daemon/pool/hosts/own_slot.h"

#include "daemon/base/log.h"
#include "daemon/pool/hosts/host_record.h"
#include "daemon/pool/hosts/pool_hosts.h"
#include "daemon/system/boot_id.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/region/flush.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <unistd.h>

namespace maru::daemon {
namespace {

using shm::HostClaim;
using shm::HostState;

std::string machine_id_text(const SharingConfig& sharing) {
  if (!sharing.machine_id.empty()) return sharing.machine_id;
  std::string line;
  std::ifstream file("/etc/machine-id");
  std::getline(file, line);
  return line;
}

using OwnName = std::array<char, sizeof(format::HostRecord::name)>;

// Of this machine, as far as a record has room for it.
OwnName own_name() {
  OwnName name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name;
}

void write_name(format::HostRecord& record) {
  const OwnName name = own_name();
  for (size_t i = 0; i < std::size(record.name); ++i) {
    uint64_t word;
    std::memcpy(&word, name.data() + 8 * i, 8);
    record.name[i].store_relaxed(word);  // for people
  }
}

void wait_ms(uint64_t ms) {
  timespec left = {time_t(ms / 1000), long(ms % 1000) * 1'000'000};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

}  // namespace

uint32_t machine_number(const SharingConfig& sharing) {
  return uint32_t(machine_hash(machine_id_text(sharing), 0) >> 33) + 1;
}

void OwnSlot::beat() {
  if (heartbeat_)
    heartbeat_->loop_turns();
  else
    core_.region.host(core_.host).heartbeat_ms.store_relaxed(core_.now_ms);  // for readers that only look
}

Result<void> OwnSlot::claim() {
  core_.epoch = core_.region.host(0).epoch.load_relaxed() + 1;  // any value will do: the last marud is gone
  if (!core_.region.is_shared()) return {};
  const auto refuse = [&](int code, const std::string& why) {
    return failure(code, "attach this host to shared pool \"" + core_.config.name + "\": " + why);
  };
  const std::string machine_text = machine_id_text(core_.config.sharing);
  if (machine_text.empty())
    return refuse(ENOENT, "found no machine id in /etc/machine-id, expected one (systemd-machine-id-setup writes it)");
  machine_id_ = machine_hash(machine_text, core_.region.secret()[0]);
  for (int tries = 0; tries < 64; ++tries) {  // a failed claim is another host's success, of which there are few
    const auto [slot, claim] = shm::choose_slot(core_.region, machine_id_);
    if (slot == core_.region.hosts())
      return refuse(EUSERS, "all of its " + std::to_string(core_.region.hosts()) +
                                " host slots are taken; see `marudctl host list` on one of the hosts");
    const format::HostRecord& record = core_.region.host(slot);
    if (claim.is_in_use() && (record.boot_id_lo.load_relaxed() != core_.boot_id[0] ||
                              record.boot_id_hi.load_relaxed() != core_.boot_id[1])) {
      const uint64_t heartbeat = record.heartbeat_ms.load_acquire();
      wait_ms(kTwinWatchMs);
      if (record.heartbeat_ms.load_acquire() != heartbeat)
        return refuse(EADDRINUSE, "host " + std::to_string(slot) + " (" + name_in(record) +
                                      ") has the same machine id and is alive: two machines have the same "
                                      "/etc/machine-id (remove the copied one and run systemd-machine-id-setup)");
      log_warning("pool \"{}\": this machine was booted again: what it held as host {} before is taken back",
                  core_.config.name, slot);
    }
    if (!shm::claim_host(core_.region, slot, claim, machine_id_)) continue;
    core_.host = slot;
    core_.host_generation = claim.generation() + 1;
    format::HostRecord& own = core_.region.host(slot);
    write_machine_id();
    const HostClaim begun = shm::read_claim(core_.region, slot);
    if (begun.generation() != core_.host_generation ||
        (!begun.is_in_use() && !shm::finish_attach(core_.region, slot, begun)))
      continue;                                  // it took so long that others ended it
    core_.epoch = own.epoch.load_relaxed() + 1;  // as above
    write_name(own);
    own.wanted.store_release(0);
    own.clean.store_release(0);
    heartbeat_ = std::make_unique<Heartbeat>(core_.region, slot, core_.host_generation);
    return {};
  }
  return refuse(EAGAIN, "its host slots change faster than they can be read");
}

// Without it this machine would not know its slot again.
void OwnSlot::write_machine_id() {
  format::HostRecord& own = core_.region.host(core_.host);
  if (own.machine_id.load_acquire() == machine_id_) return;
  own.machine_id.store_release(machine_id_);
  shm::flush(core_.region, own);
}

bool OwnSlot::is_lost() {
  const HostClaim claim = shm::read_claim(core_.region, core_.host);
  if (claim.is_in_use() && claim.generation() == core_.host_generation) {
    if (claim.is(HostState::kSuspect) && shm::host_is_well(core_.region, core_.host, claim))
      alarms.say({}, "pool \"{}\": another host had taken this one (host {}) for lost, because marud was slow",
                 core_.config.name, core_.host);
    write_machine_id();  // a marud that was slow to attach here may have written its own
    return false;
  }
  lost_because_ = "this host (" + std::to_string(core_.host) +
                  ") was declared dead by another one, which takes back what it held; end its clients, then restart "
                  "marud to attach it again";
  return true;
}

void OwnSlot::give_up() {
  format::HostRecord& own = core_.region.host(core_.host);
  own.machine_id.store_release(0);
  shm::flush(core_.region, own);
  shm::leave_host(core_.region, core_.host, core_.host_generation);
}

}  // namespace maru::daemon
