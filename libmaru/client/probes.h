// Views of calls from outside. Probes (USDT): places at which bpftrace, perf or SystemTap may look at calls of a running
// program. A probe that no tool watches is one instruction that does nothing. docs/probes.md lists them. Spans, of a client
// that is traced (docs/tracing.md): without tracing, a test of one word.
//
//   maru:NAME_begin(client, keys, bytes)     keys of the call; bytes of the stored or allocated payload, otherwise 0
//   maru:NAME_end(client, keys, result)      result of the call
#pragma once

#include "libmaru/client/handle.h"
#include "libmaru/client/tracing.h"

#include <cstddef>
#include <cstdint>

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#else
#define STAP_PROBE3(provider, name, a, b, c) static_cast<void>(0)
#endif

// Defines probed_NAME(): makes a call between the two probes.
#define MARU_DEFINE_PROBED(name, operation)                                                                           \
  template <typename Call>                                                                                            \
  int probed_##name(const maru_client* client, size_t keys, uint64_t bytes, CountedBlocks blocks, const Call& call) { \
    STAP_PROBE3(maru, name##_begin, client, keys, bytes);                                                             \
    Tracing* const tracing = client != nullptr ? client->client->tracing() : nullptr;                                 \
    const int result = tracing == nullptr ? call() : [&]() __attribute__((noinline, cold)) {                          \
      CallSpan span;                                                                                                  \
      span.begin(*client->client, *tracing);                                                                          \
      const int traced = call();                                                                                      \
      span.end(format::SpanOperation::operation, traced, keys, bytes, blocks);                                        \
      return traced;                                                                                                  \
    }();                                                                                                              \
    STAP_PROBE3(maru, name##_end, client, keys, result);                                                              \
    return result;                                                                                                    \
  }

namespace maru::client {

inline constexpr CountedBlocks kBlocksAreResult = {CountedBlocks::In::kResult};
inline constexpr CountedBlocks kOneBlock = {CountedBlocks::In::kZeroResult};
inline CountedBlocks counted_at(const uint64_t* place) { return {CountedBlocks::In::kPlace, place}; }

MARU_DEFINE_PROBED(alloc, kAlloc)
MARU_DEFINE_PROBED(store, kStore)
MARU_DEFINE_PROBED(match, kMatch)
MARU_DEFINE_PROBED(exists, kExists)
MARU_DEFINE_PROBED(retrieve, kRetrieve)
MARU_DEFINE_PROBED(erase, kDelete)

}  // namespace maru::client

#undef MARU_DEFINE_PROBED
