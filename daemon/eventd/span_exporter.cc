#include "daemon/eventd/span_exporter.h"

#include "daemon/base/log.h"
#include "daemon/base/plain_text.h"
#include "daemon/eventd/otlp.h"

#include <algorithm>
#include <climits>
#include <pthread.h>
#include <unistd.h>

namespace maru::eventd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPauseMin{500}, kPauseMax{30'000};
constexpr milliseconds kLastWords{2000};
constexpr milliseconds kTurn{1000};
constexpr const char* kPart = "traces";

// As OTLP says: the collector may take the same request later.
bool may_try_again(int status) {
  return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof(name) - 1);
  return daemon::plain_text(name);
}

std::string trouble_of(const HttpPost::Answer& answer) {
  constexpr size_t kTextMax = 200;
  if (answer.status == 0) return daemon::plain_text(answer.trouble, kTextMax);
  const std::string body = daemon::plain_text(answer.body, kTextMax);
  return "it answered " + std::to_string(answer.status) + (body.empty() ? "" : ": " + body);
}

}  // namespace

Result<std::unique_ptr<SpanExporter>> SpanExporter::open(const TraceSettings& settings,
                                                         daemon::beside::Counters& counters,
                                                         daemon::beside::Health& health) {
  auto post = HttpPost::open({settings.endpoint, settings.headers, settings.timeout_ms});
  if (!post) return tl::unexpected(post.error());
  auto intake = SpanIntake::open(settings, counters);
  if (!intake) return tl::unexpected(intake.error());
  return std::unique_ptr<SpanExporter>(
      new SpanExporter(settings, std::move(*intake), std::move(*post), counters, health));
}

SpanExporter::SpanExporter(const TraceSettings& settings, std::unique_ptr<SpanIntake> intake,
                           std::unique_ptr<HttpPost> post, daemon::beside::Counters& counters,
                           daemon::beside::Health& health)
    : settings_(settings),
      intake_(std::move(intake)),
      post_(std::move(post)),
      health_(health),
      exported_(counters.counter("maru_eventd_spans_total", "Spans that the collector took.")),
      rejected_(counters.counter("maru_eventd_spans_rejected_total", "Spans that the collector refused.")),
      dropped_(counters.counter("maru_eventd_spans_dropped_total",
                                "Spans that were given up, because the collector was away for too long.")),
      requests_(counters.counter("maru_eventd_span_requests_total", "Requests to the collector, each try.")),
      failures_(counters.counter("maru_eventd_span_failures_total", "Of them, those that the collector did not take.")),
      durations_(counters.durations("maru_eventd_span_request_seconds", "How long requests to the collector took.")),
      host_(host_name()),
      pause_(kPauseMin) {}

SpanExporter::~SpanExporter() {
  is_stopping_.store(true, std::memory_order_relaxed);  // the wake is a system call, which the thread waits in
  post_->wake();
  if (thread_.joinable()) thread_.join();
}

void SpanExporter::run() {
  ::pthread_setname_np(::pthread_self(), "spans");
  while (!is_stopping_.load(std::memory_order_relaxed)) {  // as above
    turn(Clock::now() + kTurn);
    turns_.fetch_add(1, std::memory_order_relaxed);
  }
  // Clients go on writing spans, which the next maru-eventd reads.
  const auto end = Clock::now() + kLastWords;
  drain_at_ = {};
  do {
    turn(end);
  } while ((!request_.empty() || drain_at_ <= Clock::now()) && Clock::now() < end);
}

// Waits until `until` at the longest, and does the work that is due then.
void SpanExporter::turn(Clock::time_point until) {
  auto now = Clock::now();
  if (request_.empty() && now >= drain_at_) drain(now);
  if (!request_.empty() && !post_->is_busy() && now >= send_at_) send(now);
  const auto due = request_.empty() ? drain_at_ : post_->is_busy() ? until : send_at_;
  const auto left = std::chrono::ceil<milliseconds>(std::min(due, until) - now);
  std::vector<int> descriptors;
  intake_->add_to_poll(descriptors);
  post_->wait(descriptors, int(std::max<int64_t>(0, left.count())));
  intake_->serve();
  now = Clock::now();
  if (const auto answer = post_->take_answer()) take(*answer, now);
}

void SpanExporter::drain(Clock::time_point now) {
  const SpanBatch batch = intake_->drain(settings_.batch_spans, now);
  // A full batch may have left some, which are overwritten meanwhile.
  drain_at_ = batch.spans < settings_.batch_spans ? now + milliseconds(settings_.batch_ms) : now;
  if (batch.spans == 0) return;
  request_ = encode_traces(batch, host_);
  request_spans_ = batch.spans;
  first_sent_ = send_at_ = now;
}

void SpanExporter::send(Clock::time_point now) {
  requests_.add();
  sent_ = now;
  post_->begin(request_);
}

void SpanExporter::done(daemon::beside::Sample& as) {
  intake_->note_taken();
  as.add(request_spans_);
  request_.clear();
  request_.shrink_to_fit();
  request_spans_ = 0;
}

void SpanExporter::take(const HttpPost::Answer& answer, Clock::time_point now) {
  durations_.add(std::chrono::duration<double>(now - sent_).count());
  if (answer.status >= 200 && answer.status < 300) {
    const PartialSuccess partial = decode_export_response(answer.body);
    const uint64_t rejected = std::min(partial.rejected, request_spans_);
    rejected_.add(rejected);
    request_spans_ -= rejected;
    done(exported_);
    pause_ = kPauseMin;
    const bool was_away = health_.clear(kPart);
    if (was_away) daemon::log_info("traces: {} takes spans again", settings_.endpoint);
    if (rejected != 0) daemon::log_warning("traces: the collector refused {} spans: {}", rejected, partial.message);
    return;
  }
  failures_.add();
  const std::string trouble = settings_.endpoint + " does not take spans: " + trouble_of(answer);
  if (!may_try_again(answer.status)) {
    const std::string advice = trouble + "; see traces.endpoint and traces.headers in the configuration";
    if (health_.set(kPart, advice)) daemon::log_warning("traces: {}", advice);
    done(rejected_);
    return;
  }
  if (health_.set(kPart, trouble)) daemon::log_warning("traces: {}; they are sent again", trouble);
  if (now - first_sent_ > std::chrono::seconds(settings_.retry_s)) {
    daemon::log_warning("traces: {} spans are given up after {} s", request_spans_, settings_.retry_s);
    done(dropped_);
    drain_at_ = now + pause_;  // the next request goes on with the pauses
    return;
  }
  const milliseconds asked(std::min<uint64_t>(answer.retry_after_s * 1000, uint64_t(kPauseMax.count())));
  send_at_ = now + std::max(pause_, asked);
  pause_ = std::min(2 * pause_, kPauseMax);
}

}  // namespace maru::eventd
