// Followers of a feed (docs/events.md): whenever one begins, and however often it is overtaken, it ends with what the writer
// told.
#include "libmaru/shm/feed/ring.h"
#include "scenario.h"
#include "tests/sim/mutants.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

namespace maru::sim {
namespace {

using format::FeedKind;
using format::PageRef;
using shm::FeedReader;
using shm::FeedRecord;
using shm::FeedStatus;
using shm::FeedView;
using shm::FeedWriter;

constexpr unsigned kWriter = 0, kFollowers = 2;
constexpr uint32_t kPages = 3;
// A few records long, so that followers are overtaken; smaller than a product's may be.
constexpr shm::FeedPlan kPlan = {512, format::kFeedHeaderBytes + 512, format::kFeedHeaderBytes + 512 + 64};
constexpr uint64_t kIncarnation = 7;

alignas(4096) std::byte memory[kPlan.bytes];
FeedView view;
std::array<uint32_t, kPages> told;  // the mark of the life of each page that is there; 0: none
bool is_done;

FeedRecord record_of(FeedKind kind, uint32_t page, uint32_t generation) {
  FeedRecord record;
  record.kind = kind;
  record.block = PageRef::of(page, generation);
  record.key_bytes = 1 + generation % 20;
  std::memset(record.key, int(generation), record.key_bytes);
  return record;
}

void write_some(void*) {
  FeedWriter writer(view);
  std::array<uint32_t, kPages> generations = {};
  for (uint32_t rounds = 4 + chance().below(16); rounds > 0; --rounds) {
    const uint32_t page = chance().below(kPages);
    if (told[page] != 0) {
      writer.append(record_of(FeedKind::kRemoved, page, generations[page]++));
      told[page] = 0;
    } else {
      writer.append(record_of(FeedKind::kStored, page, generations[page]));
      told[page] = format::feed_mark(generations[page]);
    }
    if (chance().chance(2)) writer.publish();
  }
  writer.publish();
  settle();
  is_done = true;
}

void take(const FeedRecord& record, std::array<uint32_t, kPages>& known) {
  uint32_t& place = known[record.block.page()];
  const uint32_t mark = format::feed_mark(record.block.generation());
  if (record.kind == FeedKind::kRemoved) {
    if (place == mark) place = 0;
    return;
  }
  place = mark;
  for (uint32_t i = 0; i < record.key_bytes; ++i)
    if (record.key[i] != std::byte(uint8_t(record.block.generation()))) fail("a record with another one's key");
}

void follow(void*) {
  std::array<uint32_t, kPages> known = {};
  FeedReader reader;
  bool has_snapshot = false;
  while (true) {
    const bool was_done = is_done;  // before the look
    if (!has_snapshot) {
      reader = FeedReader(view);
      if (!reader.go_to_end()) {
        yield();
        continue;
      }
      for (uint32_t page = 0; page < kPages; ++page) known[page] = view.table(page).load_acquire();
      has_snapshot = true;
    }
    FeedRecord record;
    switch (reader.read(&record)) {
      case FeedStatus::kRecord: take(record, known); break;
      case FeedStatus::kNothing:
        if (was_done) {
          for (uint32_t page = 0; page < kPages; ++page)
            if (known[page] != told[page])
              fail("a follower has life %u of page %u, not %u", known[page], page, told[page]);
          return;
        }
        yield();
        break;
      case FeedStatus::kOverrun: has_snapshot = false; break;
      case FeedStatus::kDamaged: fail("a follower met a record that is none");
    }
  }
}

void feed_setup() {
  std::memset(memory, 0, sizeof(memory));
  const uint8_t uuid[16] = {1};
  view = FeedView::format(memory, kPlan, kPages, uuid, kIncarnation);
  told = {};
  is_done = false;
  spawn("marud", kWriter, write_some);
  for (unsigned i = 1; i <= kFollowers; ++i) spawn("follower", i, follow);
}

void feed_finish() {}

constexpr Scenario kScenarios[] = {
    {"feed", "a follower that begins anywhere, and is overtaken, ends with what was told", feed_setup, feed_finish,
     nullptr},
};

}  // namespace

std::span<const Scenario> feed_scenarios() { return kScenarios; }

}  // namespace maru::sim
