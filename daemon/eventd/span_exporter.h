// Reads the spans of clients, and sends them to a collector by OTLP over HTTP.
//
// It has one request at most. While the collector does not take this request, no spans are read. They wait in the rings of the
// clients, which overwrite the oldest spans, and this program's memory stays as it is. Each loss is counted.
//
// While the collector is away or asks for it, the request is sent again, with longer and longer pauses, for `retry_s` at most.
// A request that the collector refuses is dropped. The exporter notes in the rings which spans the collector has taken. So a
// new maru-eventd repeats at most one request of the earlier maru-eventd.
//
// Thread safety: a thread of its own.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/eventd/http_post.h"
#include "daemon/eventd/settings.h"
#include "daemon/eventd/span_intake.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace maru::eventd {

class SpanExporter {
 public:
  // Errors: of SpanIntake::open and HttpPost::open.
  static Result<std::unique_ptr<SpanExporter>> open(const TraceSettings& settings, daemon::beside::Counters& counters,
                                                    daemon::beside::Health& health);
  ~SpanExporter();  // sends the remaining spans, for a second or two
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  // Turns of the thread so far.
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  SpanExporter(const TraceSettings& settings, std::unique_ptr<SpanIntake> intake, std::unique_ptr<HttpPost> post,
               daemon::beside::Counters& counters, daemon::beside::Health& health);
  void run();
  void turn(Clock::time_point until);
  void drain(Clock::time_point now);
  void send(Clock::time_point now);
  void take(const HttpPost::Answer& answer, Clock::time_point now);
  void done(daemon::beside::Sample& as);

  const TraceSettings settings_;
  std::unique_ptr<SpanIntake> intake_;
  std::unique_ptr<HttpPost> post_;
  daemon::beside::Health& health_;
  daemon::beside::Sample &exported_, &rejected_, &dropped_, &requests_, &failures_;
  daemon::beside::Durations& durations_;
  std::string host_;

  std::string request_;  // that is under way, or waits for its next try; empty: none
  uint64_t request_spans_ = 0;
  Clock::time_point first_sent_{}, sent_{}, send_at_{};
  std::chrono::milliseconds pause_;  // before the next try
  Clock::time_point drain_at_{};

  std::atomic<uint64_t> turns_{0};
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace maru::eventd
