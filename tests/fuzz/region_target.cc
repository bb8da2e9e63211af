// Any words in the control region, at any time: an input is a sequence of damages and operations. Every operation ends, reads
// and writes inside the region only, and gives indices that are inside the pool. The region lies in memory of exactly its
// size, so that the address sanitizer sees one step beyond.
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/blocks/prefix.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/region/pool_sizing.h"
#include "tests/fuzz/target.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace maru::fuzz {
namespace {

using shm::ControlRegion;
using shm::Digest;
using shm::LaneId;
using shm::PageRef;
using shm::PageWord;

constexpr uint32_t kBlocks = 48;
constexpr uint64_t kNowMs = 1'000'000;
constexpr LaneId kDaemon{0, 1}, kClient{1, 7}, kOther{2, 9};
constexpr size_t kStepsMax = 256;

const char* const kKey = "a key of some length, so that it has several words";

shm::FormatWishes wishes() {
  shm::FormatWishes w;
  w.pool_bytes = 1 << 20;
  w.page_bytes = 4096;
  w.region_bytes = 64 << 10;
  w.lanes = 4;
  w.hosts = 1;
  w.tenants = 2;
  w.pins_max = 32;
  w.touch_entries = 32;
  w.key_inline_bytes = 64;
  w.key_extents = 2;
  return w;
}

class Region {
 public:
  Region() {
    shm::Parameters parameters;
    shm::Layout layout;
    must(!shm::choose_parameters(wishes(), &parameters) && !shm::plan_layout(parameters, &layout), "no layout");
    bytes_ = layout.control_bytes;
    pool_bytes_ = parameters.pool_bytes;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_)));
    shm::FormatIdentity identity{};
    for (size_t i = 0; i < 16; ++i)
      identity.uuid[i] = uint8_t(i + 1), identity.secret[i] = 0x9e37'79b9'7f4a'7c15ull * (i + 1);
    must(!ControlRegion::format({memory_.get(), bytes_}, parameters, identity, false, &region_), "not formatted");
    const LaneId ids[] = {kDaemon, kClient, kOther};
    for (uint32_t lane = 0; lane < 3; ++lane) {
      counts_[lane].assign(shm::PinTable::counts_needed(layout), AtomicU32{});
      pins_[lane] = shm::PinTable(region_, lane, counts_[lane]);
      lanes_[lane].region = &region_;
      lanes_[lane].id = ids[lane];
      lanes_[lane].pins = &pins_[lane];
      region_.lane_bitmap().words[0].fetch_add_relaxed(1ull << lane);
      region_.identity(lane).state.store_relaxed(uint64_t(format::LaneState::kLive) | uint64_t(ids[lane].generation)
                                                                                          << 48);
      all_.add(lane);
    }
    for (uint32_t page = 0; page < region_.pages(); ++page)
      region_.block(page).word.store_relaxed(PageWord::free(1).bits);
    fill();
  }

  const ControlRegion& region() const { return region_; }
  std::span<std::byte> memory() const { return {memory_.get(), bytes_}; }
  uint64_t pool_bytes() const { return pool_bytes_; }

  void damage(uint64_t where, uint64_t how, uint64_t value) {
    const uint64_t section = where % (format::kSectionCount + 1);
    uint64_t first = 0, count = bytes_ / 8;
    if (section < format::kSectionCount) {
      first = region_.layout().sections[section].offset / 8;
      count = region_.layout().sections[section].bytes / 8;
    }
    if (count == 0) return;
    auto* word = reinterpret_cast<AtomicU64*>(memory_.get()) + first + (where >> 8) % count;
    const uint64_t old = word->load_relaxed();
    switch (how % 6) {
      case 0: word->store_relaxed(value); break;
      case 1: word->store_relaxed(old ^ 1ull << value % 64); break;
      case 2: word->store_relaxed(old + value % 1024 - 512); break;
      case 3: word->store_relaxed(~0ull); break;
      case 4: word->store_relaxed(PageRef::of(uint32_t(value % (region_.pages() + 2)), 1).bits); break;
      case 5: word->store_relaxed((old & 0x0FFF'FFFF'FFFF'FFFFull) | value << 60); break;
    }
  }

  void operate(uint64_t which, uint64_t argument) {
    const auto page = uint32_t(argument % region_.pages());
    const uint32_t lane = which >> 4 & 1 ? 2 : 1;
    switch (which % 16) {
      case 0: return find(lane, argument);
      case 1: return match(lane, argument);
      case 2: return publish(lane, page, argument);
      case 3: return remove(lane, argument);
      case 4: return evict(page);
      case 5: return touch(page, argument);
      case 6: return audit(shm::AuditMode::kLiveOwner);
      case 7: return reclaim(lane, page);
      case 8: return recount(page);
      case 9: return tenants(lane, argument);
      case 10: return read_keys(page);
      case 11: return runs(lane, page, argument);
      case 12: return resolve(argument);
      case 13: return pin_and_unpin(lane, page, argument);
      case 14: return shm::release_overflow_of(region_, lanes_[lane].id);
      case 15: return look(page);
    }
  }

  void audit(shm::AuditMode mode) {
    class Count final : public shm::FindingSink {
     public:
      uint64_t findings = 0;
      void found(const shm::Finding&) override { ++findings; }
    } sink;
    std::vector<std::byte> scratch(shm::audit_scratch_bytes(region_));
    shm::AuditRequest request;
    request.mode = mode;
    request.live = all_;
    const shm::AuditReport report = shm::audit(region_, request, scratch, sink);
    must(sink.findings <= shm::kFindingsReportedDefault && sink.findings <= report.findings, "findings do not add up");
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  class Nobody final : public shm::DeadLanes {
    bool is_dead(LaneId lane) const override { return lane.lane != 0; }
  };
  class Sink final : public shm::ReclaimSink {
   public:
    explicit Sink(const ControlRegion& region) : region_(region) {}
    std::vector<PageRef> parents, retired, unregistered_pages;
    void parent_suspect(PageRef parent) override { parents.push_back(checked(parent)); }
    void retired_taken(PageRef ref) override { retired.push_back(checked(ref)); }
    void unregistered(PageRef ref) override { unregistered_pages.push_back(checked(ref)); }
    void pages_freed(uint32_t pages) override { must(pages <= region_.pages(), "more pages freed than there are"); }

   private:
    PageRef checked(PageRef ref) const {
      must(region_.is_page(ref), "a reference that is no page");
      return ref;
    }
    const ControlRegion& region_;
  };

  Digest digest(uint64_t i) const { return shm::digest_of_128(region_.secret(), i % (kBlocks + 8), 0, 0); }

  void fill() {
    PageRef parent = PageRef::none();
    for (uint32_t i = 0; i < kBlocks; ++i) {
      shm::NewBlock block;
      block.digest = digest(i);
      const uint64_t words[2] = {i, 0};
      std::array<std::byte, 16> key;
      std::memcpy(key.data(), words, 16);
      block.key = key;
      block.key_kind = 1;
      block.length = 100;
      block.parent = i % 12 ? parent : PageRef::none();
      const PageRef own = shm::take_page(region_, kClient, i);
      must(shm::publish(lanes_[1], own, block).status == shm::PublishStatus::kStored, "a block is not stored");
      parent = own;
    }
  }

  void find(uint32_t lane, uint64_t argument) {
    const shm::Found found = shm::find_and_pin(lanes_[lane], digest(argument), argument & 256 ? kNowMs : 0);
    if (found.status != shm::FindStatus::kFound) return;
    must(region_.is_page(found.ref), "found what is no page");
    pins_[lane].unpin(found.slot, found.ref);
    (void)shm::registry_exists(region_, digest(argument));
    const PageRef unpinned = shm::find_unpinned(region_, digest(argument));
    must(unpinned.is_none() || region_.is_page(unpinned), "found what is no page");
  }
  std::vector<Digest> many(uint64_t argument) const {
    std::vector<Digest> digests;
    for (uint64_t i = 0; i < argument % 40; ++i) digests.push_back(digest(argument / 40 + i));
    return digests;
  }
  void match(uint32_t lane, uint64_t argument) {
    const auto digests = many(argument);
    std::vector<shm::PlainDigest> keys;
    for (const Digest& digest : digests) keys.push_back(shm::unpermute(region_.secret(), digest));
    std::vector<shm::HeldBlock> held(keys.size() + 1);
    const auto result =
        shm::match_prefix(lanes_[lane], shm::prefix_keys(region_, keys), argument & 1 ? kNowMs : 0, held.data());
    must(result.blocks <= digests.size() && result.held <= digests.size(), "more blocks than keys");
    for (size_t i = 0; i < result.held; ++i) must(region_.is_page(held[i].ref), "matched what is no page");
    shm::release_prefix(lanes_[lane], held.data(), result.held);
    std::vector<uint8_t> present(digests.size());
    must(shm::registry_exists_batch(region_, digests.data(), digests.size(), present.data()) <= digests.size(),
         "more present than asked");
  }
  void resolve(uint64_t argument) {
    const auto digests = many(argument);
    std::vector<PageRef> refs(digests.size());
    std::vector<uint64_t> lengths(digests.size());
    shm::resolve_batch(region_, digests, refs.data(), lengths.data());
    for (const PageRef ref : refs) must(ref.is_none() || region_.is_page(ref), "resolved what is no page");
  }
  void publish(uint32_t lane, uint32_t page, uint64_t argument) {
    const PageRef own = shm::take_page(region_, lanes_[lane].id, page);
    if (own.is_none()) return;
    shm::NewBlock block;
    block.digest = digest(argument);
    block.key = std::as_bytes(std::span(kKey, 1 + argument % std::strlen(kKey)));
    block.length = argument % 8192;
    block.parent = argument & 1 ? PageRef::from_bits(argument) : PageRef::none();
    block.now_ms = kNowMs;
    block.tenant = argument % 5;
    const auto result = shm::publish(lanes_[lane], own, block);
    if (result.status != shm::PublishStatus::kStored) shm::give_back_run(region_, lanes_[lane].id, own);
  }
  void remove(uint32_t lane, uint64_t argument) {
    PageRef ref;
    if (shm::retire(lanes_[lane], digest(argument), &ref) != shm::RetireStatus::kRetired) return;
    must(region_.is_page(ref), "retired what is no page");
    if (shm::finish_retired(lanes_[lane], ref, all_, nullptr) == shm::FinishStatus::kPinned)
      shm::hand_over_retired(region_, ref, lanes_[lane].id, kDaemon);
  }
  void evict(uint32_t page) {
    uint32_t victims[8];
    for (uint32_t i = 0; i < 8; ++i) victims[i] = uint32_t((page + i) % region_.pages());
    PageRef retired[8];
    const size_t count = shm::retire_unpinned(lanes_[0], all_, victims, 8, &attempt_, retired);
    must(count <= 8, "more victims than candidates");
    for (size_t i = 0; i < count; ++i) {
      uint32_t pages = 0;
      shm::free_retired(lanes_[0], retired[i], &pages);
      must(pages <= region_.region_pages(), "a run that is larger than a region");
    }
  }
  void touch(uint32_t page, uint64_t argument) {
    shm::leave_touch(region_.lane(1), page, argument);
    shm::Touch touches[64];
    const size_t count = reader_.read(region_.lane(1), kNowMs, region_.pages(), touches, 64);
    must(count <= 64, "more touches than fit");
    for (size_t i = 0; i < count; ++i) {
      must(touches[i].page < region_.pages(), "a touch of no page");
    }
  }
  void reclaim(uint32_t lane, uint32_t page) {
    Sink sink(region_);
    shm::reclaim_pages(lanes_[0], lanes_[lane].id, page, uint32_t(region_.pages()), sink);
    shm::reclaim_pages(lanes_[0], Nobody(), 0, page, sink);
    shm::reclaim_intents(region_, lane, sink);
    for (const PageRef ref : sink.retired) shm::finish_retired(lanes_[0], ref, all_, nullptr);
    shm::clear_pins(region_, 3);
    shm::clear_lane(region_, 3);
  }
  void recount(uint32_t page) {
    shm::Recount recounts[2];
    recounts[0].parent = PageRef::of(page, 1);
    recounts[1].parent = PageRef::of(page + 1, 2);
    const std::span<shm::Recount> both(recounts, page + 1 < region_.pages() ? 2 : 1);
    shm::recount_begin(region_, both);
    shm::recount_pages(region_, both, Nobody(), 0, uint32_t(region_.pages()));
    shm::recount_commit(region_, both, all_);
  }
  void tenants(uint32_t lane, uint64_t argument) {
    const uint64_t tenant = argument % 5;
    const uint32_t account = shm::find_account(region_, lane, tenant), record = shm::find_tenant(region_, tenant);
    must(account < region_.account_slots(), "an account beyond the lane's");
    must(record == ~0u || record < region_.parameters().tenants, "a record beyond the table");
    (void)shm::needs_credit(region_, tenant);
    (void)shm::read_tenant(region_, all_, tenant);
    shm::LaneSet unsettled = all_;
    (void)shm::committed_bytes(region_, all_, tenant, &unsettled);
    shm::revoke_credit(region_, all_, tenant, (argument & 1024) != 0);
    shm::grant_credit(region_, lane, account, argument >> 32);
    for (uint32_t page = 0; page < region_.pages(); ++page) {
      uint64_t of = 0;
      must(shm::tenant_bytes(region_, page, &of) <= uint64_t(region_.region_pages()) * region_.page_bytes(),
           "a block larger than a region");
    }
    if ((argument & 2048) != 0) shm::fold_accounts(region_, lane, [](uint64_t, uint64_t) {});
  }
  void read_keys(uint32_t page) {
    shm::KeyBytes key;
    const PageWord word{region_.block(page).word.load_acquire()};
    if (shm::read_key(region_, PageRef::of(page, word.generation()), &key))
      must(key.size <= limits::kKeyBytesMax, "a key that is too long");
  }
  void runs(uint32_t lane, uint32_t page, uint64_t argument) {
    const uint32_t room = region_.region_pages() - page % region_.region_pages();
    const PageRef head = shm::take_run(region_, lanes_[lane].id, page, uint32_t(1 + argument % room), nullptr);
    if (!head.is_none()) shm::give_back_run(region_, lanes_[lane].id, head);
    must(region_.run_pages(page) >= 1 && region_.run_pages(page) <= room, "a run that leaves its region");
  }
  void pin_and_unpin(uint32_t lane, uint32_t page, uint64_t argument) {
    const PageRef ref = PageRef::of(page, 1);
    const shm::Pin pin = pins_[lane].pin(ref);
    if (pin.status == shm::PinStatus::kPinned) must(pins_[lane].unpin(pin.slot, ref), "a pin that cannot be released");
    pins_[lane].unpin(uint32_t(argument >> 8), PageRef::from_bits(argument));
  }
  void look(uint32_t page) {
    (void)shm::is_pinned(region_, shm::LaneSet::in_use(region_), page);
    (void)shm::daemon_lane(region_);
    pins_[1].slots_in_use();
  }

  size_t bytes_ = 0;
  uint64_t pool_bytes_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
  ControlRegion region_;
  std::vector<AtomicU32> counts_[3];
  shm::PinTable pins_[3];
  shm::LaneContext lanes_[3];
  shm::LaneSet all_;
  shm::TouchReader reader_;
  uint16_t attempt_ = 0;
};

}  // namespace

std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  // Every operation on an undamaged region; one damage in each section, then everything; damage between operations.
  Writer plain;
  for (uint64_t i = 0; i < 64; ++i) plain.number(1, 1).number(i, 1).number(i * 77, 8);
  inputs.push_back(plain.take());
  for (uint64_t section = 0; section <= format::kSectionCount; ++section) {
    Writer one;
    for (uint64_t i = 0; i < 32; ++i) {
      one.number(0, 1).number(section | i * 5 << 8, 8).number(i, 1).number(i * 0x0101'0101'0101'0101ull, 8);
      one.number(1, 1).number(i * 3, 1).number(i * 31, 8);
    }
    inputs.push_back(one.take());
  }
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru;
  fuzz::Region region;
  fuzz::Reader reader(data, size);
  for (size_t step = 0; step < fuzz::kStepsMax && !reader.is_over(); ++step) {
    if (reader.number(1) % 2 == 0) {
      const uint64_t where = reader.number(8), how = reader.number(1);
      region.damage(where, how, reader.number(8));
    } else {
      const uint64_t which = reader.number(1);
      region.operate(which, reader.number(8));
    }
  }
  for (uint64_t which = 0; which < 32; ++which) region.operate(which, which * 41);
  region.audit(shm::AuditMode::kLive);
  region.audit(shm::AuditMode::kExact);
  // Whoever attaches now gets a region or a reason.
  shm::ControlRegion attached;
  (void)shm::ControlRegion::attach(region.memory(), region.pool_bytes(), &attached);
  return 0;
}
