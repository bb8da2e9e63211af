// Questions to maru-tierd, and its answers, on its Unix stream socket. A connection is one question: its end also ends the
// holds of the question, even when the asker dies. Numbers are in this machine's byte order.
//
//   -> MessageHeader, then `bytes` bytes: PrefetchRequest and its keys, or nothing
//   <- MessageHeader, then `bytes` bytes: PrefetchReply, or text
#pragma once

#include <cstdint>
#include <type_traits>

namespace maru::prefetch {

inline constexpr uint32_t kMessageMagic = 0x3150464d;  // "MFP1"
inline constexpr uint32_t kMessageBytesMax = 1u << 20;
inline constexpr uint32_t kKeysMax = 4096;

enum MessageKind : uint32_t {
  kPrefetch = 1,    // PrefetchRequest -> PrefetchReply
  kListTiers = 2,   // nothing -> JSON
  kClearTier = 3,   // the tier's name -> JSON
  kDrainTiers = 4,  // nothing -> JSON, once all waiting stores are written
  kListQuotas = 5,  // nothing, or JSON: {"tenant"} -> JSON: the tenants' bytes and limits
  kSetQuota = 6,    // {"tenant", "bytes"} -> JSON; 0 bytes: no limit
  kDropQuota = 7,   // {"tenant"} -> JSON; the default applies again
};

struct MessageHeader {
  uint32_t magic;
  uint32_t kind;
  int32_t result;  // of an answer: 0 or -errno
  uint32_t bytes;  // that follow
};

struct PrefetchRequest {
  uint32_t keys;
  uint32_t policy;  // enum maru_prefetch_policy
  uint32_t deadline_ms;
  uint32_t compute_us;  // the asker's estimate of computing one block; 0: unknown
  uint32_t flags;       // enum maru_prefetch_flags
  uint32_t reserved[3];
};

// Followed by the bytes of the key, and zeros up to a multiple of 8.
struct PrefetchKey {
  uint32_t size;
  uint32_t kind;
  uint64_t tenant;
};

struct PrefetchReply {
  uint32_t keys;
  uint32_t usable;   // leading keys that are in the pool
  uint32_t in_pool;  // keys that were there
  uint32_t loaded;
  uint32_t absent;
  uint32_t failed;
  uint32_t gated;  // not loaded, as computing is estimated to be faster
  uint32_t late;   // not loaded when the deadline came
  uint64_t loaded_bytes;
  uint64_t took_us;
};

static_assert(sizeof(MessageHeader) == 16 && sizeof(PrefetchRequest) == 32 && sizeof(PrefetchKey) == 16 &&
              sizeof(PrefetchReply) == 48);

}  // namespace maru::prefetch
