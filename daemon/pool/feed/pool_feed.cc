// A pool's feed: when there is one, and where each turn looks. daemon/pool/feed/feed.h says what is told.
#include "daemon/pool/state.h"
#include "maru/follow.h"

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

FileDescriptor open_to_read(int fd) {
  return FileDescriptor(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

uint32_t Pool::State::follow_reason(EvictReason reason) {
  constexpr uint32_t kReasons[] = {MARU_FOLLOW_BY_REQUEST, MARU_FOLLOW_BY_BACKGROUND, MARU_FOLLOW_BY_TAKEOVER,
                                   MARU_FOLLOW_BY_EXPIRY, MARU_FOLLOW_BY_ADMIN};
  static_assert(std::size(kReasons) == kEvictReasonCount);
  return kReasons[size_t(reason)];
}

void Pool::State::look_for_feed(uint32_t page) {
  feed->look(page, regions.owns_page(page) ? MARU_FOLLOW_BY_CLIENT : MARU_FOLLOW_BY_HOST);
}

// By its touch a publisher says where its block is. Touches of other hosts' lanes count as well.
void Pool::State::touched_for_feed(std::span<const shm::Touch> found) {
  feed->set_now(core.now_ms);
  for (const shm::Touch& touch : found) __builtin_prefetch(&core.region.block(touch.page));
  for (const shm::Touch& touch : found) look_for_feed(touch.page);
}

// Before a walk: which lanes may have removed blocks, or stored some without a trace in their rings. What a client had begun
// that is gone now has been settled without a word to the feed.
void Pool::State::note_moves() {
  const shm::LaneSet in_use = shm::with_other_hosts(core.region, lanes.in_use);
  // A number that changes with each delete, each freed page, each lost touch and each client: hints.
  const auto moves_of = [&](uint32_t lane) {
    const format::LaneHeader& header = core.region.lane_header(lane);
    core.meter.add(kCounterLines);
    return header.counter(format::kCounterDeletes) + header.frees.load_relaxed() +  // as above
           (lanes.records[lane].lost() << 24) + (uint64_t(lanes.records[lane].generation) << 48);
  };
  for (uint32_t lane = 0; lane < core.region.lanes(); ++lane) feed->looks.note(lane, in_use.has(lane) ? moves_of(lane) : 0);
}

// A step of a walk: half of it in regions of those lanes, while there are some.
void Pool::State::walk_for_feed(uint64_t count) {
  feed->set_now(core.now_ms);
  if (feed->is_filling()) return;
  uint64_t left = count / 2;
  while (left > 0 && feed->looks.has_regions()) {
    const uint32_t index = feed->looks.region_next(), pages_in = core.region.region_pages();
    const RegionEntry& entry = regions[index];
    const bool is_wanted =
        !entry.is_foreign && entry.state == RegionState::kRented && feed->looks.is_active(entry.owner.lane);
    const uint64_t taken = is_wanted ? std::min<uint64_t>(left, pages_in - feed->looks.region_page()) : 0;
    for (uint64_t i = 0; i < taken; ++i) look_for_feed(index * pages_in + feed->looks.take_region_page());
    left -= taken;
    if (!is_wanted || feed->looks.region_page() == pages_in) feed->looks.region_done(core.region.regions());
  }
  for (uint64_t i = count / 2 + left; i > 0; --i) look_for_feed(feed->looks.take_page(core.pages()));
}

// The end of a turn. Returns true when there is more to do right away. Turns may come many times in a millisecond, and
// followers are woken once in it.
bool Pool::State::end_feed_turn(bool has_more) {
  feed->set_now(core.now_ms);
  if (feed->followers == 0 && core.now_ms - std::min(core.now_ms, feed->left_ms) > kLingerMs) {
    feed.reset();
    return has_more;
  }
  has_more |= feed->settle();
  if (!has_more || !feed->has_published()) feed->publish();
  return has_more;
}

Result<FollowGrant> Pool::State::follow() {
  if (core.pages() > kFollowPagesMax)
    return failure(EFBIG, "follow a pool of " + std::to_string(core.pages()) + " pages: at most " +
                              std::to_string(kFollowPagesMax) + " can be followed");
  FollowGrant grant;
  grant.control = open_to_read(core.device->control_fd());
  if (core.device->is_split()) grant.pages = FileDescriptor(::fcntl(core.device->read_only_fd(), F_DUPFD_CLOEXEC, 3));
  if (!grant.control.is_open() || (core.device->is_split() && !grant.pages.is_open()))
    return failure(errno, "open the pool's memory to read, for a follower");
  if (!feed) {
    drain_touches(kTouchesPerDrain);  // what was stored before is no news
    auto made = Feed::make(core.region, core.meter, core.now_ms);
    if (!made) return tl::unexpected(made.error());
    feed = std::move(*made);
    feed->left_ms = core.now_ms;
  }
  grant.feed = FileDescriptor(::fcntl(feed->fd(), F_DUPFD_CLOEXEC, 3));
  if (!grant.feed.is_open()) return failure(errno, "pass a feed on");
  ++feed->followers;
  wire::FollowReply& reply = grant.reply;
  const format::Header& header = core.region.header();
  std::memcpy(reply.uuid, header.uuid, sizeof(reply.uuid));
  reply.incarnation = feed->view().incarnation();
  reply.feed_bytes = feed->bytes();
  reply.pool_bytes = core.device->bytes();
  reply.control_bytes = header.control_bytes;
  reply.pages_offset = core.device->is_split() ? core.device->pages_offset() : header.control_bytes;
  reply.control_alignment = core.device->control_alignment();
  reply.map_alignment = core.device->map_alignment();
  reply.descriptors = core.device->is_split() ? 3 : 2;
  return grant;
}

void Pool::State::unfollow(uint64_t incarnation) {
  if (!feed || feed->view().incarnation() != incarnation || feed->followers == 0) return;
  --feed->followers;
  feed->left_ms = core.now_ms;
}

Result<FollowGrant> Pool::follow(uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  return state_->follow();
}

void Pool::unfollow(uint64_t incarnation) { state_->unfollow(incarnation); }

std::optional<uint64_t> Pool::feed_turn_ms() const {
  if (!state_->feed) return std::nullopt;
  return state_->feed->is_filling() ? 0 : state_->feed->is_idle() ? kIdleTurnMs : kTurnMs;
}

}  // namespace maru::daemon
