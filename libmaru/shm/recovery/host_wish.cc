#include "libmaru/shm/recovery/host_wish.h"

#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/host_claim.h"

namespace maru::shm {

bool ask_for_region(const ControlRegion& region, uint32_t rich, uint32_t self, uint32_t generation) {
  uint64_t none = 0;
  return region.host(rich).wanted.cas_seq_cst(none, HostWish::of(self, generation).bits);
}

HostWish read_wish(const ControlRegion& region, uint32_t host) {
  return {region.host(host).wanted.load_acquire()};  // only a wish: the act on it has words of its own
}

bool is_asker_live(const ControlRegion& region, HostWish wish) {
  if (wish.host() >= region.hosts()) return false;
  const HostClaim claim = read_claim(region, wish.host());
  return claim.is(HostState::kLive) && claim.generation() == wish.generation();
}

void end_wish(const ControlRegion& region, uint32_t host, HostWish wish) {
  region.host(host).wanted.cas_seq_cst(wish.bits, 0);
}

bool rent_unused_region(const ControlRegion& region, uint32_t index, LaneId owner, uint32_t host,
                        uint32_t* ret_generation) {
  AtomicU64& word = region.region(index).word;
  const RegionWord found{word.load_acquire()};  // [pairs region.word]
  if (found.state() != format::RegionState::kUnused) return false;
  const RegionWord rented = RegionWord::of(format::RegionState::kRented, found.generation() + 1, owner, host);
  *ret_generation = rented.generation();
  uint64_t expected = found.bits;
  if (!word.cas_seq_cst(expected, rented.bits)) return false;
  flush(region, word);
  return true;
}

}  // namespace maru::shm
