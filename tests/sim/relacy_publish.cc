// Publishers and readers of one key, and marud, which removes it, under the C++ memory model. The play runs block_store.cc and
// registry.cc as the product has them. A reader that sees bytes of an unpublished or reused page is a data race.
#include "tests/sim/mutants.h"
#include "tests/sim/relacy_pool.h"

namespace maru::relacy {
namespace {

constexpr unsigned kPublishers = 2;  // threads 0 and 1: lanes 1 and 2, pages 0 and 1
constexpr uint32_t kReader = 3, kRemover = 0;
constexpr Digest kDigest = {0x7a6, 0x1234'5678};
constexpr std::byte kKey[16] = {};

Pool pool;
unsigned winners;
bool is_removed;
bool is_there;  // the block of page 0 was published before the play: thread 0 reads, too

int payload_of(uint32_t page) { return 100 + int(page); }

void publish(uint32_t page) {
  write_payload(page, payload_of(page));
  shm::NewBlock block;
  block.digest = kDigest;
  block.key = kKey;
  block.length = 64;
  block.now_ms = 1;
  const shm::PublishStatus status = shm::publish(pool.contexts[page + 1], Pool::ref_of(page), block).status;
  if (status == shm::PublishStatus::kStored)
    ++winners;
  else
    write_payload(page, 0);  // the page is its own, and gets other bytes
}

void before() {
  pool.begin();
  winners = 0;
  is_removed = false;
  for (uint32_t page = 0; page < kPublishers; ++page) {
    pool.set_word(page, PageWord::reserved(Pool::kGeneration, Pool::id_of(page + 1)));
    pool.region.block(page).shape.raw = 1;
  }
  if (is_there) publish(0);
}

void look(uint32_t lane) {
  const shm::Found found = shm::find_and_pin(pool.contexts[lane], kDigest, 1);
  if (found.status != shm::FindStatus::kFound) return;
  expect(read_payload(found.ref.page()) == payload_of(found.ref.page()));
  expect(pool.pins[lane].unpin(found.slot, found.ref));
}

void remove() {
  PageRef ref;
  if (shm::retire(pool.contexts[kRemover], kDigest, &ref) != shm::RetireStatus::kRetired) return;
  is_removed = true;
  const shm::LaneSet lanes = shm::LaneSet::in_use(pool.region);
  if (shm::finish_retired(pool.contexts[kRemover], ref, lanes, nullptr) != shm::FinishStatus::kFreed) return;
  if (!shm::take_page(pool.region, Pool::id_of(kRemover), ref.page()).is_none()) write_payload(ref.page(), 7);
}

void thread(unsigned number) {
  if (number == 0 && is_there)
    look(1);
  else if (number < kPublishers)
    publish(number);
  else if (number == kPublishers)
    look(kReader);
  else
    remove();
}

void after() { expect(winners == 1 || is_removed); }

constexpr Play kPublish = {"publish", before, thread, after};
constexpr Play kRemove = {"remove", before, thread, after};

bool run() {
  bool ok = is_as_it_should_be(kPublish, "publish, look up, remove", 0);
  ok &= is_as_it_should_be(kPublish, "publish against a re-read header", kMutantPublishRereadHeader);
  ok &= is_as_it_should_be(kPublish, "the header by a relaxed step", kMutantHeaderRelaxed);
  is_there = true;
  ok &= is_as_it_should_be(kRemove, "look up, remove, publish again", 0);
  ok &= is_as_it_should_be(kRemove, "unpin by a relaxed store", kMutantUnpinRelaxed);
  return ok;
}

}  // namespace
}  // namespace maru::relacy

int main() { return maru::relacy::run() ? 0 : 1; }
