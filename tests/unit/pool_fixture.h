// A Pool of the daemon on a memory device, and clients of it that live in the test's own process, on a mapping of their own.
#pragma once

#include "daemon/memory/memory_device.h"
#include "daemon/pool/pool.h"
#include "libmaru/base/mapping.h"
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/page_run.h"
#include "libmaru/wire/codec.h"

#include <array>
#include <deque>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace maru::daemon {

using format::PageRef;
using format::PageState;
using shm::PageWord;

inline constexpr uint64_t kStartMs = 1'700'000'000'000;

struct PoolUnderTest;

// What libmaru does, as far as a test needs it: takes FREE pages of its regions, and rents when there are none.
struct InProcessClient {
  PoolUnderTest& home;
  LaneGrant grant;
  std::vector<AtomicU32> counts;
  shm::PinTable pins;
  shm::LaneContext lane;
  std::set<uint32_t> regions;
  std::deque<wire::RunRecord> runs;  // RESERVED by this client and not in use
  std::vector<std::string> evicted;  // keys that its requests evicted, in order
  int32_t last_status = 0;

  InProcessClient(PoolUnderTest& pool, LaneGrant given);
  bool rent(uint64_t run_count, uint64_t run_pages = 1);
  PageRef take(uint32_t pages = 1);       // FREE or rented; none if refused
  PageRef take_free(uint32_t pages = 1);  // FREE only
  PageRef store(std::string_view key, PageRef parent = PageRef::none(), uint32_t pages = 1);
  void touch(PageRef ref);
  bool remove(PageRef ref);  // as maru_delete does; false if it is not gone
  shm::Pin pin(PageRef ref) { return pins.pin(ref); }
};

struct PoolUnderTest {
  // With a random one, a store into a full pool would be refused every now and then: a full bucket in 50,000.
  static std::array<uint64_t, 16> fixed_secret() {
    std::array<uint64_t, 16> secret;
    for (uint64_t i = 0; i < secret.size(); ++i) secret[i] = 0x9e3779b97f4a7c15 * (2 * i + 1);
    return secret;
  }

  PoolConfig config;
  std::unique_ptr<Pool> pool;
  DeviceIdentity identity;
  std::optional<DeviceIdentity> pages_identity;
  FileDescriptor fd, pages_fd;
  Mapping mapping;
  shm::ControlRegion region;  // the clients' view
  uint64_t now_ms = kStartMs;
  uint64_t next_start_time = 100;

  explicit PoolUnderTest(uint64_t bytes = 1u << 20, uint32_t region_pages = 16, uint32_t pins_max = 64,
                         const SharingConfig& sharing = {}, uint32_t tenants_max = 0, uint32_t touch_entries = 256,
                         uint32_t lanes = 8) {
    config.name = "test";
    config.tenants_max = tenants_max;
    config.sharing = sharing;
    config.page_bytes = 4096;
    config.region_bytes = uint64_t(region_pages) * 4096;
    config.lanes = lanes;
    config.pins_max = pins_max;
    config.touch_entries = touch_entries;
    config.key_inline_bytes = 64;
    auto device = MemoryDevice::create("test", bytes, HugePages::kNever, {}, [&](uint64_t all, uint64_t unit) {
      return Pool::control_room(config, all, unit, 0);
    });
    if (!device) throw std::runtime_error(device.error().text());
    identity = (*device)->identity();
    pages_identity = (*device)->pages_identity();
    fd.reset(::fcntl((*device)->control_fd(), F_DUPFD_CLOEXEC, 3));
    pages_fd.reset(::fcntl((*device)->fd(), F_DUPFD_CLOEXEC, 3));
    const uint64_t control_room = (*device)->control_room();
    auto made = Pool::format(config, std::move(*device), now_ms, {}, fixed_secret());
    if (!made) throw std::runtime_error(made.error().text());
    pool = std::move(*made);
    map(bytes, control_room);
  }

  // Another host on the same memory.
  PoolUnderTest(const PoolUnderTest& first, const SharingConfig& sharing)
      : config(first.config), identity(first.identity), pages_identity(first.pages_identity) {
    config.sharing = sharing;
    fd.reset(::fcntl(first.fd.get(), F_DUPFD_CLOEXEC, 3));
    pages_fd.reset(::fcntl(first.pages_fd.get(), F_DUPFD_CLOEXEC, 3));
    if (!restart()) throw std::runtime_error("the other host cannot attach");
    map(pool->device().bytes(), pool->device().control_room());
  }

  void map(uint64_t bytes, uint64_t control_room) {
    auto mapped = Mapping::map_shared(fd.get(), 0, control_room, PROT_READ | PROT_WRITE);
    if (!mapped) throw std::runtime_error(mapped.error().text());
    mapping = std::move(*mapped);
    if (const char* problem = shm::ControlRegion::attach(mapping.bytes(), bytes, &region))
      throw std::runtime_error(problem);
  }

  // marud dies here and another one finds the memory.
  bool restart() {
    pool.reset();
    const auto again = [](const FileDescriptor& one) { return FileDescriptor(::fcntl(one.get(), F_DUPFD_CLOEXEC, 3)); };
    auto device = MemoryDevice::adopt({again(fd), again(pages_fd)}, identity, pages_identity);
    if (!device) return false;
    auto adopted = Pool::adopt(config, std::move(*device), now_ms);
    if (!adopted) return false;
    pool = std::move(*adopted);
    return true;
  }

  std::unique_ptr<InProcessClient> attach() {
    ClientIdentity who;
    who.pid = 1000;
    who.start_time = next_start_time++;
    auto grant = pool->attach(who, 0, 0, now_ms);
    if (!grant) return nullptr;
    return std::make_unique<InProcessClient>(*this, *grant);
  }

  PageWord word(uint32_t page) const { return {region.block(page).word.load_acquire()}; }
  uint32_t count(PageState state) const {
    uint32_t n = 0;
    for (uint32_t page = 0; page < region.pages(); ++page) n += word(page).is(state);
    return n;
  }
  shm::Digest digest(std::string_view key) const {
    return shm::digest_of_bytes(region.secret(), std::as_bytes(std::span(key.data(), key.size())), 0);
  }
  shm::PlainDigest plain(std::string_view key) const { return shm::unpermute(region.secret(), digest(key)); }
  bool exists(std::string_view key) const { return !shm::find_unpinned(region, digest(key)).is_none(); }

  // Whether it is done at once or in turns.
  DeleteTreeResult delete_tree(const shm::Digest& wanted) {
    uint64_t ticket = 0;
    const DeleteTreeResult result = pool->delete_tree(0, {wanted.lo, wanted.hi}, now_ms, &ticket);
    if (ticket == 0) return result;
    for (int turns = 0; turns < 100'000; ++turns) {
      pool->turn(now_ms);
      for (const DeletedTree& tree : pool->take_deleted_trees())
        if (tree.ticket == ticket) return tree.result;
    }
    throw std::runtime_error("a tree is deleted for ever");
  }

  // Turns until nothing is left to do, also after some pauses; at most as many as that can take.
  void settle() {
    bool has_more = false;
    for (int turns = 0, pauses = 0; turns < 100'000; ++turns) {
      has_more = pool->turn(now_ms += has_more ? 1 : 50);
      if (!has_more && ++pauses > 5) return;
    }
    FAIL() << "marud's turns do not come to an end";
  }

  // Violated invariants, at rest.
  std::set<std::string> audit() {
    struct Sink final : shm::FindingSink {
      std::set<std::string> names;
      void found(const shm::Finding& finding) override {
        names.insert(std::string(shm::invariant_info(finding.invariant).name) + " " + std::to_string(finding.index));
      }
    } sink;
    std::vector<uint64_t> scratch(shm::audit_scratch_bytes(region) / 8 + 1);
    shm::AuditRequest request;
    request.mode = shm::AuditMode::kExact;
    request.live = shm::LaneSet::in_use(region);
    shm::audit(region, request, std::as_writable_bytes(std::span(scratch)), sink);
    return sink.names;
  }
};

inline InProcessClient::InProcessClient(PoolUnderTest& under, LaneGrant given)
    : home(under),
      grant(given),
      counts(shm::PinTable::counts_needed(under.region.layout())),
      pins(under.region, given.lane, counts) {
  lane.region = &under.region;
  lane.id = {given.lane, given.generation};
  lane.pins = &pins;
}

inline bool InProcessClient::rent(uint64_t run_count, uint64_t run_pages) {
  wire::RentRequest request = {};
  request.runs = run_count;
  request.run_pages = run_pages;
  const RentResult result = home.pool->rent(grant.lane, request, home.now_ms);
  last_status = result.status;
  regions.insert(result.regions.begin(), result.regions.end());
  for (const wire::RunRecord& run : result.runs) {
    EXPECT_EQ(home.word(run.page), PageWord::reserved(home.word(run.page).generation(), lane.id));
    runs.push_back(run);
  }
  std::span<const std::byte> rest = result.evicted_keys;
  while (const auto record = wire::next_evicted_key(rest))
    evicted.emplace_back(reinterpret_cast<const char*>(record->key.data()), record->key.size());
  return result.status == 0;
}

inline PageRef InProcessClient::take_free(uint32_t pages) {
  std::erase_if(regions, [&](uint32_t index) { return !shm::owns_region(home.region, index, lane.id); });
  for (uint32_t index : regions)
    for (uint32_t i = 0; i + pages <= home.region.region_pages(); ++i) {
      const PageRef ref = shm::take_run(home.region, lane.id, index * home.region.region_pages() + i, pages, nullptr);
      if (!ref.is_none()) return ref;
    }
  return PageRef::none();
}

inline PageRef InProcessClient::take(uint32_t pages) {
  for (int tries = 0; tries < 2; ++tries) {
    for (auto run = runs.begin(); run != runs.end(); ++run)
      if (run->pages == pages) {
        const uint32_t page = run->page;
        runs.erase(run);
        return PageRef::of(page, home.word(page).generation());
      }
    if (const PageRef ref = take_free(pages); !ref.is_none()) return ref;
    if (tries == 1 || !rent(1, pages)) break;
  }
  return PageRef::none();
}

inline void InProcessClient::touch(PageRef ref) {
  shm::leave_touch(home.region.lane(grant.lane), ref.page(), home.now_ms - kStartMs);
}

inline bool InProcessClient::remove(PageRef ref) {
  return shm::retire_ref(lane, ref) == shm::RetireStatus::kRetired &&
         shm::finish_deleted(lane, ref, shm::LaneSet::in_use(home.region), 0, home.now_ms - kStartMs, nullptr) ==
             shm::FinishStatus::kFreed;
}

inline PageRef InProcessClient::store(std::string_view key, PageRef parent, uint32_t pages) {
  const PageRef own = take(pages);
  if (own.is_none()) return own;
  shm::NewBlock block{};
  block.digest = home.digest(key);
  block.key = std::as_bytes(std::span(key.data(), key.size()));
  block.length = 100;
  block.parent = parent;
  block.now_ms = home.now_ms;
  const shm::PublishResult result = shm::publish(lane, own, block);
  if (result.status != shm::PublishStatus::kStored) {
    shm::give_back_run(home.region, lane.id, own);
    return PageRef::none();
  }
  touch(own);
  return own;
}

}  // namespace maru::daemon
