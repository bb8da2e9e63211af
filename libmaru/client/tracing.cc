#include "libmaru/client/tracing.h"

#include "libmaru/client/client.h"
#include "libmaru/client/thread_state.h"
#include "libmaru/wire/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace maru::client {
namespace {

constexpr uint32_t kSpans = 4096;
constexpr uint32_t kConnectMs = 50;  // a maru-eventd that hangs keeps the session thread no longer

uint64_t thread_number(uint64_t ring) {
  ThreadState* const state = try_thread_state();
  if (state == nullptr) return uint64_t(::syscall(SYS_gettid));
  if (state->number_of_ring != ring) {
    state->number = uint64_t(::syscall(SYS_gettid));
    state->number_of_ring = ring;
  }
  return state->number;
}

}  // namespace

TracingWish tracing_wish_of_environment() {
  const char* path = std::getenv("MARU_TRACING");
  if (path == nullptr || *path == '\0') return {};
  const char* one_in = std::getenv("MARU_TRACING_ONE_IN");
  return {path, 0, one_in != nullptr ? uint32_t(std::strtoul(one_in, nullptr, 10)) : 1};
}

// -- the ring ---------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Tracing>> Tracing::make(uint32_t spans, const std::string& pool, uint32_t lane) {
  const char* service = std::getenv("OTEL_SERVICE_NAME");
  if (service == nullptr || *service == '\0') service = program_invocation_short_name;
  auto ring = spans::make_own_ring(spans == 0 ? kSpans : spans, service, pool, lane);
  if (!ring) return tl::unexpected(ring.error());
  std::unique_ptr<Tracing> made(new Tracing);
  made->memory_ = KeptDescriptor(std::move(ring->memory));
  made->ring_ = std::move(*ring);
  return made;
}

TraceContext Tracing::make_context(uint64_t number, const TraceContext& parent) const {
  TraceContext made = parent;
  if (!parent.is_some()) {
    made.trace_high = ring_.ids.trace_high(number);
    made.trace_low = ring_.ids.trace_low(number);
    made.flags = TraceContext::kSampled;
  }
  made.span = ring_.ids.span(number);
  return made;
}

// -- maru-eventd ------------------------------------------------------------------------------------------------------

bool Tracing::set(const TracingWish& wish) {
  const std::lock_guard lock(mutex_);
  one_in_.store(wish.one_in, std::memory_order_relaxed);  // as where it is read
  if (socket_path_ != wish.socket_path) socket_.reset();
  socket_path_ = wish.socket_path;
  return connect();
}

void Tracing::upkeep() {
  const std::lock_guard lock(mutex_);
  connect();
}

bool Tracing::connect() {
  if (const int number = socket_.get(); number >= 0) {
    pollfd entry = {number, 0, 0};
    if (::poll(&entry, 1, 0) == 0) return true;
    socket_.reset();
  }
  const int memory = memory_.get();
  if (memory < 0) return false;  // the program has closed it
  auto connected = wire::connect_to(socket_path_, kConnectMs);
  if (!connected) return false;
  KeptDescriptor socket(std::move(*connected));
  if (!wire::send_packet(socket, std::as_bytes(std::span(&ring_.hello, 1)), memory, 0)) return false;
  socket_ = std::move(socket);
  return true;
}

// A call that has seen that it is traced may write until the client's end, so the ring stays.
Result<bool> Client::trace(const TracingWish& wish) {
  const std::lock_guard lock(tracing_mutex_);
  if (!kept_tracing_) {
    auto made = Tracing::make(wish.spans, connection_.pool(), attached_.lane);
    if (!made) return tl::unexpected(made.error());
    kept_tracing_ = std::move(*made);
  }
  const bool is_taken = kept_tracing_->set(wish);
  tracing_.store(kept_tracing_.get(), std::memory_order_release);
  return is_taken;
}

// -- spans ------------------------------------------------------------------------------------------------------------

format::Span OpenSpan::ended(format::SpanOperation operation, int result) const {
  format::Span span = {};
  span.trace_high = context.trace_high;
  span.trace_low = context.trace_low;
  span.id = context.span;
  span.parent = parent;
  span.begun_ns = begun_ns;
  span.ended_ns = std::max(begun_ns, unix_ns());  // the clock may be set back
  span.operation = operation;
  span.flags = context.flags;
  span.result = result;
  span.thread = thread_number(tracing->ring());
  return span;
}

void CallSpan::begin(const Client& client, Tracing& tracing) {
  if (client.is_child()) return;
  ThreadState* state = try_thread_state();
  const TraceContext none;
  const TraceContext& above = state == nullptr ? none : state->span != nullptr ? state->span->context : state->request;
  if (above.is_some() ? !above.is_sampled() : !tracing.takes_request()) return;
  const uint64_t number = tracing.take_number();
  span_ = {&tracing, tracing.make_context(number, above), above.span, unix_ns()};
  if (state == nullptr) return;
  outer_ = state->span;
  state->span = &span_;
}

CallSpan::~CallSpan() {
  if (span_.tracing == nullptr) return;
  if (ThreadState* state = thread_state_if_any(); state != nullptr && state->span == &span_) state->span = outer_;
}

void CallSpan::end(format::SpanOperation operation, int result, uint64_t keys, uint64_t bytes, CountedBlocks blocks) {
  if (span_.tracing == nullptr) return;
  format::Span span = span_.ended(operation, result);
  span.keys = keys;
  span.bytes = bytes;
  if (result >= 0) span.blocks = blocks.of(result);
  span_.tracing->write(span);
}

RentSpan::RentSpan() {
  const ThreadState* state = thread_state_if_any();
  if (state == nullptr || state->span == nullptr) return;
  const OpenSpan& above = *state->span;
  const uint64_t number = above.tracing->take_number();
  span_ = {above.tracing, above.tracing->make_context(number, above.context), above.context.span, unix_ns()};
}

int RentSpan::end(int result, uint64_t runs) const {
  if (!is_some()) return result;
  Tracing& tracing = *span_.tracing;
  format::Span rent = span_.ended(format::SpanOperation::kRent, result);
  rent.keys = runs;
  if (times_) {
    const TraceContext context = tracing.make_context(tracing.take_number(), span_.context);
    format::Span serve = rent;
    serve.operation = format::SpanOperation::kServe;
    serve.id = context.span;
    serve.parent = rent.id;
    serve.begun_ns = times_->came_ns;
    serve.ended_ns = std::max(times_->came_ns, times_->answered_ns);
    serve.turns = times_->turns;
    serve.thread = 0;
    if (evicted_ != 0 && times_->chose_from_ns != 0) {
      format::Span evict = serve;
      evict.operation = format::SpanOperation::kEvict;
      evict.id = tracing.make_context(tracing.take_number(), context).span;
      evict.parent = serve.id;
      evict.begun_ns = times_->chose_from_ns;
      evict.ended_ns = std::max(times_->chose_from_ns, times_->chose_to_ns);
      evict.blocks = evicted_;
      tracing.write(evict);
    }
    tracing.write(serve);
  }
  tracing.write(rent);
  return result;
}

}  // namespace maru::client
