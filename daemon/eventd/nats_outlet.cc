#include "daemon/eventd/nats_outlet.h"

#include "daemon/base/log.h"
#include "daemon/eventd/nats_format.h"
#include "daemon/eventd/token_metadata.h"

#include <algorithm>
#include <ctime>

namespace maru::eventd {
namespace {

constexpr int kLookMs = 1000;                 // at a server that refuses
constexpr size_t kBlockBytes = 150;           // of a block in a message, at most, without its texts
constexpr size_t kMessageBytes = 256u << 10;  // after which a message ends
// One event is never divided.
static_assert(EventList::kHashesMax * (kBlockBytes + 2 * TokenMetadata::kTextMax) < 1u << 20);

uint64_t unix_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1'000'000;
}

}  // namespace

NatsOutlet::NatsOutlet(const NatsSettings& settings, Sequence sequence, std::unique_ptr<NatsLink> link,
                       daemon::beside::Counters& counters, daemon::beside::Health& health)
    : settings_(settings),
      part_("stream " + settings.name + ", NATS"),
      sequence_(std::move(sequence)),
      next_event_id_(sequence_.last() + 1),
      link_(std::move(link)),
      health_(health),
      batches_(
          counters.counter("maru_eventd_batches_total", "Batches that were published.", {{"stream", settings.name}})),
      events_(counters.counter("maru_eventd_events_total", "Events in the batches.", {{"stream", settings.name}})),
      bytes_(counters.counter("maru_eventd_bytes_total", "Bytes of the batches.", {{"stream", settings.name}})),
      dropped_(counters.counter("maru_eventd_dropped_total",
                                "Batches that found no room while a NATS server was away, or that it did not keep.",
                                {{"stream", settings.name}})),
      left_out_(counters.counter("maru_eventd_left_out_total", "Blocks that the format of the stream has no place for.",
                                 {{"stream", settings.name}})) {}

Result<std::unique_ptr<NatsOutlet>> NatsOutlet::open(const NatsSettings& settings, const std::string& sequence_path,
                                                     daemon::beside::Counters& counters,
                                                     daemon::beside::Health& health) {
  auto sequence = Sequence::begin(sequence_path, unix_ms());
  if (!sequence) return tl::unexpected(sequence.error());
  auto link = NatsLink::open(settings);
  if (!link) return tl::unexpected(link.error());
  return std::unique_ptr<NatsOutlet>(
      new NatsOutlet(settings, std::move(*sequence), std::move(*link), counters, health));
}

std::string NatsOutlet::encode(uint64_t sequence, const EventList& events) {
  if (settings_.format == NatsSettings::Format::kMaru)
    return encode_pool_message({settings_.name, sequence, unix_ms()}, events);
  uint64_t left_out = 0;
  std::string message = encode_dynamo_message(
      {settings_.publisher_id, settings_.worker_id, sequence, unix_ms(), settings_.rank, &next_event_id_}, events,
      left_out);
  left_out_.add(left_out);
  return message;
}

// A server takes messages of up to 1 MiB, unless it is told otherwise. Blocks take another room here than in the stream's own
// account of its batches.
void NatsOutlet::publish(const EventList& events) {
  EventList part;
  size_t part_bytes = 0;
  for (const RouterEvent& event : events.events()) {
    const size_t each = kBlockBytes + event.blocks.lora_name.size() + event.blocks.cache_salt.size();
    const size_t bytes = std::max<size_t>(1, event.blocks.hashes.size()) * each;
    if (!part.empty() && part_bytes + bytes > kMessageBytes) {
      publish_message(part);
      part.clear();
      part_bytes = 0;
    }
    part.append(event);
    part_bytes += bytes;
  }
  if (!part.empty()) publish_message(part);
}

void NatsOutlet::publish_message(const EventList& events) {
  const uint64_t sequence = sequence_.next();
  const std::string message = encode(sequence, events);
  if (message.empty()) return;
  if (!link_->publish(message, settings_.name + "-" + std::to_string(sequence))) {
    dropped_.add();
    lost_some_ = true;
    return;
  }
  batches_.add();
  events_.add(events.events().size());
  bytes_.add(message.size());
}

void NatsOutlet::add_to_poll(std::vector<zmq_pollitem_t>& items) {
  items.push_back({nullptr, link_->fd(), ZMQ_POLLIN, 0});
}

bool NatsOutlet::serve() {
  const NatsLink::State state = link_->look();
  if (!state.trouble.empty()) {
    if (health_.set(part_, state.trouble)) daemon::log_warning("{}: {}", part_, state.trouble);
  } else if (health_.clear(part_)) {
    daemon::log_info("{}: the server is there", part_);
  }
  if (state.not_kept > 0) {
    dropped_.add(state.not_kept);
    lost_some_ = true;
  }
  was_asked_ |= state.was_asked;
  const auto now = Clock::now();
  const bool is_back = state.is_connected && state.came_back;
  const bool is_due = state.is_connected && (lost_some_ || was_asked_) && now >= all_due_;
  if (!is_back && !is_due) return false;
  lost_some_ = was_asked_ = false;
  all_due_ = now + std::chrono::milliseconds(settings_.snapshot_pause_ms);
  return true;
}

int NatsOutlet::wait_ms() {
  if (!lost_some_ && !was_asked_) return kLookMs;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(all_due_ - Clock::now()).count();
  return int(std::clamp<int64_t>(left, 10, kLookMs));
}

}  // namespace maru::eventd
