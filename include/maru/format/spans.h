// Spans of calls: the time of each call of a client, and the request that it was part of. docs/tracing.md is the description.
//
// Each client that is traced has a ring in memory of its own, a memfd that cannot shrink. It gives the descriptor to
// maru-eventd, which reads the ring. The client never waits for the reader: it overwrites the oldest spans. marud has such a
// ring for each pool, and is a client to maru-eventd.
//
//   SpanRingHeader | slots
//
// A client reads one word of a slot, to leave alone a slot that another thread is writing. So a hostile reader that writes here
// costs the client spans and nothing else.
#pragma once

#include "maru/format/atomic_word.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace maru::format {

inline constexpr uint64_t kSpanRingMagic = 0x4e4150535552414d;  // "MARUSPAN" when read as bytes
inline constexpr uint32_t kSpanRingVersion = 1;                 // another version is another layout: refused
inline constexpr uint32_t kSpanSlotsMin = 64, kSpanSlotsMax = 1u << 16;

enum class SpanOperation : uint8_t {
  kRequest = 1,  // a request's whole way, as the program says
  kAlloc,
  kStore,
  kMatch,
  kRetrieve,
  kDelete,
  kRent,   // a request to marud for memory, inside of an alloc or a store
  kServe,  // marud's part of that
  kEvict,  // and the part of it in which marud evicted blocks; or, in marud's own ring, evictions without a request
  kExists
};
inline constexpr uint8_t kSpanOperations = 11;

// Of evictions without a request.
enum class SpanReason : uint8_t { kNone, kBackground, kExpired, kAdmin };

struct Span {
  uint64_t trace_high, trace_low;  // as the traceparent has them: most significant digits first
  uint64_t id;                     // never 0
  uint64_t parent;                 // 0: a root
  uint64_t begun_ns, ended_ns;     // of the Unix clock
  SpanOperation operation;
  uint8_t flags;  // of the traceparent
  SpanReason reason;
  uint8_t reserved0;
  int32_t result;   // of the call; below 0: -errno
  uint64_t thread;  // the kernel's number
  uint64_t keys;    // of the call
  uint64_t bytes;   // that are stored or allocated
  uint64_t blocks;  // matched, found, stored, or evicted
  uint64_t turns;   // of kServe: how often marud's loop came round meanwhile; of evictions without a request: with one
  uint64_t pages;   // of evictions without a request: that became free
  uint64_t reserved1[2];
};
inline constexpr size_t kSpanWords = sizeof(Span) / sizeof(uint64_t);
static_assert(sizeof(Span) == 120 && std::has_unique_object_representations_v<Span>);

struct alignas(128) SpanSlot {
  AtomicU64 state;  // number of the span + 1; kSpanIsWritten beside it: a thread is writing it. 0: never used
  AtomicU64 words[kSpanWords];
};
static_assert(sizeof(SpanSlot) == 128);
inline constexpr uint64_t kSpanIsWritten = 1ull << 63;

struct alignas(128) SpanRingHeader {
  // never changes
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;  // 4096: where the slots begin
  uint32_t slots;         // a power of two
  uint32_t slot_bytes;    // 128
  uint64_t reserved0[13];
  // the client's
  AtomicU64 written;  // spans that were numbered: the next number
  uint64_t reserved1[15];
  // maru-eventd's, for the next maru-eventd
  AtomicU64 taken;  // spans up to this number were exported, or were lost
  uint64_t reserved2[15];
};
inline constexpr uint32_t kSpanHeaderBytes = 4096;
static_assert(sizeof(SpanRingHeader) == 384);

constexpr uint64_t span_ring_bytes(uint32_t slots) { return kSpanHeaderBytes + uint64_t(slots) * sizeof(SpanSlot); }

// The one message from a client to maru-eventd, with the descriptor of its ring, over SOCK_SEQPACKET. There is no answer: the
// connection ends when maru-eventd refuses the client. It also ends with the client; then maru-eventd reads the last spans.
struct SpanHello {
  uint64_t magic;    // kSpanRingMagic
  uint32_t version;  // kSpanRingVersion
  uint32_t lane;     // of the client; of marud 0
  uint64_t process;  // its number, as the client knows it
  char pool[64];     // texts are padded with zeros, one at least
  char service[64];  // $OTEL_SERVICE_NAME, else the program's name
};
static_assert(sizeof(SpanHello) == 152 && std::has_unique_object_representations_v<SpanHello>);

}  // namespace maru::format
