#include "daemon/eventd/replay_service.h"

#include "daemon/base/log.h"
#include "daemon/eventd/big_endian.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace maru::eventd {
namespace {

constexpr int64_t kRequestBytesMax = 1024;
constexpr size_t kRequestsAtOnce = 64;  // that one call takes, so that a flood of them delays no event by more
constexpr size_t kSendsAtOnce = 256;
constexpr std::chrono::seconds kComplaintPause{10};
constexpr uint64_t kEndSequence = UINT64_MAX;

}  // namespace

Result<ReplayRequest> parse_replay_request(const Frames& frames) {
  ReplayRequest request;
  request.has_delimiter = !frames.empty() && frames[0].empty();
  const size_t first = request.has_delimiter ? 1 : 0;
  if (frames.size() != first + 1)
    return failure(EBADMSG, "found a replay request of " + std::to_string(frames.size()) +
                                " frames, expected an empty one and one of 8 bytes");
  if (frames[first].size() != sizeof(uint64_t))
    return failure(EBADMSG, "found a replay request with a sequence of " + std::to_string(frames[first].size()) +
                                " bytes, expected 8, most significant first");
  request.sequence = from_big_endian(frames[first]);
  return request;
}

ReplayService::ReplayService(std::vector<std::string> topics, std::chrono::milliseconds pause,
                             daemon::beside::Counters& counters, const std::string& stream)
    : topics_(std::move(topics)),
      pause_(pause),
      stream_(stream),
      requests_(
          counters.counter("maru_eventd_replay_requests_total", "Requests for batches again.", {{"stream", stream}})),
      refused_(counters.counter("maru_eventd_replay_refused_total",
                                "Requests for batches again that made no sense, or came while too many were under way.",
                                {{"stream", stream}})),
      incomplete_(counters.counter("maru_eventd_replay_incomplete_total",
                                   "Requests for batches that were not kept any more.", {{"stream", stream}})),
      replayed_(counters.counter("maru_eventd_replayed_batches_total", "Batches that were sent again.",
                                 {{"stream", stream}})) {}

Result<std::unique_ptr<ReplayService>> ReplayService::open(const ZmqContext& context, const std::string& endpoint,
                                                           std::vector<std::string> topics,
                                                           std::chrono::milliseconds pause,
                                                           daemon::beside::Counters& counters,
                                                           const std::string& stream) {
  std::unique_ptr<ReplayService> service(new ReplayService(std::move(topics), pause, counters, stream));
  auto router = ZmqSocket::create(context, ZMQ_ROUTER, "a socket for requests");
  if (!router) return tl::unexpected(router.error());
  router->set64(ZMQ_MAXMSGSIZE, kRequestBytesMax);
  router->set(ZMQ_ROUTER_MANDATORY, 1);  // a full queue is an error instead of a loss
  router->set(ZMQ_SNDHWM, 64);
  router->set(ZMQ_RCVHWM, 64);
  if (auto bound = router->bind(endpoint); !bound) return tl::unexpected(bound.error());
  service->router_ = std::move(*router);
  return service;
}

void ReplayService::complain(const std::string& text) {
  refused_.add();
  const auto now = Clock::now();
  if (now - complained_at_ < kComplaintPause) {
    ++complaints_;
    return;
  }
  daemon::log_warning("stream \"{}\": {}; it is not answered{}", stream_, text,
                      complaints_ == 0 ? "" : fmt::format(" ({} more before)", complaints_));
  complained_at_ = now;
  complaints_ = 0;
}

void ReplayService::take(Frames& frames, const ReplayBuffer& buffer) {
  const std::string identity = std::move(frames.front());
  frames.erase(frames.begin());
  const auto request = parse_replay_request(frames);
  if (!request) {
    complain(request.error().doing);
    return;
  }
  requests_.add();
  std::erase_if(answers_, [&](const Answer& answer) { return answer.identity == identity; });
  if (answers_.size() >= kRequestsMax) {
    complain(fmt::format("found a replay request while {} are under way", answers_.size()));
    return;
  }
  Answer answer = {identity, request->has_delimiter, request->sequence, 0, false, Clock::now() + kGiveUp};
  if (request->sequence == kEndSequence || buffer.reaches_back_to(request->sequence)) {
    begin(answer, buffer);
  } else {
    incomplete_.add();
    wants_all_ = true;
    answer.waits = Clock::now() >= all_due_;
    if (!answer.waits) answer.next = kEndSequence;  // it is told with the others, when the pause is over
  }
  answers_.push_back(std::move(answer));
}

// Without its beginning an answer has blocks with unknown parents, and it moves the subscriber past the batches that are being
// published. So it has all that is needed, or nothing.
void ReplayService::begin(Answer& answer, const ReplayBuffer& buffer) {
  if (answer.next != kEndSequence && !buffer.reaches_back_to(answer.next)) {
    daemon::log_warning(
        "stream \"{}\": what is there does not fit in replay_bytes or replay_batches; subscribers that ask for it "
        "get it as it is published alone",
        stream_);
    answer.next = kEndSequence;
  }
  if (answer.next != kEndSequence) answer.next = buffer.begin_for(answer.next);
}

void ReplayService::take_requests(const ReplayBuffer& buffer) {
  Frames frames;
  for (size_t i = 0; i < kRequestsAtOnce && router_.receive(frames, 4); ++i) take(frames, buffer);
}

bool ReplayService::send(const Answer& answer, std::string_view sequence, std::string_view payload) {
  std::vector<std::string_view> frames = {answer.identity};
  if (answer.has_delimiter) frames.emplace_back();
  if (!topics_.empty()) frames.push_back(topics_[answer.topic]);
  frames.push_back(sequence);
  frames.push_back(payload);
  return router_.send(frames);
}

// False: the answer is over.
bool ReplayService::advance(Answer& answer, const ReplayBuffer& buffer) {
  for (size_t i = 0; i < kSendsAtOnce; ++i) {
    const ReplayBuffer::Batch* batch = answer.next == kEndSequence ? nullptr : buffer.from(answer.next);
    const bool is_end = batch == nullptr;
    if (!send(answer, big_endian(is_end ? kEndSequence : batch->sequence),
              is_end ? std::string_view() : std::string_view(*batch->payload)))
      return errno == EAGAIN && Clock::now() < answer.deadline;  // EHOSTUNREACH: it has left
    answer.deadline = Clock::now() + kGiveUp;
    if (is_end) return false;
    replayed_.add();
    answer.next = batch->sequence;
    if (++answer.topic < topics_.size()) continue;
    answer.topic = 0;
    ++answer.next;
  }
  return true;
}

bool ReplayService::serve(const ReplayBuffer& buffer) {
  if (is_announced_) {
    is_announced_ = wants_all_ = false;
    for (Answer& answer : answers_)
      if (std::exchange(answer.waits, false)) begin(answer, buffer);
  }
  take_requests(buffer);
  for (auto answer = answers_.begin(); answer != answers_.end();)
    answer = answer->waits || advance(*answer, buffer) ? std::next(answer) : answers_.erase(answer);
  if (!wants_all_ || Clock::now() < all_due_) return false;
  all_due_ = Clock::now() + pause_;
  return is_announced_ = true;  // by the time of the next call
}

int ReplayService::wait_ms() const {
  constexpr int kAnswersMs = 5;  // between looks at answers that a subscriber does not take
  if (!answers_.empty()) return kAnswersMs;
  if (!wants_all_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(all_due_ - Clock::now()).count();
  return int(std::max<int64_t>(0, left));
}

}  // namespace maru::eventd
