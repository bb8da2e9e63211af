// --role aimer SOCKET SEED BOARD_FD WORKER POOL: a client that knows how marud works. It writes into the control region what
// makes one of marud's walks as long as it can be, and ends. So marud has to take back what the client has forged, and the
// test starts the next one. On the board the client counts its shots.
#include "libmaru/shm/region/page_word.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/board.h"
#include "tests/process/roles.h"
#include "tests/support/control_map.h"
#include "tests/support/random.h"
#include "tests/support/wait_until.h"

#include <chrono>
#include <cstdlib>
#include <unistd.h>

namespace maru::test {
namespace {

using shm::LaneId;
using shm::PageRef;
using shm::PageWord;

class Aimer {
 public:
  Aimer(const std::string& socket_path, uint64_t seed, const std::string& pool)
      : random_(seed), map_(socket_path, pool), self_{map_.attached().lane, map_.attached().lane_generation} {}

  void aim() {
    switch (random_.below(6)) {
      case 0: return suspect_parents();
      case 1: return blocks_without_an_entry();
      case 2: return full_regions();
      case 3: return queues();
      case 4: return pins();
      case 5: return lost_touches();
    }
  }
  void ask() {
    wire::RentRequest request{};
    request.runs = random_.one_in(2) ? 1 : 1u << 20;
    request.run_pages = random_.one_in(4) ? 2 : 1;
    if (!wire::send_packet(map_.socket(), wire::encode(wire::Type::kRent, ++requests_, 0, wire::bytes_of(request)), -1,
                           1000))
      return;
    static_cast<void>(wire::receive_packet(map_.socket(), 300));  // or it dies while marud is at it
  }

 private:
  const shm::ControlRegion& region() const { return map_.region(); }
  uint32_t any_page() { return uint32_t(random_.below(region().pages())); }
  void set(uint32_t page, PageWord word, PageRef parent = PageRef::none()) {
    format::BlockLine& line = region().block(page);
    line.parent.store_relaxed(parent.bits);
    line.shape.store_relaxed(random_.one_in(2) ? 1 : region().region_pages());
    region().detail(page).owner.store_relaxed(self_.low());
    region().detail(page).stored_ms.store_relaxed(random_.next() >> 24);
    line.word.store_release(word.bits);
  }
  void claim_overflow() {
    for (uint32_t lane = 1; lane < region().lanes(); ++lane) region().lane_header(lane).pin_overflow.store_relaxed(1);
  }

  void suspect_parents() {
    for (uint32_t page = 0; page + 1 < region().pages(); page += 2) {
      set(page, PageWord::ready(0, 1, true));
      set(page + 1, PageWord::sealed(0, self_), PageRef::of(page, 0));
    }
  }
  void blocks_without_an_entry() {
    claim_overflow();
    uint32_t page = any_page();
    for (AtomicU64& slot : region().lane(self_.lane).pins) {
      page = (page + 1) % uint32_t(region().pages());
      set(page, PageWord::ready(0, 0));
      slot.store_relaxed(PageRef::of(page, 0).bits);
    }
  }
  void full_regions() {
    if (random_.one_in(2)) claim_overflow();
    for (uint32_t page = 0; page < region().pages(); ++page) set(page, PageWord::ready(0, 0));
    for (int i = 0; i < 4; ++i) ask();
  }
  void queues() {
    for (uint32_t page = 0; page < region().pages(); ++page) {
      format::PolicyEntry& entry = region().policy_table()[page];
      entry.last_use_ms.store_relaxed(random_.next() >> 24);
      if (random_.one_in(16)) entry.newer.store_relaxed(any_page() + 1);
      if (random_.one_in(4)) set(page, PageWord::ready(0, 0));
    }
    touches(region().parameters().touch_entries);
    ask();
  }
  void pins() {
    const shm::LaneView lane = region().lane(self_.lane);
    for (AtomicU64& slot : lane.pins) slot.store_relaxed(PageRef::of(any_page(), 0).bits);
    for (AtomicU64& slot : lane.pin_overflow) slot.store_relaxed(PageRef::of(any_page(), 0).bits);
    lane.header->pin_overflow.store_relaxed(lane.pin_overflow.size());
    ask();
    for (AtomicU64& slot : lane.pins) slot.store_relaxed(0);  // all of them come back at once
  }
  void touches(uint64_t count) {
    const shm::LaneView lane = region().lane(self_.lane);
    const uint64_t from = lane.header->touch_count.load_relaxed(), entries = lane.touches.size();
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t n = from + i, lap = (n / entries + 1) % 2;
      lane.touches[n % entries].store_release(uint64_t(any_page() + 1) << 32 | lap << 31 |
                                              (random_.next() & 0x7FFF'FFFF));
    }
    lane.header->touch_count.store_release(from + count);
  }
  void lost_touches() {
    for (int i = 0; i < 8; ++i) {
      touches(3ull * region().parameters().touch_entries);
      ask();
    }
  }

  Random random_;
  const ControlMap map_;
  const LaneId self_;
  uint32_t requests_ = 0;
};

}  // namespace

int run_aimer(int argument_count, char** arguments) {
  if (argument_count != 5) return 2;
  Board board(std::atoi(arguments[2]));
  Aimer aimer(arguments[0], std::strtoull(arguments[1], nullptr, 10), arguments[4]);
  aimer.aim();
  aimer.ask();
  board->worker[size_t(std::atoi(arguments[3])) % kWorkersMax].operations.fetch_add(1);
  return 0;
}

}  // namespace maru::test
