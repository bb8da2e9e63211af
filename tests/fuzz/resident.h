// A well-behaved client of a pool that lives in the fuzz target itself, on a mapping of its own: it stores blocks, holds some,
// removes some. Without one the pools of the target are empty, and most of what administrators ask has nothing to do.
#pragma once

#include "libmaru/base/mapping.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/blocks/hash.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/page_run.h"
#include "libmaru/wire/codec.h"
#include "tests/fuzz/target.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace maru::fuzz {

class Resident {
 public:
  static constexpr uint8_t kKeys = 24;
  // Sends a request to marud and returns its reply, or nothing when marud dropped the connection.
  using Ask = std::function<std::optional<std::vector<std::byte>>(wire::Type, std::span<const std::byte>)>;

  // `fd`: the pool's control region; what the pages hold is nobody's business here.
  Resident(int fd, const wire::AttachReply& attached, Ask ask) : ask_(std::move(ask)) {
    auto mapped = Mapping::map_shared(fd, 0, attached.control_bytes, PROT_READ | PROT_WRITE);
    must(mapped.has_value(), "a pool cannot be mapped");
    mapping_ = std::move(*mapped);
    must(!shm::ControlRegion::attach(mapping_.bytes(), attached.pool_bytes, &region_), "a pool cannot be used");
    counts_ = std::vector<AtomicU32>(shm::PinTable::counts_needed(region_.layout()));
    pins_.emplace(region_, attached.lane, counts_);
    lane_.region = &region_;
    lane_.id = {attached.lane, attached.lane_generation};
    lane_.pins = &*pins_;
  }

  static std::string key_of(uint8_t number) { return "k" + std::to_string(number % kKeys); }

  // One step, of any bytes: what to do, and with which keys.
  void step(uint8_t what, uint8_t number, uint8_t other, uint64_t now_ms) {
    const std::string key = key_of(number);
    const shm::Digest digest = digest_of(key, 0);
    switch (what % 6) {
      case 0: store(key, shm::find_unpinned(region_, digest_of(key_of(other), 0)), 0, now_ms); break;
      case 1: store(key, shm::PageRef::none(), other % 4, now_ms); break;
      case 2: hold(digest, now_ms); break;
      case 3: let_go(); break;
      case 4: remove(digest); break;
      case 5: {
        const wire::DeleteTreeRequest tree = {digest.lo, digest.hi};
        (void)ask_(wire::Type::kDeleteTree, wire::bytes_of(tree));
        break;
      }
    }
  }

  // A tree of depth four with two leaves, roots of three tenants, and a leaf that is held.
  void settle_in(uint64_t now_ms) {
    for (uint8_t i = 0; i < 4; ++i) step(0, i, i == 0 ? kKeys - 1 : uint8_t(i - 1), now_ms);
    step(0, 4, 2, now_ms);
    for (uint8_t i = 5; i < 12; ++i) step(1, i, i, now_ms);
    step(2, 3, 0, now_ms);
  }

 private:
  struct Held {
    shm::PageRef ref;
    uint32_t slot;
  };

  shm::Digest digest_of(const std::string& key, uint64_t tenant) const {
    return shm::digest_of_bytes(region_.secret(), std::as_bytes(std::span(key)), tenant);
  }

  shm::PageRef take_free() {
    std::erase_if(regions_, [&](uint32_t index) { return !shm::owns_region(region_, index, lane_.id); });
    for (const uint32_t index : regions_)
      for (uint64_t i = 0; i < region_.region_pages(); ++i) {
        const auto page = uint32_t(index * region_.region_pages() + i);
        if (const auto ref = shm::take_run(region_, lane_.id, page, 1, nullptr); !ref.is_none()) return ref;
      }
    return shm::PageRef::none();
  }
  shm::PageRef take() {
    if (const auto ref = take_free(); !ref.is_none()) return ref;
    wire::RentRequest request = {};
    request.runs = request.run_pages = 1;
    const auto reply = ask_(wire::Type::kRent, wire::bytes_of(request));
    const auto rented = reply ? wire::decode_rent_reply(wire::payload_of(*reply)) : std::nullopt;
    if (!rented) return shm::PageRef::none();
    for (const uint32_t index : rented->regions) must(index < region_.regions(), "a region that is not there");
    regions_.insert(rented->regions.begin(), rented->regions.end());
    for (const wire::RunRecord& run : rented->runs) {
      const shm::PageWord word{region_.block(run.page).word.load_acquire()};
      return shm::PageRef::of(run.page, word.generation());  // one was asked for
    }
    return take_free();
  }

  void store(const std::string& key, shm::PageRef parent, uint64_t tenant, uint64_t now_ms) {
    const shm::PageRef own = take();
    if (own.is_none()) return;
    shm::NewBlock block{};
    block.digest = digest_of(key, tenant);
    block.key = std::as_bytes(std::span(key));
    block.tenant = tenant;
    block.length = 100;
    block.parent = parent;
    block.priority = uint32_t(tenant);
    block.now_ms = now_ms;
    if (shm::publish(lane_, own, block).status == shm::PublishStatus::kStored)
      shm::leave_touch(region_.lane(lane_.id.lane), own.page(), now_ms - region_.header().created_unix_ms);
    else
      shm::give_back_run(region_, lane_.id, own);
  }
  void hold(const shm::Digest& digest, uint64_t now_ms) {
    const shm::Found found = shm::find_and_pin(lane_, digest, now_ms);
    if (found.status == shm::FindStatus::kFound) held_.push_back({found.ref, found.slot});
  }
  void let_go() {
    for (const Held& held : held_) must(pins_->unpin(held.slot, held.ref), "a pin that was lost");
    held_.clear();
  }
  void remove(const shm::Digest& digest) {
    shm::PageRef ref;
    if (shm::retire(lane_, digest, &ref) != shm::RetireStatus::kRetired) return;
    if (shm::finish_retired(lane_, ref, shm::LaneSet::in_use(region_), nullptr) == shm::FinishStatus::kPinned)
      must(shm::hand_over_retired(region_, ref, lane_.id, shm::daemon_lane(region_)), "a page that was lost");
  }

  Ask ask_;
  Mapping mapping_;
  shm::ControlRegion region_;
  std::vector<AtomicU32> counts_;
  std::optional<shm::PinTable> pins_;
  shm::LaneContext lane_;
  std::set<uint32_t> regions_;
  std::vector<Held> held_;
};

}  // namespace maru::fuzz
