#include "daemon/eventd/zeromq_outlet.h"

#include "daemon/base/log.h"
#include "daemon/eventd/big_endian.h"
#include "daemon/eventd/vllm_batch.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace maru::eventd {
namespace {

// How long a batch waits for a subscriber whose queue is full, before the subscriber loses it. A subscriber that stands still
// costs the others this once: from then on libzmq passes it over, until it reads again.
constexpr int kPatienceMs = 100;

double seconds_now() {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return double(now.tv_sec) + double(now.tv_nsec) / 1e9;
}

}  // namespace

ZeromqOutlet::ZeromqOutlet(const ZeromqSettings& settings, Sequence sequence, daemon::beside::Counters& counters)
    : settings_(settings),
      sequence_(std::move(sequence)),
      rank_(settings.rank),
      buffer_(settings.replay_batches, settings.replay_bytes),
      batches_(
          counters.counter("maru_eventd_batches_total", "Batches that were published.", {{"stream", settings.name}})),
      events_(counters.counter("maru_eventd_events_total", "Events in the batches.", {{"stream", settings.name}})),
      bytes_(counters.counter("maru_eventd_bytes_total", "Bytes of the batches.", {{"stream", settings.name}})),
      stalls_(
          counters.counter("maru_eventd_stalls_total",
                           "Times that the queue of a subscriber was full, which loses batches from then on until it "
                           "reads again.",
                           {{"stream", settings.name}})),
      buffered_bytes_(counters.gauge("maru_eventd_replay_bytes", "Bytes of the batches that are kept for replay.",
                                     {{"stream", settings.name}})) {}

Result<std::unique_ptr<ZeromqOutlet>> ZeromqOutlet::open(const ZmqContext& context, const ZeromqSettings& settings,
                                                         const std::string& sequence_path,
                                                         daemon::beside::Counters& counters) {
  auto sequence = Sequence::begin(sequence_path, uint64_t(seconds_now() * 1000));
  if (!sequence) return tl::unexpected(sequence.error());
  std::unique_ptr<ZeromqOutlet> outlet(new ZeromqOutlet(settings, std::move(*sequence), counters));
  if (auto opened = outlet->open_sockets(context); !opened) return tl::unexpected(opened.error());
  const std::chrono::milliseconds pause(settings.snapshot_pause_ms);
  for (const auto& [endpoint, topics] : {std::pair(settings.replay, settings.topics),
                                         std::pair(settings.replay_without_topic, std::vector<std::string>())}) {
    if (endpoint.empty()) continue;
    auto service = ReplayService::open(context, endpoint, topics, pause, counters, settings.name);
    if (!service) return tl::unexpected(service.error());
    outlet->replays_.push_back(std::move(*service));
  }
  return outlet;
}

Result<void> ZeromqOutlet::open_sockets(const ZmqContext& context) {
  auto pub = ZmqSocket::create(context, ZMQ_XPUB, "a socket to publish at");
  if (!pub) return tl::unexpected(pub.error());
  pub->set(ZMQ_SNDHWM, int(settings_.hwm));
  pub->set(ZMQ_SNDTIMEO, kPatienceMs);
  pub->set(ZMQ_XPUB_NODROP, 1);
  pub->set(ZMQ_XPUB_VERBOSE, 1);     // each subscription comes here, also to a topic that another has
  pub->set64(ZMQ_MAXMSGSIZE, 4096);  // of subscriptions, which are all that comes
  auto opened = settings_.connects ? pub->connect(settings_.endpoint) : pub->bind(settings_.endpoint);
  if (!opened) return opened;
  pub_ = std::move(*pub);
  return {};
}

std::string ZeromqOutlet::replay_endpoint() const { return replays_.empty() ? "" : replays_.front()->endpoint(); }

void ZeromqOutlet::send(std::string_view topic, std::string_view sequence, const std::string& payload) {
  const std::vector<std::string_view> frames = {topic, sequence, payload};
  if (pub_.send(frames, true)) return;
  // Subscribers whose queue has room get it; the others lose it.
  stalls_.add();
  pub_.set(ZMQ_XPUB_NODROP, 0);
  pub_.send(frames);
  pub_.set(ZMQ_XPUB_NODROP, 1);
}

void ZeromqOutlet::publish(const EventList& events) {
  const uint64_t sequence = sequence_.next();
  auto payload = std::make_shared<const std::string>(encode_batch(seconds_now(), events, rank_));
  for (const std::string& topic : settings_.topics) send(topic, big_endian(sequence), *payload);
  batches_.add();
  events_.add(events.events().size());
  bytes_.add(payload->size());
  const bool begins = !events.empty() && events.events().front().kind == RouterEvent::Kind::kCleared;
  buffer_.push(sequence, std::move(payload), begins);
  buffered_bytes_.set(buffer_.bytes());
  heartbeat_due_ = Clock::now() + std::chrono::milliseconds(settings_.heartbeat_ms);
}

void ZeromqOutlet::add_to_poll(std::vector<zmq_pollitem_t>& items) {
  items.push_back({pub_.get(), 0, ZMQ_POLLIN, 0});
  for (const auto& replay : replays_) items.push_back({replay->socket(), 0, ZMQ_POLLIN, 0});
}

// A subscriber that is new has nothing. Where it can ask for batches again, the next one tells it that it lacks some; otherwise
// everything is announced again.
bool ZeromqOutlet::welcome() {
  Frames subscription;
  bool is_somebody_new = false;
  while (pub_.receive(subscription, 1)) is_somebody_new |= !subscription[0].empty() && subscription[0][0] == 1;
  const auto now = Clock::now();
  if (is_somebody_new && replays_.empty()) owes_all_ = true;
  if (is_somebody_new || (settings_.heartbeat_ms > 0 && now >= heartbeat_due_)) publish({});
  if (!owes_all_ || now < all_due_) return false;
  owes_all_ = false;
  all_due_ = now + std::chrono::milliseconds(settings_.snapshot_pause_ms);
  return true;
}

bool ZeromqOutlet::serve() {
  bool wants_all = welcome();
  for (const auto& replay : replays_) wants_all |= replay->serve(buffer_);
  return wants_all;
}

int ZeromqOutlet::wait_ms() {
  const auto until = [now = Clock::now()](Clock::time_point due) {
    return std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(due - now).count());
  };
  int64_t wait_ms = settings_.heartbeat_ms > 0 ? until(heartbeat_due_) : 3'600'000;
  if (owes_all_) wait_ms = std::min(wait_ms, until(all_due_));
  for (const auto& replay : replays_)
    if (const int wanted_ms = replay->wait_ms(); wanted_ms >= 0) wait_ms = std::min<int64_t>(wait_ms, wanted_ms);
  return int(wait_ms);
}

}  // namespace maru::eventd
