#include "daemon/pool/feed/pool_feed.h"

#include "libmaru/shm/blocks/pin.h"
#include "maru/follow.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>

namespace maru::daemon {
namespace {

// The feed outlives the last follower's connection for so long, so that it may come back without a snapshot.
constexpr uint64_t kLingerMs = 30'000;
// How soon a turn looks for news, while there are some and otherwise.
constexpr uint64_t kTurnMs = 5, kIdleTurnMs = 20;
constexpr uint64_t kFollowPagesMax = 1ull << 30;
constexpr uint64_t kCounterLines = 5;
// Each reads some ten lines where its block is new: together about the budget of a turn.
constexpr size_t kTouchedPerTurn = 1u << 8;

FileDescriptor open_to_read(int fd) {
  return FileDescriptor(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

void PoolFeed::removed(PageRef ref, EvictReason reason) {
  constexpr uint32_t kReasons[] = {MARU_FOLLOW_BY_REQUEST, MARU_FOLLOW_BY_BACKGROUND, MARU_FOLLOW_BY_TAKEOVER,
                                   MARU_FOLLOW_BY_EXPIRY, MARU_FOLLOW_BY_ADMIN};
  static_assert(std::size(kReasons) == kEvictReasonCount);
  removed_by(ref, kReasons[size_t(reason)]);
}

void PoolFeed::removed_by(PageRef ref, uint32_t reason) {
  if (feed_) feed_->removed(ref, reason);
}

void PoolFeed::look(uint32_t page) {
  feed_->look(page, regions_.owns_page(page) ? MARU_FOLLOW_BY_CLIENT : MARU_FOLLOW_BY_HOST);
}

void PoolFeed::touched(std::span<const shm::Touch> found) {
  if (!feed_) return;
  for (const shm::Touch& touch : found) feed_->touched.add(touch.page);
}

// Returns true when some are left.
bool PoolFeed::look_at_touched() {
  std::array<uint32_t, kTouchedPerTurn> pages;
  const size_t count = std::min(pages.size(), feed_->touched.size());
  for (size_t i = 0; i < count; ++i) {
    pages[i] = feed_->touched.take();
    __builtin_prefetch(&core_.region.block(pages[i]));
  }
  for (size_t i = 0; i < count; ++i) look(pages[i]);
  return !feed_->touched.empty();
}

// Work that a dead client had begun has been settled without a word to the feed.
void PoolFeed::note_moves() {
  if (!feed_) return;
  const shm::LaneSet in_use = shm::with_other_hosts(core_.region, lanes_.in_use);
  // A number that changes with each delete, each freed page, each lost touch and each client: hints.
  const auto moves_of = [&](uint32_t lane) {
    const format::LaneHeader& header = core_.region.lane_header(lane);
    core_.meter.add(kCounterLines);
    return header.counter(format::kCounterDeletes) + header.frees.load_relaxed() +  // as above
           (lanes_.records[lane].lost() << 24) + (uint64_t(lanes_.records[lane].generation) << 48);
  };
  for (uint32_t lane = 0; lane < core_.region.lanes(); ++lane)
    feed_->looks.note(lane, in_use.has(lane) ? moves_of(lane) : 0);
}

// A step of a walk: half of it in regions of those lanes, while there are some.
void PoolFeed::walk(uint64_t count) {
  if (!feed_) return;
  feed_->set_now(core_.now_ms);
  if (feed_->is_filling()) return;
  uint64_t left = count / 2;
  while (left > 0 && feed_->looks.has_regions()) {
    const uint32_t index = feed_->looks.region_next(), pages_in = core_.region.region_pages();
    const RegionEntry& entry = regions_[index];
    const bool is_wanted =
        !entry.is_foreign && entry.state == RegionState::kRented && feed_->looks.is_active(entry.owner.lane);
    const uint64_t taken = is_wanted ? std::min<uint64_t>(left, pages_in - feed_->looks.region_page()) : 0;
    for (uint64_t i = 0; i < taken; ++i) look(index * pages_in + feed_->looks.take_region_page());
    left -= taken;
    if (!is_wanted || feed_->looks.region_page() == pages_in) feed_->looks.region_done(core_.region.regions());
  }
  for (uint64_t i = count / 2 + left; i > 0; --i) look(feed_->looks.take_page(core_.pages()));
}

// Turns may come many times in a millisecond, and followers are woken once in it.
bool PoolFeed::end_turn(bool has_more) {
  if (!feed_) return has_more;
  feed_->set_now(core_.now_ms);
  if (feed_->followers == 0 && core_.now_ms - std::min(core_.now_ms, feed_->left_ms) > kLingerMs) {
    feed_.reset();
    return has_more;
  }
  has_more |= look_at_touched();
  has_more |= feed_->settle();
  if (!has_more || !feed_->has_published()) feed_->publish();
  return has_more;
}

Result<FollowGrant> PoolFeed::follow() {
  if (core_.pages() > kFollowPagesMax)
    return failure(EFBIG, "follow a pool of " + std::to_string(core_.pages()) + " pages: at most " +
                              std::to_string(kFollowPagesMax) + " can be followed");
  FollowGrant grant;
  grant.control = open_to_read(core_.device->control_fd());
  if (core_.device->is_split()) grant.pages = FileDescriptor(::fcntl(core_.device->read_only_fd(), F_DUPFD_CLOEXEC, 3));
  if (!grant.control.is_open() || (core_.device->is_split() && !grant.pages.is_open()))
    return failure(errno, "open the pool's memory to read, for a follower");
  if (!feed_) {
    auto made = Feed::make(core_.region, core_.meter, core_.now_ms);
    if (!made) return tl::unexpected(made.error());
    feed_ = std::move(*made);
    feed_->left_ms = core_.now_ms;
  }
  grant.feed = FileDescriptor(::fcntl(feed_->fd(), F_DUPFD_CLOEXEC, 3));
  if (!grant.feed.is_open()) return failure(errno, "pass a feed on");
  ++feed_->followers;
  wire::FollowReply& reply = grant.reply;
  const format::Header& header = core_.region.header();
  std::memcpy(reply.uuid, header.uuid, sizeof(reply.uuid));
  reply.incarnation = feed_->view().incarnation();
  reply.feed_bytes = feed_->bytes();
  reply.pool_bytes = core_.device->bytes();
  reply.control_bytes = header.control_bytes;
  reply.pages_offset = core_.device->is_split() ? core_.device->pages_offset() : header.control_bytes;
  reply.control_alignment = core_.device->control_alignment();
  reply.map_alignment = core_.device->map_alignment();
  reply.descriptors = core_.device->is_split() ? 3 : 2;
  return grant;
}

void PoolFeed::unfollow(uint64_t incarnation) {
  if (!feed_ || feed_->view().incarnation() != incarnation || feed_->followers == 0) return;
  --feed_->followers;
  feed_->left_ms = core_.now_ms;
}

std::optional<uint64_t> PoolFeed::turn_ms() const {
  if (!feed_) return std::nullopt;
  return feed_->is_filling() ? 0 : feed_->is_idle() ? kIdleTurnMs : kTurnMs;
}

}  // namespace maru::daemon
