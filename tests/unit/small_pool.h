// A control region on a byte array, with clients that live in the test's own process.
#pragma once

#include "libmaru/shm/audit/run.h"
#include "libmaru/shm/blocks/block_store.h"

#include <cstddef>
#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace maru::shm {

using format::PageState;

struct PoolShape {
  uint64_t pages = 64;
  uint64_t region_pages = 16;
  uint32_t lanes = 8;
  uint32_t pins_max = 8;
  uint32_t touch_entries = 16;
  uint32_t key_inline_bytes = 64;
  uint64_t key_extents = 4;
  uint32_t hosts = 1;  // more than one: shared
  bool checksums = false;
};

inline Parameters parameters_of(const PoolShape& shape) {
  Parameters p{};
  p.pool_bytes = 1ull << 40;
  p.page_bytes = 4096;
  p.region_pages = shape.region_pages;
  p.pages = shape.pages;
  p.lanes = shape.lanes;
  p.hosts = shape.hosts;
  p.tenants = 4;
  p.pins_max = shape.pins_max;
  p.touch_entries = shape.touch_entries;
  p.key_inline_bytes = shape.key_inline_bytes;
  p.key_extents = shape.key_extents;
  p.section_align = 4096;
  return p;
}

// The same in every test and in the golden file.
inline FormatIdentity fixed_identity(bool is_shared = false) {
  FormatIdentity identity{};
  identity.shared = is_shared;
  for (uint8_t i = 0; i < 16; ++i) {
    identity.uuid[i] = uint8_t(0x10 + i);
    identity.secret[i] = 0x0123456789abcdefull * (2u * i + 1);
  }
  identity.created_unix_ms = 1'700'000'000'000;
  return identity;
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A client: its lane, and the private counts beside its pin slots.
struct TestClient {
  std::vector<AtomicU32> counts;
  PinTable pins;
  LaneContext lane;

  TestClient(const ControlRegion& region, LaneId id)
      : counts(PinTable::counts_needed(region.layout())), pins(region, id.lane, counts) {
    lane.region = &region;
    lane.id = id;
    lane.pins = &pins;
  }
};

class SmallPool {
 public:
  explicit SmallPool(const PoolShape& shape = {}) {
    Layout layout;
    const Parameters parameters = parameters_of(shape);
    EXPECT_EQ(plan_layout(parameters, &layout), nullptr);
    bytes_ = layout.control_bytes;
    memory_.reset(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{4096})));
    FormatIdentity identity = fixed_identity(shape.hosts > 1);
    identity.checksums = shape.checksums;
    EXPECT_EQ(ControlRegion::format(memory(), parameters, identity, false, &region), nullptr);
    for (uint32_t i = 0; i < region.regions(); ++i) rent(i, 1);
    for (uint32_t lane = 1; lane < region.lanes(); ++lane) use_lane(lane);
    lanes = LaneSet::in_use(region);
    lanes.add(0);
    for (uint32_t lane = 0; lane < region.lanes(); ++lane)
      clients_.push_back(std::make_unique<TestClient>(region, lane ? LaneId{lane, 7} : daemon_lane(region)));
  }

  std::span<std::byte> memory() { return {memory_.get(), bytes_}; }
  TestClient& client(uint32_t lane) { return *clients_[lane]; }
  LaneContext& lane(uint32_t lane) { return clients_[lane]->lane; }

  void use_lane(uint32_t lane) {
    auto& word = region.lane_bitmap().words[lane / 64];
    word.store_relaxed(word.load_relaxed() | 1ull << lane % 64);
    region.identity(lane).state.store_relaxed(uint64_t{7} << 48 | uint64_t(format::LaneState::kLive));
  }
  void stop_using_lane(uint32_t lane) {
    auto& word = region.lane_bitmap().words[lane / 64];
    word.store_relaxed(word.load_relaxed() & ~(1ull << lane % 64));
    region.identity(lane).state.store_relaxed(0);
    lanes.remove(lane);
  }
  void rent(uint32_t index, uint32_t lane) {
    region.region(index).word.store_relaxed(uint64_t(format::RegionState::kRented) << 60 | uint64_t(lane) << 16 | 7);
    for (uint32_t i = 0; i < region.region_pages(); ++i) {
      AtomicU64& word = region.block(index * region.region_pages() + i).word;
      word.store_relaxed(PageWord::free(PageWord{word.load_relaxed()}.generation()).bits);
    }
  }

  PageWord word(uint32_t page) const { return {region.block(page).word.load_acquire()}; }
  void set_word(uint32_t page, PageWord word) { region.block(page).word.store_release(word.bits); }
  uint32_t count(PageState state) const {
    uint32_t n = 0;
    for (uint32_t page = 0; page < region.pages(); ++page) n += word(page).is(state);
    return n;
  }

  Digest digest(std::string_view key, uint64_t tenant = 0) const {
    return digest_of_bytes(region.secret(), bytes_of(key), tenant);
  }
  PlainDigest plain(std::string_view key) const { return plain_of_bytes(region.secret(), bytes_of(key), 0); }
  // The first run of FREE pages, taken by a lane.
  PageRef take(uint32_t lane, uint32_t pages = 1) {
    for (uint32_t page = 0; page + pages <= region.pages(); ++page) {
      if (page / region.region_pages() != (page + pages - 1) / region.region_pages()) continue;
      const PageRef ref = take_run(region, clients_[lane]->lane.id, page, pages, nullptr);
      if (!ref.is_none()) return ref;
    }
    return PageRef::none();
  }
  NewBlock block(std::string_view key, PageRef parent = PageRef::none()) const {
    NewBlock block{};
    block.digest = digest(key);
    block.key = bytes_of(key);
    block.length = 100;
    block.parent = parent;
    block.now_ms = 1'700'000'001'000;
    return block;
  }
  // Stores a key on one page; fails the test if it cannot.
  PageRef store(uint32_t lane, std::string_view key, PageRef parent = PageRef::none()) {
    const PageRef own = take(lane);
    const PublishResult result = publish(clients_[lane]->lane, own, block(key, parent));
    EXPECT_EQ(result.status, PublishStatus::kStored) << key;
    return result.block;
  }
  // Deletes a block and frees its page.
  bool remove(uint32_t lane, PageRef ref) {
    return retire_ref(clients_[lane]->lane, ref) == RetireStatus::kRetired &&
           finish_retired(clients_[lane]->lane, ref, lanes, nullptr) == FinishStatus::kFreed;
  }

  // The invariants that an audit finds violated, each once.
  std::set<std::string> audit(AuditMode mode = AuditMode::kExact) {
    struct Sink final : FindingSink {
      std::vector<Finding> findings;
      void found(const Finding& finding) override { findings.push_back(finding); }
    } sink;
    std::vector<uint64_t> scratch(audit_scratch_bytes(region) / 8);
    AuditRequest request;
    request.mode = mode;
    request.live = lanes;
    request.findings_max = ~uint64_t{0};
    const AuditReport report = shm::audit(region, request, std::as_writable_bytes(std::span(scratch)), sink);
    EXPECT_EQ(report.findings, sink.findings.size());
    Sink sliced;
    AuditRun run(region, request, std::as_writable_bytes(std::span(scratch)), sliced);
    while (!run.step(3)) {
    }
    EXPECT_EQ(run.report().findings, report.findings);
    EXPECT_EQ(sliced.findings, sink.findings) << "in slices";
    std::set<std::string> names;
    for (const Finding& finding : sink.findings) names.insert(invariant_info(finding.invariant).name);
    findings = sink.findings;
    return names;
  }

  ControlRegion region;
  LaneSet lanes;
  std::vector<Finding> findings;

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{4096}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<TestClient>> clients_;
};

using Names = std::set<std::string>;

}  // namespace maru::shm
