#include "daemon/pool/hosts/host_record.h"

#include "daemon/base/log.h"

#include <cstdio>
#include <cstring>
#include <iterator>

namespace maru::daemon {

// FNV-1a, keyed with the pool's secret: the id of a machine is no business of the pool's readers.
uint64_t machine_hash(const std::string& text, uint64_t secret) {
  uint64_t hash = 0xcbf29ce484222325 ^ secret;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

std::string name_in(const format::HostRecord& record) {
  char name[sizeof(record.name) + 1] = {};
  for (size_t i = 0; i < std::size(record.name); ++i) {
    const uint64_t word = record.name[i].load_relaxed();  // for people
    std::memcpy(name + 8 * i, &word, 8);
  }
  return printable(std::string(name));
}

std::string boot_id_text(uint64_t high, uint64_t low) {
  char text[40];
  std::snprintf(text, sizeof(text), "%08x-%04x-%04x-%04x-%012llx", unsigned(high >> 32), unsigned(high >> 16 & 0xFFFF),
                unsigned(high & 0xFFFF), unsigned(low >> 48), static_cast<unsigned long long>(low & 0xFFFF'FFFF'FFFF));
  return text;
}

const char* state_name(shm::HostState state) {
  switch (state) {
    case shm::HostState::kFree: return "free";
    case shm::HostState::kLive: return "live";
    case shm::HostState::kSuspect: return "suspect";
    case shm::HostState::kDead: return "dead";
    case shm::HostState::kAttaching: return "attaching";
  }
  return "damaged";
}

}  // namespace maru::daemon
