#include "libmaru/follow/follower.h"

#include "libmaru/wire/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <linux/futex.h>
#include <new>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace maru::follow {
namespace {

using format::FeedState;
using shm::FeedStatus;
using shm::PageRef;

// A wait is cut into parts, so that the end of the connection is seen.
constexpr uint32_t kLookMs = 50;
constexpr int64_t kRetryMs = 100;
constexpr uint32_t kSnapshotTries = 8;

int64_t monotonic_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

maru_key key_of(const FollowedBlock& block) { return {block.key(), block.key_bytes, block.key_kind, block.tenant}; }

}  // namespace

Follower::Follower(Options options) : options_(std::move(options)), process_(::getpid()) {
  wake_word_.store(&own_word_, std::memory_order_release);
}

Follower::~Follower() = default;

bool Follower::is_child() const { return ::getpid() != process_; }

// -- the connection ---------------------------------------------------------------------------------------------------

// On success there is a feed: the earlier feed, which goes on, or a new feed.
Result<void> Follower::connect() {
  const wire::Deadline deadline(options_.timeout_ms);
  auto connected = wire::connect_to(options_.socket_path, options_.timeout_ms);
  if (!connected) return tl::unexpected(connected.error());
  KeptDescriptor socket(std::move(*connected));
  auto opened = FollowedPool::open(socket, options_.pool, std::max(1u, deadline.left_ms()), options_.reads_metadata);
  if (!opened) return tl::unexpected(opened.error());
  socket_ = std::move(socket);
  error_ = 0;
  if ((before_ == Phase::kTelling || before_ == Phase::kFollowing) && reason_ != MARU_FOLLOW_DAMAGE &&
      (*opened)->feed().incarnation() == pool_->feed().incarnation()) {
    phase_ = before_;
    return {};
  }
  if (reason_ != MARU_FOLLOW_BEGIN && reason_ != MARU_FOLLOW_DAMAGE) reason_ = MARU_FOLLOW_RESTART;
  // A thread that wakes this one may use the old word still: a futex call on memory that is gone does nothing.
  wake_word_.store(&(*opened)->feed().header().wake, std::memory_order_release);
  pool_ = std::move(*opened);
  reader_ = shm::FeedReader(pool_->feed());
  phase_ = Phase::kWaiting;
  return {};
}

void Follower::reconnect() {
  if (monotonic_ms() < again_ms_) return;
  const auto connected = connect();
  if (connected) return;
  // As from a connect(2) without a marud: there may be no socket file while it starts.
  error_ = connected.error().code;
  again_ms_ = monotonic_ms() + kRetryMs;
}

void Follower::lose(uint32_t reason, int code) {
  socket_.reset();
  before_ = phase_;
  phase_ = Phase::kLost;
  if (reason != 0) reason_ = reason;
  error_ = code;
  again_ms_ = reason == MARU_FOLLOW_DAMAGE ? monotonic_ms() + kRetryMs : 0;
}

bool Follower::is_connection_over() const {
  pollfd end = {socket_.get(), POLLRDHUP, 0};
  return end.fd < 0 || (::poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0);
}

// -- a snapshot -------------------------------------------------------------------------------------------------------

bool Follower::read_table() {
  blocks_.clear();
  order_.clear();
  for (uint64_t page = 0; page < pool_->pages(); ++page) {
    FollowedBlock block;
    if (!pool_->read_known(uint32_t(page), &block)) continue;
    order_.emplace_back(block.depth, uint32_t(page));
    blocks_.emplace(uint32_t(page), std::move(block));
  }
  std::sort(order_.begin(), order_.end());
  return !reader_.is_overrun();
}

// Leaves out blocks whose parents are missing. Either both came into the table while it was read, and events behind the
// position of the snapshot tell of them; or both have gone meanwhile, or are about to. A block stays when followers know it and
// not its parent: the parent has lost its key, and no program finds the parent.
void Follower::leave_out_late() {
  std::erase_if(order_, [&](const std::pair<uint32_t, uint32_t>& place) {
    const auto found = blocks_.find(place.second);
    const PageRef parent = found->second.parent;
    if (parent.is_none()) return false;
    const auto above = blocks_.find(parent.page());
    if (above != blocks_.end() && above->second.ref == parent) return false;
    if (!pool_->is_known(parent) && pool_->is_known(found->second.ref)) return false;
    blocks_.erase(found);
    return true;
  });
}

// False: not yet.
bool Follower::take_snapshot() {
  for (uint32_t i = 0; i < kSnapshotTries; ++i) {
    reader_ = shm::FeedReader(pool_->feed());
    if (!reader_.go_to_end() || !read_table()) continue;
    leave_out_late();
    told_ = 0;
    told_blocks_ = 0;
    ++snapshots_;
    if (reason_ == MARU_FOLLOW_OVERRUN) ++overruns_;
    if (reason_ == MARU_FOLLOW_RESTART) ++restarts_;
    phase_ = Phase::kTelling;
    return true;
  }
  error_ = EAGAIN;
  return false;
}

// -- events -----------------------------------------------------------------------------------------------------------

void Follower::name_tenant(maru_follow_event& event) {
  if (event.key.tenant == 0) return;
  std::string& name = tenants_[event.key.tenant];
  if (name.empty()) name = pool_->tenant_name(event.key.tenant);
  if (name.empty()) return;
  event.tenant_name = name.data();
  event.tenant_name_bytes = uint32_t(name.size());
}

void Follower::tell(maru_follow_event& event, uint32_t kind, const FollowedBlock* block) {
  event = {};
  event.kind = kind;
  event.incarnation = pool_->feed().incarnation();
  event.sequence = reader_.sequence();
  if (!block) return;
  event.depth = block->depth;
  event.at_ms = block->stored_ms;
  event.block = block->ref.bits;
  event.parent = block->parent.bits;
  event.key = key_of(*block);
  if (!block->parent.is_none())
    if (const auto above = blocks_.find(block->parent.page());
        above != blocks_.end() && above->second.ref == block->parent)
      event.parent_key = key_of(above->second);
  name_tenant(event);
  event.length = block->length;
  event.stored_ms = block->stored_ms;
  event.expires_ms = block->expires_ms;
  event.content_type = block->content_type;
  event.priority = block->priority;
  event.metadata = block->metadata_bytes != 0 ? block->metadata() : nullptr;
  event.metadata_bytes = block->metadata_bytes;
  if (block->has_lost_metadata) event.flags |= MARU_FOLLOW_METADATA_GONE;
}

int Follower::tell_snapshot(std::span<maru_follow_event> events) {
  size_t count = 0;
  for (; count < events.size() && phase_ == Phase::kTelling; ++told_) {
    maru_follow_event& event = events[count++];
    if (told_ == 0) {
      tell(event, MARU_FOLLOW_RESET, nullptr);
      event.reason = std::exchange(reason_, MARU_FOLLOW_NO_REASON);
    } else if (told_ <= order_.size()) {
      tell(event, MARU_FOLLOW_STORED, &blocks_.at(order_[told_ - 1].second));
      event.flags |= MARU_FOLLOW_IN_SNAPSHOT;
      ++told_blocks_;
    } else {
      tell(event, MARU_FOLLOW_CURRENT, nullptr);
      order_ = {};
      told_ = 1;  // of none
      phase_ = Phase::kFollowing;
    }
  }
  return int(count);
}

// Whether the block of a STORED record had gone when the snapshot came to its page or to its parent's page. Then the snapshot
// has a later life of the page, or it lacks the parent, which goes after its children.
bool Follower::is_over(Blocks::const_iterator on_page) const {
  const PageRef ref = record_.block, parent = record_.parent;
  if (on_page != blocks_.end() && int32_t(ref.generation() - on_page->second.ref.generation()) < 0) return true;
  if (parent.is_none()) return false;
  const auto above = blocks_.find(parent.page());
  const bool has_parent = above != blocks_.end() && above->second.ref == parent;
  return !has_parent && !pool_->is_there(ref);
}

// Makes the events of a record: one, or two where a loss comes in between; none if the snapshot has it.
int Follower::tell_record(std::span<maru_follow_event> events) {
  const auto found = blocks_.find(record_.block.page());
  const bool is_stored = record_.kind == format::FeedKind::kStored;
  const bool is_same = found != blocks_.end() && found->second.ref == record_.block;
  if (is_stored == is_same) return 0;                  // the snapshot has it
  if (!is_stored && found == blocks_.end()) return 0;  // the snapshot has not
  if (is_stored && is_over(found)) return 0;
  int count = 0;
  if (found != blocks_.end() && (is_same || is_stored)) {
    gone_.push_back(std::move(found->second));
    blocks_.erase(found);
    tell(events[count], MARU_FOLLOW_REMOVED, &gone_.back());
    events[count].reason = is_same ? record_.reason : uint32_t(MARU_FOLLOW_BY_CLIENT);
    events[count++].at_ms = record_.at_ms;
    --told_blocks_;
  }
  if (is_stored) {
    const auto place = blocks_.insert_or_assign(record_.block.page(), pool_->block_of(record_)).first;
    tell(events[count], MARU_FOLLOW_STORED, &place->second);
    events[count++].at_ms = record_.at_ms;
    ++told_blocks_;
  }
  return count;
}

int Follower::follow(std::span<maru_follow_event> events) {
  size_t count = 0;
  gone_.reserve(events.size());  // nothing may fail between a record and its event
  while (count + 2 <= events.size() || (count == 0 && events.size() == 1)) {
    switch (reader_.read(&record_)) {
      case FeedStatus::kRecord: {
        if (events.size() == 1) {
          maru_follow_event both[2];
          const int found = tell_record(both);
          if (found == 0) continue;
          events[0] = both[found - 1];
          return 1;
        }
        count += size_t(tell_record(events.subspan(count)));
        continue;
      }
      case FeedStatus::kNothing:
        if (count == 0 && pool_->state() == FeedState::kEnded) lose(0, ECONNREFUSED);
        return int(count);
      case FeedStatus::kOverrun:
        reason_ = MARU_FOLLOW_OVERRUN;
        phase_ = Phase::kWaiting;
        return int(count);
      case FeedStatus::kDamaged: lose(MARU_FOLLOW_DAMAGE, EBADMSG); return int(count);
    }
  }
  return int(count);
}

// Takes the events that are there, without waiting.
int Follower::take(std::span<maru_follow_event> events) {
  if (phase_ == Phase::kLost) reconnect();
  if (phase_ == Phase::kWaiting) {
    const FeedState state = pool_->state();
    if (state == FeedState::kEnded)
      lose(0, ECONNREFUSED);
    else if (state == FeedState::kCurrent)
      take_snapshot();
  }
  if (phase_ == Phase::kTelling) return tell_snapshot(events);
  return phase_ == Phase::kFollowing ? follow(events) : 0;
}

void Follower::wait(uint32_t seen, uint32_t ms) {
  const bool has_feed = phase_ == Phase::kWaiting || phase_ == Phase::kFollowing;
  AtomicU32& word = has_feed ? pool_->feed().header().wake : own_word_;
  const timespec time = {time_t(ms / 1000), long(ms % 1000) * 1'000'000};
  ::syscall(SYS_futex, &word.raw, FUTEX_WAIT, has_feed ? seen : 0, &time, nullptr, 0);
}

int Follower::next(std::span<maru_follow_event> events, int timeout_ms) {
  const int64_t end_ms = timeout_ms < 0 ? INT64_MAX : monotonic_ms() + timeout_ms;
  for (;;) {
    gone_.clear();
    const uint32_t seen = pool_ ? pool_->feed().header().wake.load_acquire() : 0;  // before the look
    if (const int count = take(events); count > 0) return count;
    if (is_woken_.exchange(false, std::memory_order_acq_rel)) return 0;
    if (phase_ != Phase::kLost && is_connection_over()) {
      lose(0, ECONNREFUSED);
      continue;
    }
    const int64_t left_ms = end_ms - monotonic_ms();
    if (left_ms <= 0) return phase_ == Phase::kLost || error_ == EAGAIN ? -std::exchange(error_, 0) : 0;
    wait(seen, uint32_t(std::min<int64_t>(left_ms, kLookMs)));
  }
}

void Follower::forget_all() {
  if (phase_ == Phase::kLost || !pool_) return;
  if (reason_ == MARU_FOLLOW_NO_REASON) reason_ = MARU_FOLLOW_OVERRUN;
  phase_ = Phase::kWaiting;
}

void Follower::wake() {
  is_woken_.store(true, std::memory_order_release);
  for (AtomicU32* word : {wake_word_.load(std::memory_order_acquire), &own_word_})
    ::syscall(SYS_futex, &word->raw, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

maru_follow_status Follower::status() const {
  maru_follow_status status = {};
  status.size = sizeof(status);
  if (pool_) {
    status.incarnation = pool_->feed().incarnation();
    status.newest = pool_->feed().header().sequence.load_acquire();  // [pairs feed.sequence]
    status.ring_bytes = pool_->feed().ring_bytes();
  }
  if (snapshots_ > 0) {
    status.sequence = reader_.sequence();
    status.unread_bytes = reader_.unread_bytes();
  }
  status.blocks = told_blocks_;
  status.snapshots = snapshots_;
  status.overruns = overruns_;
  status.restarts = restarts_;
  status.is_connected = phase_ != Phase::kLost ? 1 : 0;
  status.is_current = phase_ == Phase::kFollowing ? 1 : 0;
  return status;
}

}  // namespace maru::follow
