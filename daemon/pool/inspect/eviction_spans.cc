#include "daemon/pool/inspect/eviction_spans.h"

#include "daemon/base/log.h"
#include "libmaru/wire/socket.h"

#include <algorithm>
#include <poll.h>

namespace maru::daemon {
namespace {

using format::SpanReason;

constexpr uint32_t kSpans = 1024;
constexpr uint64_t kSpanNsMax = 1'000'000'000;
constexpr uint64_t kConnectPauseMs = 1000;
constexpr uint32_t kConnectMs = 1000;  // that a thread waits
constexpr uint8_t kSampled = 1;

struct Traced {
  EvictReason reason;
  SpanReason as;
};
constexpr Traced kTraced[] = {{EvictReason::kBackground, SpanReason::kBackground},
                              {EvictReason::kExpired, SpanReason::kExpired},
                              {EvictReason::kAdmin, SpanReason::kAdmin}};

bool has_ended(int connection) {
  pollfd entry = {connection, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

EvictionSpans::~EvictionSpans() {
  for (size_t i = 0; i < kReasons; ++i)
    if (open_[i].turns != 0) write(i);
}

void EvictionSpans::begin() {
  if (core_.config.tracing_socket.empty()) return;
  auto made = spans::make_own_ring(kSpans, "marud", core_.config.name, 0);
  if (made)
    ring_ = std::make_shared<spans::OwnRing>(std::move(*made));
  else
    log_warning("pool \"{}\": cannot {}; its evictions are not traced", core_.config.name, made.error().text());
}

std::array<EvictionSpans::Counts, EvictionSpans::kReasons> EvictionSpans::counts() const {
  static_assert(std::size(kTraced) == kReasons);
  std::array<Counts, kReasons> now;
  for (size_t i = 0; i < kReasons; ++i) {
    const auto reason = size_t(kTraced[i].reason);
    now[i] = {core_.totals.evicted_blocks[reason], core_.totals.evicted_pages[reason]};
  }
  return now;
}

void EvictionSpans::note_turn() {
  if (auto connected = connecting_.take(); connected && *connected) connection_ = std::move(**connected);
  if (core_.now_ms >= connect_again_ms_ || core_.now_ms + kConnectPauseMs < connect_again_ms_) keep_connected();
  turn_begun_ns_ = spans::unix_ns();
  before_ = counts();
}

void EvictionSpans::look_at_turn(bool has_more) {
  const std::array<Counts, kReasons> now = counts();
  for (size_t i = 0; i < kReasons; ++i) {
    Open& open = open_[i];
    if (now[i].blocks != before_[i].blocks) {
      if (open.turns == 0) open = {turn_begun_ns_, 0, 0, {}};
      open.ended_ns = std::max(open.begun_ns, spans::unix_ns());  // the clock may be set back
      ++open.turns;
      open.went.blocks += now[i].blocks - before_[i].blocks;
      open.went.pages += now[i].pages - before_[i].pages;
    }
    if (open.turns != 0 && (!has_more || open.ended_ns - open.begun_ns >= kSpanNsMax)) write(i);
  }
}

void EvictionSpans::write(size_t which) {
  const Open& open = open_[which];
  const uint64_t number = number_++;
  format::Span span = {};
  span.trace_high = ring_->ids.trace_high(number);
  span.trace_low = ring_->ids.trace_low(number);
  span.id = ring_->ids.span(number);
  span.begun_ns = open.begun_ns;
  span.ended_ns = open.ended_ns;
  span.operation = format::SpanOperation::kEvict;
  span.flags = kSampled;
  span.reason = kTraced[which].as;
  span.blocks = open.went.blocks;
  span.pages = open.went.pages;
  span.turns = open.turns;
  spans::write_span(ring_->view, span);
  open_[which] = {};
}

// A thread connects: the path is an administrator's, on any file system.
void EvictionSpans::keep_connected() {
  connect_again_ms_ = core_.now_ms + kConnectPauseMs;
  if (connecting_.is_lasting()) return;
  if (connection_.is_open() && !has_ended(connection_.get())) return;
  connection_.reset();
  connecting_.begin(
      [path = core_.config.tracing_socket, ring = ring_]() -> std::optional<FileDescriptor> {
        auto connected = wire::connect_to(path, kConnectMs);
        if (!connected) return std::nullopt;
        const auto greeting = std::as_bytes(std::span(&ring->hello, 1));
        if (!wire::send_packet(connected->get(), greeting, ring->memory.get(), 0)) return std::nullopt;
        return std::move(*connected);
      },
      std::nullopt);
}

}  // namespace maru::daemon
