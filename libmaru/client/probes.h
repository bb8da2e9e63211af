// Probes of libmaru (USDT): places at which bpftrace, perf or SystemTap may look at calls of a running program. A probe that no
// tool watches is one instruction that does nothing. docs/probes.md lists them.
//
//   maru:NAME_begin(client, keys, bytes)     keys of the call; bytes of what is stored or allocated, otherwise 0
//   maru:NAME_end(client, keys, result)      result of the call
#pragma once

#include <cstddef>
#include <cstdint>

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#else
#define STAP_PROBE3(provider, name, a, b, c) static_cast<void>(0)
#endif

// Defines probed_NAME(): makes a call between the two probes.
#define MARU_DEFINE_PROBED(name)                                                        \
  template <typename Call>                                                              \
  int probed_##name(const void* client, size_t keys, uint64_t bytes, const Call& call) { \
    STAP_PROBE3(maru, name##_begin, client, keys, bytes);                               \
    const int result = call();                                                          \
    STAP_PROBE3(maru, name##_end, client, keys, result);                                \
    return result;                                                                      \
  }

namespace maru::client {

MARU_DEFINE_PROBED(alloc)
MARU_DEFINE_PROBED(store)
MARU_DEFINE_PROBED(match)
MARU_DEFINE_PROBED(retrieve)
MARU_DEFINE_PROBED(erase)

}  // namespace maru::client

#undef MARU_DEFINE_PROBED
