// Any words as a feed: it is refused, or every record that a follower believes keeps what the format promises, whatever is
// damaged.
#include "libmaru/shm/feed/ring.h"
#include "tests/fuzz/target.h"

#include <cstring>
#include <memory>
#include <new>
#include <string>

namespace maru::fuzz {
namespace {

using format::FeedKind;
using shm::FeedReader;
using shm::FeedRecord;
using shm::FeedStatus;
using shm::FeedView;

constexpr uint64_t kPages = 64;
constexpr uint8_t kUuid[16] = {1, 2, 3};
constexpr uint32_t kReadsMax = 4096;

struct Memory {
  shm::FeedPlan plan = shm::plan_feed(kPages, 0);
  std::unique_ptr<std::byte, void (*)(std::byte*)> bytes{
      new (std::align_val_t(4096)) std::byte[plan.bytes](),
      [](std::byte* all) { ::operator delete[](all, std::align_val_t(4096)); }};
  std::span<std::byte> all() { return {bytes.get(), plan.bytes}; }
};

void write(FeedView& view, uint32_t count) {
  shm::FeedWriter writer(view);
  for (uint32_t i = 0; i < count; ++i) {
    FeedRecord record;
    record.kind = i % 3 == 2 ? FeedKind::kRemoved : FeedKind::kStored;
    record.block = format::PageRef::of(i % kPages, i);
    record.key_bytes = 1 + i % 40;
    std::memset(record.key, int(i), record.key_bytes);
    writer.append(record);
    writer.publish();
  }
}

}  // namespace

// A word that is changed: its place and what it becomes. Places of the header, of the ring's beginning, of the table.
std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  inputs.push_back(Writer().number(5, 2).take());
  for (const uint32_t place : {0u, 8u, 16u, 32u, 40u, 48u, 56u, 128u, 136u, 144u, 192u, 4096u, 4104u, 4112u, 4128u})
    inputs.push_back(Writer().number(40, 2).number(place, 3).number(~0ull, 8).take());
  inputs.push_back(Writer().number(40, 2).number(4096, 3).number(0x28ull << 48 | 0x2ull << 16 | 0x10, 8).take());
  inputs.push_back(Writer().number(2000, 2).number(136, 3).number(1ull << 40, 8).take());
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru;
  using namespace maru::fuzz;
  Reader input(data, size);
  Memory memory;
  FeedView view = FeedView::format(memory.all(), memory.plan, kPages, kUuid, 9);
  write(view, uint32_t(input.number(2) % 3000));
  while (!input.is_over()) {
    const uint64_t place = input.number(3) % (memory.plan.bytes - 8);
    const uint64_t value = input.number(8);
    std::memcpy(memory.bytes.get() + place, &value, sizeof(value));
  }
  FeedView seen;
  if (const char* wrong = FeedView::attach(memory.all(), kPages, kUuid, &seen)) {
    must(*wrong != 0, "a feed is refused without a reason");
    return 0;
  }
  must(seen.ring_bytes() == memory.plan.ring_bytes, "a ring that its memory does not hold");
  FeedReader reader(seen);
  uint64_t last = 0;
  FeedRecord record;
  for (uint32_t i = 0; i < kReadsMax; ++i) {
    const FeedStatus status = reader.read(&record);
    if (status != FeedStatus::kRecord) break;
    must(record.sequence == last + 1, "a number that does not follow");
    last = record.sequence;
    must(record.block.page() < kPages, "a page that the pool does not have");
    must(record.kind == FeedKind::kRemoved || (record.key_bytes > 0 && record.key_bytes <= sizeof(record.key)),
         "a key that is none");
    must(record.parent.is_none() || record.parent.page() < kPages || record.kind == FeedKind::kRemoved,
         "a parent that the pool does not have");
  }
  if (FeedReader end(seen); end.go_to_end()) (void)end.unread_bytes();
  return 0;
}
