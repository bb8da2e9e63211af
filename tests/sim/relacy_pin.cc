// Pins against eviction under the C++ memory model: pin.cc, evict.cc and block_store.cc of libmaru/shm as the product has them.
// A reader's bytes and the bytes that the next owner of the page writes are a data race unless the protocol orders them.
#include "libmaru/shm/recovery/evict.h"
#include "tests/sim/mutants.h"
#include "tests/sim/relacy_pool.h"

namespace maru::relacy {
namespace {

constexpr uint32_t kPage = 0, kNextOwner = 3;
constexpr int kBlock = 1, kNext = 2;
constexpr unsigned kReaders = 2;  // threads 0 and 1; the next one evicts, and the last one is idle

Pool pool;
bool readers_share_lane;  // as two threads of one client

void before() {
  pool.begin();
  pool.set_word(kPage, PageWord::ready(Pool::kGeneration, 0));
  pool.region.block(kPage).shape.raw = 1;
  write_payload(kPage, kBlock);
}

void read(uint32_t lane) {
  const shm::Pin pin = pool.pins[lane].pin(Pool::ref_of(kPage));
  if (pin.status != shm::PinStatus::kPinned) return;
  expect(read_payload(kPage) == kBlock);
  expect(pool.pins[lane].unpin(pin.slot, Pool::ref_of(kPage)));
}

void evict() {
  shm::LaneContext& marud = pool.contexts[0];
  uint16_t attempt = 0;
  PageRef retired;
  shm::LaneSet lanes;  // of the readers; each further one would cost steps and show nothing
  for (uint32_t lane = 1; lane <= kReaders; ++lane) lanes.add(lane);
  if (shm::retire_unpinned(marud, lanes, &kPage, 1, &attempt, &retired) == 0) return;
  if (shm::free_retired(marud, retired, nullptr) != shm::FinishStatus::kFreed) return;
  if (!shm::take_page(pool.region, Pool::id_of(kNextOwner), kPage).is_none()) write_payload(kPage, kNext);
}

void thread(unsigned number) {
  if (number < kReaders)
    read(readers_share_lane ? 1 : 1 + number);
  else if (number == kReaders)
    evict();
}

void after() {}

constexpr Play kClients = {"clients", before, thread, after};
constexpr Play kThreadsOfOne = {"threads", before, thread, after};

bool run() {
  bool ok = is_as_it_should_be(kClients, "pin, evict, take the page", 0);
  ok &= is_as_it_should_be(kClients, "pin without the barrier", kMutantPinWithoutBarrier);
  ok &= is_as_it_should_be(kClients, "the word of a pin by an acquire load", kMutantPinWordAcquire);
  ok &= is_as_it_should_be(kClients, "unpin by a relaxed store", kMutantUnpinRelaxed);
  readers_share_lane = true;
  ok &= is_as_it_should_be(kThreadsOfOne, "pin, evict, take the page", 0);
  ok &= is_as_it_should_be(kThreadsOfOne, "pin without the barrier", kMutantPinWithoutBarrier);
  ok &= is_as_it_should_be(kThreadsOfOne, "unpin by a relaxed store", kMutantUnpinRelaxed);
  return ok;
}

}  // namespace
}  // namespace maru::relacy

int main() { return maru::relacy::run() ? 0 : 1; }
