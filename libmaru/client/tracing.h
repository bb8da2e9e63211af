// The spans of one client: its ring (libmaru/spans/ring.h), and the connection by which maru-eventd has it.
//
//   (1) A call writes into the ring, and does nothing else for a reader: no message, no wait, no system call but the clock's.
//   (2) The ring lasts as long as the client: a thread in the middle of a call may write into it after tracing has ended.
//
// Thread safety: set(), upkeep() one after the other, by a lock; the rest any. In a child of fork() the ring is not mapped, and
// the caller sees to it that nothing here is called.
//
// When the client dies, maru-eventd reads its spans to the end, since it has the memory; a span in the making is lost. When
// maru-eventd dies, its connection ends: the session thread makes a new connection, and the ring says where to go on.
#pragma once

#include "libmaru/base/kept_descriptor.h"
#include "libmaru/base/result.h"
#include "libmaru/client/trace_context.h"
#include "libmaru/spans/own_ring.h"
#include "maru/format/wire.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

struct maru_client;

namespace maru::client {

class Client;

struct TracingWish {
  std::string socket_path;
  uint32_t spans = 0;
  uint32_t one_in = 0;
};
// The environment's wish; an empty path: none.
TracingWish tracing_wish_of_environment();

class Tracing {
 public:
  static constexpr const char* kDefaultPath = "/run/maru-eventd/spans.sock";

  // For the client with this lane. Errors: EMFILE, ENOSYS, the errors of memfd_create(2) and mmap(2).
  static Result<std::unique_ptr<Tracing>> make(uint32_t spans, const std::string& pool, uint32_t lane);

  // Returns whether maru-eventd has the ring.
  bool set(const TracingWish& wish);
  // Connects again if the connection is lost.
  void upkeep();

  // A number that this ring gives out once.
  uint64_t take_number() { return numbers_.fetch_add(1, std::memory_order_relaxed); }  // any order will do
  // Whether the next request that begins here is traced: each so many-th one is.
  bool takes_request() {
    const uint32_t one_in = one_in_.load(std::memory_order_relaxed);  // a wish, in force a moment later
    return one_in != 0 && begun_here_.fetch_add(1, std::memory_order_relaxed) % one_in == 0;  // any order will do
  }
  // The context of a new span. `parent`: none for a request that begins here.
  TraceContext make_context(uint64_t number, const TraceContext& parent) const;
  uint64_t ring() const { return ring_.ids.span(0); }  // a number that no other ring has
  void write(const format::Span& span) const { spans::write_span(ring_.view, span); }

 private:
  Tracing() = default;
  bool connect();

  spans::OwnRing ring_;  // without its descriptor
  std::atomic<uint64_t> numbers_{0}, begun_here_{0};
  std::atomic<uint32_t> one_in_{0};

  std::mutex mutex_;
  KeptDescriptor memory_, socket_;
  std::string socket_path_;
};

using spans::unix_ns;

// A span that has begun.
struct OpenSpan {
  Tracing* tracing = nullptr;  // null: it is none
  TraceContext context;        // its own
  uint64_t parent = 0;
  uint64_t begun_ns = 0;

  format::Span ended(format::SpanOperation operation, int result) const;
};

// Where the span of a call finds how many blocks the call found, stored or deleted.
struct CountedBlocks {
  enum class In { kResult, kZeroResult, kPlace };  // kZeroResult: the call is for one key, and 0 says that it did
  In in = In::kResult;
  const uint64_t* place = nullptr;

  uint64_t of(int result) const {  // at least 0
    return in == In::kPlace ? *place : in == In::kResult ? uint64_t(result) : uint64_t(result == 0);
  }
};

// The span of a call of this thread, of a client that is traced. Calls and requests to marud inside of it are below it.
class CallSpan {
 public:
  CallSpan() = default;
  ~CallSpan();  // also when the thread is cancelled in the middle of the call
  CallSpan(const CallSpan&) = delete;
  CallSpan& operator=(const CallSpan&) = delete;

  // Does nothing for a request that is not traced, and in a child of fork().
  void begin(const Client& client, Tracing& tracing);
  void end(format::SpanOperation operation, int result, uint64_t keys, uint64_t bytes, CountedBlocks blocks);

 private:
  OpenSpan span_;
  const OpenSpan* outer_ = nullptr;
};

// The span of a request to marud for memory, below this thread's call that needs it; and marud's own span, whose times come
// with its answer.
class RentSpan {
 public:
  RentSpan();
  bool is_some() const { return span_.tracing != nullptr; }
  void marud_says(const std::optional<wire::RentTimes>& times, uint64_t evicted) { times_ = times, evicted_ = evicted; }
  int end(int result, uint64_t runs) const;  // the result

 private:
  OpenSpan span_;
  std::optional<wire::RentTimes> times_;
  uint64_t evicted_ = 0;
};

}  // namespace maru::client
