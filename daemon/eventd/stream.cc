#include "daemon/eventd/stream.h"

#include "daemon/base/log.h"

#include <algorithm>
#include <pthread.h>

namespace maru::eventd {
namespace {

constexpr size_t kLettersMax = 8192;
constexpr int kTurnMs = 1000;  // at the latest, for the watchdog

int sooner(int one_ms, int other_ms) {
  return one_ms < 0 ? other_ms : other_ms < 0 ? one_ms : std::min(one_ms, other_ms);
}

}  // namespace

Stream::Stream(const StreamSettings& settings, std::unique_ptr<Outlet> outlet, daemon::beside::Counters& counters,
               daemon::beside::Health& health)
    : settings_(settings),
      outlet_(std::move(outlet)),
      counters_(counters),
      health_(health),
      letters_(kLettersMax),
      blocks_(counters.gauge("maru_eventd_announced_blocks", "Blocks of engines that are announced as being there.",
                             {{"stream", settings.name}})),
      announcements_(counters.counter("maru_eventd_announcements_total",
                                      "Times that everything was announced again, after a loss or for a subscriber.",
                                      {{"stream", settings.name}})) {}

Stream::~Stream() {
  is_stopping_ = true;
  letters_.close();
  if (thread_.joinable()) thread_.join();
  sources_.clear();
}

Result<void> Stream::relay(const MakeFeed& make, Rank rank) {
  auto feed = make(uint32_t(settings_.pools.size()), contents_);
  if (!feed) return tl::unexpected(feed.error());
  feed_ = std::move(*feed);
  rank_ = std::move(rank);
  return {};
}

void Stream::start() {
  for (size_t i = 0; i < settings_.pools.size(); ++i)
    sources_.push_back(
        std::make_unique<PoolSource>(uint32_t(i), settings_, settings_.pools[i], letters_, counters_, health_));
  thread_ = std::thread([this] { run(); });
}

void Stream::run() {
  ::pthread_setname_np(::pthread_self(), "stream");
  announce_all();  // the blocks that an earlier process announced are void
  flush();
  while (!is_stopping_) {
    wait();
    take_letters();
    if (feed_) {
      feed_->serve(pending_, [this] { flush(); });
      is_blank_ &= contents_.items() == 0;
      if (feed_->rank() && feed_->rank() != told_rank_) rank_(told_rank_ = feed_->rank());
    }
    if (outlet_->serve()) {
      announce_all();
      flush();  // before the subscribers that asked for it are answered
    }
    flush_if_due();
    blocks_.set(contents_.announced());
    turns_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Stream::wait() {
  std::vector<zmq_pollitem_t> items = {{nullptr, letters_.fd(), ZMQ_POLLIN, 0}};
  outlet_->add_to_poll(items);
  int wait_ms = sooner(kTurnMs, outlet_->wait_ms());
  if (feed_) {
    feed_->add_to_poll(items);
    wait_ms = sooner(wait_ms, feed_->wait_ms());
  }
  if (!pending_.empty()) {
    const auto due = pending_since_ + std::chrono::milliseconds(settings_.batch_ms);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
    wait_ms = sooner(wait_ms, int(std::max<int64_t>(0, left)));
  }
  ::zmq_poll(items.data(), int(items.size()), wait_ms);
}

void Stream::take_letters() {
  for (SourcedChange& letter : letters_.take()) {
    apply(std::move(letter));
    if (pending_.bytes() >= settings_.batch_bytes) flush();
  }
}

void Stream::apply(SourcedChange&& letter) {
  const ItemKey key = {letter.source, letter.change.block, 0};
  switch (letter.change.kind) {
    case PoolChange::Kind::kReset:
      contents_.forget(letter.source);
      if (!is_blank_) announce_all();
      break;
    case PoolChange::Kind::kStored:
      contents_.add(key, std::move(letter.change.item), pending_);
      is_blank_ = false;
      break;
    case PoolChange::Kind::kRemoved: contents_.remove(key, pending_); break;
    case PoolChange::Kind::kCurrent: break;
  }
}

// A batch of its own begins with it, so that a replay can begin there.
void Stream::announce_all() {
  flush();
  is_blank_ = contents_.items() == 0;
  announcements_.add();
  contents_.announce_all(pending_, [this] {
    if (pending_.bytes() >= settings_.batch_bytes) flush();
  });
}

void Stream::flush() {
  if (pending_.empty()) return;
  outlet_->publish(pending_);
  pending_.clear();
  pending_since_ = {};
}

void Stream::flush_if_due() {
  if (pending_.empty()) return;
  if (pending_since_ == Clock::time_point{}) pending_since_ = Clock::now();
  if (Clock::now() - pending_since_ >= std::chrono::milliseconds(settings_.batch_ms)) flush();
}

}  // namespace maru::eventd
