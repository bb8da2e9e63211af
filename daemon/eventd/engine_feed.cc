#include "daemon/eventd/engine_feed.h"

#include "daemon/base/log.h"
#include "daemon/eventd/big_endian.h"

#include <cerrno>

namespace maru::eventd {
namespace {

constexpr std::chrono::milliseconds kReplayTime{2000};
constexpr size_t kWaitingMax = 10'000;  // batches that come while a replay is under way
constexpr size_t kWaitingBytesMax = 64u << 20;
constexpr size_t kMessagesAtOnce = 64;
constexpr std::chrono::seconds kComplaintPause{10};
constexpr size_t kEventBytesMax = 128u << 10;  // after which the gathered events may be published

// One block of an event, as an item of its own: the engine takes back one after the other.
Item item_of(const Blocks& blocks, size_t i) {
  Item item;
  Blocks& one = item.blocks;
  one.hashes = {blocks.hashes[i]};
  one.parent = i == 0 ? blocks.parent : std::optional(blocks.hashes[i - 1]);
  if (blocks.has_tokens()) {
    const auto begin = blocks.tokens.begin() + ptrdiff_t(i * blocks.block_size);
    one.tokens.assign(begin, begin + blocks.block_size);
  }
  one.block_size = blocks.block_size;
  one.medium = blocks.medium;
  one.lora_name = blocks.lora_name;
  one.cache_salt = blocks.cache_salt;
  one.lora_id = blocks.lora_id;
  if (!blocks.extra_keys.empty()) one.extra_keys = {blocks.extra_keys[i]};
  one.place = blocks.place;
  one.place_pairs = blocks.place_pairs;
  one.more = blocks.more;
  one.more_pairs = blocks.more_pairs;
  return item;
}

}  // namespace

Result<FeedMessage> parse_feed_message(const Frames& frames) {
  // A DEALER gets the empty frame first, and the topic may be empty, too: the sequence is the last frame but one.
  if (frames.size() < 2 || frames.size() > 4)
    return failure(EBADMSG, "found a message of " + std::to_string(frames.size()) +
                                " frames, expected a topic, a sequence and a batch");
  const std::string& sequence = frames[frames.size() - 2];
  // 24 bytes: a proposed form has more behind the sequence.
  if (sequence.size() < sizeof(uint64_t) || sequence.size() > 64)
    return failure(EBADMSG, "found a sequence of " + std::to_string(sequence.size()) + " bytes, expected 8");
  FeedMessage message = {from_big_endian(sequence), frames.back(), false};
  message.is_end = message.sequence == UINT64_MAX && message.payload.empty();
  return message;
}

EngineFeed::EngineFeed(const std::string& stream, const RelaySettings& settings, uint32_t source, Contents& contents,
                       daemon::beside::Counters& counters, daemon::beside::Health& health)
    : part_("stream " + stream + ", relay"),
      settings_(settings),
      source_(source),
      contents_(contents),
      health_(health),
      batches_(counters.counter("maru_eventd_relay_batches_total", "Batches of the engine that were taken.",
                                {{"stream", stream}})),
      bad_(counters.counter("maru_eventd_relay_bad_total", "Messages of the engine's feed that are no batches.",
                            {{"stream", stream}})),
      gaps_(counters.counter("maru_eventd_relay_gaps_total", "Gaps in the engine's feed.", {{"stream", stream}})),
      losses_(
          counters.counter("maru_eventd_relay_losses_total",
                           "Times that all blocks of the engine were taken back, since some of its events were lost.",
                           {{"stream", stream}})) {}

Result<std::unique_ptr<EngineFeed>> EngineFeed::open(const ZmqContext& context, const std::string& stream,
                                                     const RelaySettings& settings, uint32_t source, Contents& contents,
                                                     daemon::beside::Counters& counters,
                                                     daemon::beside::Health& health) {
  std::unique_ptr<EngineFeed> feed(new EngineFeed(stream, settings, source, contents, counters, health));
  if (auto opened = feed->open_sockets(context); !opened) return tl::unexpected(opened.error());
  return feed;
}

Result<void> EngineFeed::open_sockets(const ZmqContext& context) {
  auto sub = ZmqSocket::create(context, ZMQ_SUB, "a socket to subscribe with");
  if (!sub) return tl::unexpected(sub.error());
  sub_ = std::move(*sub);
  sub_.set64(ZMQ_MAXMSGSIZE, int64_t(kBatchBytesMax));
  sub_.set(ZMQ_RCVHWM, 1000);
  sub_.set(ZMQ_SUBSCRIBE, std::string_view(settings_.topic));
  const std::string events = "inproc://" + part_;
  auto monitor = ZmqSocket::create(context, ZMQ_PAIR, "a socket for the end of connections");
  if (!monitor) return tl::unexpected(monitor.error());
  monitor_ = std::move(*monitor);
  if (::zmq_socket_monitor(sub_.get(), events.c_str(), ZMQ_EVENT_DISCONNECTED) != 0)
    return failure(ENOTSUP, "watch the connection to " + settings_.endpoint);
  if (auto connected = monitor_.connect(events); !connected) return connected;
  if (auto connected = sub_.connect(settings_.endpoint); !connected) return connected;
  if (settings_.replay.empty()) return {};
  auto replay = ZmqSocket::create(context, ZMQ_DEALER, "a socket to ask for batches again");
  if (!replay) return tl::unexpected(replay.error());
  replay_ = std::move(*replay);
  replay_.set64(ZMQ_MAXMSGSIZE, int64_t(kBatchBytesMax));
  return replay_.connect(settings_.replay);
}

void EngineFeed::add_to_poll(std::vector<zmq_pollitem_t>& items) {
  items.push_back({sub_.get(), 0, ZMQ_POLLIN, 0});
  items.push_back({monitor_.get(), 0, ZMQ_POLLIN, 0});
  if (replay_.is_open()) items.push_back({replay_.get(), 0, ZMQ_POLLIN, 0});
}

int EngineFeed::wait_ms() const {
  if (!replay_deadline_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*replay_deadline_ - Clock::now()).count();
  return int(std::max<int64_t>(0, left));
}

void EngineFeed::complain(const std::string& text) {
  bad_.add();
  health_.set(part_, text);
  const auto now = Clock::now();
  if (now - complained_at_ < kComplaintPause) return;
  complained_at_ = now;
  daemon::log_warning("{}: {}", part_, text);
}

// -- events of the engine ---------------------------------------------------------------------------------------------

void EngineFeed::apply_event(const RouterEvent& event, EventList& out) {
  if (event.kind == RouterEvent::Kind::kCleared) {
    contents_.remove_all(source_, out);
    return;
  }
  const uint64_t part = place_of(event.blocks);
  for (size_t i = 0; i < event.blocks.hashes.size(); ++i) {
    const ItemKey key = {source_, event.blocks.hashes[i], part};
    if (event.kind == RouterEvent::Kind::kStored)
      contents_.add(key, item_of(event.blocks, i), out);
    else
      contents_.remove(key, out);
  }
}

void EngineFeed::apply(uint64_t sequence, std::string_view payload, EventList& out) {
  last_ = sequence;
  auto batch = decode_batch(payload);
  if (!batch) {
    complain(batch.error().doing);
    lose("a batch of the engine could not be read", out);
    return;
  }
  batches_.add();
  health_.clear(part_);
  if (batch->rank) rank_ = batch->rank;
  for (const RouterEvent& event : batch->events) apply_event(event, out);
}

void EngineFeed::lose(const char* why, EventList& out) {
  losses_.add();
  daemon::log_warning("{}: {}; all that it had announced is taken back", part_, why);
  contents_.remove_all(source_, out);
}

// An engine that ends takes its blocks with it, and numbers do not tell one engine from the next. So the end of the connection
// ends all blocks that the engine had announced. Messages that wait in the socket belong to the old connection, or come again
// in the replay.
bool EngineFeed::was_disconnected() {
  Frames event;
  bool is_over = false;
  while (monitor_.receive(event, 2)) is_over = true;
  while (is_over && sub_.receive(event, 5)) continue;
  return is_over;
}

void EngineFeed::begin_anew(const char* why, EventList& out) {
  replay_deadline_.reset();
  waiting_.clear();
  waiting_bytes_ = 0;
  if (last_) lose(why, out);
  last_.reset();
  last_live_.reset();
}

// -- gaps -------------------------------------------------------------------------------------------------------------

void EngineFeed::ask_for(uint64_t sequence) {
  Frames old;
  while (replay_.receive(old, 4)) continue;  // of a replay that took too long
  asked_ = sequence;
  const std::string wanted = big_endian(sequence);
  replay_.send({std::string_view(), wanted});
  replay_deadline_ = Clock::now() + kReplayTime;
}

void EngineFeed::keep_waiting(const FeedMessage& message) {
  if (waiting_.emplace(message.sequence, message.payload).second) waiting_bytes_ += message.payload.size();
}

void EngineFeed::take(const FeedMessage& message, EventList& out) {
  // The numbers of one engine grow, so a smaller number comes from another engine.
  if (last_live_ && message.sequence <= *last_live_) begin_anew("the engine began anew", out);
  last_live_ = message.sequence;
  if (replay_deadline_) {
    keep_waiting(message);
    if (waiting_.size() > kWaitingMax || waiting_bytes_ > kWaitingBytesMax) end_replay(out);
    return;
  }
  if (last_ && message.sequence <= *last_) return;  // a replay had it
  const uint64_t expected = last_ ? *last_ + 1 : 0;
  if (message.sequence != expected) {
    if (last_) gaps_.add();
    if (replay_.is_open()) {
      keep_waiting(message);
      ask_for(expected);
      return;
    }
    if (last_) lose("the engine's feed has a gap, and the engine no replay", out);
  }
  apply(message.sequence, message.payload, out);
}

// The replayed batches and the waiting batches are one sequence, if none is missing. A batch that is missing behind the end of
// this replay is asked for in the next replay; each replay brings at least one batch more. A batch may be missing before the
// first batch when this feed began after the engine: its blocks are not announced.
void EngineFeed::end_replay(EventList& out) {
  replay_deadline_.reset();
  while (!waiting_.empty()) {
    const auto next = waiting_.begin();
    const uint64_t sequence = next->first;
    if (last_ && sequence > *last_ + 1) {
      if (replay_.is_open() && *last_ + 1 > asked_) return ask_for(*last_ + 1);
      lose("the engine does not keep what is missing any more", out);
    }
    if (!last_ || sequence > *last_) apply(sequence, next->second, out);
    waiting_bytes_ -= next->second.size();
    waiting_.erase(next);
  }
}

void EngineFeed::take_replay(EventList& out) {
  Frames frames;
  while (replay_.receive(frames, 5)) {
    if (!replay_deadline_) continue;  // of a replay that took too long
    const auto message = parse_feed_message(frames);
    if (!message) {
      complain(message.error().doing + " in a replay");
      continue;
    }
    if (message->is_end) {
      end_replay(out);
      return;
    }
    keep_waiting(*message);
    if (waiting_.size() > 2 * kWaitingMax || waiting_bytes_ > 2 * kWaitingBytesMax) end_replay(out);
  }
}

void EngineFeed::serve(EventList& out, const std::function<void()>& when_full) {
  if (was_disconnected()) begin_anew("the connection to the engine ended", out);
  if (replay_.is_open()) take_replay(out);
  Frames frames;
  for (size_t i = 0; i < kMessagesAtOnce && sub_.receive(frames, 5); ++i) {
    const auto message = parse_feed_message(frames);
    if (!message)
      complain(message.error().doing);
    else
      take(*message, out);
    if (out.bytes() >= kEventBytesMax) when_full();
  }
  if (replay_deadline_ && Clock::now() >= *replay_deadline_) {
    daemon::log_warning("{}: {} did not answer in {} ms", part_, settings_.replay, kReplayTime.count());
    end_replay(out);
  }
}

}  // namespace maru::eventd
