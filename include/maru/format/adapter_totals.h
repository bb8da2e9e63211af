// Totals of the work of one user's processes with the LoRA adapters of a pool. They lie in a file of one page beside the user's
// register; the file has the register's name with ".totals" behind it. Other users, marud among them, may read this file.
// They may not read the register: a reader could lock its bytes, and so hold up the processes that use it.
//
// Each word is exact; two words need not be of the same moment. Nothing is decided by these numbers.
#pragma once

#include "maru/format/atomic_word.h"

#include <array>
#include <cstdint>

namespace maru::format {

inline constexpr uint64_t kAdapterTotalsMagic = 0x31'6C'61'74'6F'74'61'6Dull;
inline constexpr uint32_t kAdapterTotalsVersion = 1;
inline constexpr uint64_t kAdapterTotalsBytes = 4096;
// Of the register that libmaru-adapters makes by itself: kAdapterRegisterFolder/maru-adapters.UID.UUID. UUID is the pool's, in
// 32 hexadecimal digits.
inline constexpr const char* kAdapterRegisterFolder = "/dev/shm";
inline constexpr const char* kAdapterRegisterPrefix = "maru-adapters.";
inline constexpr const char* kAdapterTotalsSuffix = ".totals";

enum AdapterTotal : uint32_t {
  // since the register was made
  kAdapterAcquiresHot,  // by the form that was resident at the request
  kAdapterAcquiresWarm,
  kAdapterAcquiresCold,
  kAdapterLoads,  // forms made from a file or from a tier
  kAdapterLoadedBytes,
  kAdapterTierLoads,  // of the loads, forms that a tier had
  kAdapterPromotions,
  kAdapterDemotions,
  kAdapterEvicted,   // forms that marud had taken when they were wanted
  kAdapterWaits,     // for another process's load
  kAdapterRefusals,  // because a budget was used up
  kAdapterRepairs,   // forms that a dead process had left unfinished
  kAdapterSinceEnd,
  // now
  kAdapterRegistered = kAdapterSinceEnd,
  kAdapterHot,
  kAdapterWarm,
  kAdapterHotBytes,  // of pages
  kAdapterWarmBytes,
  kAdapterTotalCount,
};
inline constexpr std::array<const char*, kAdapterTotalCount> kAdapterTotalNames = {
    "acquires_hot", "acquires_warm", "acquires_cold", "loads",     "loaded_bytes", "tier_loads",
    "promotions",   "demotions",     "evicted",       "waits",     "refusals",     "repairs",
    "adapters",     "hot_adapters",  "warm_adapters", "hot_bytes", "warm_bytes"};

struct AdapterTotals {
  AtomicU64 magic;  // written last
  uint32_t version;
  uint32_t reserved;
  uint8_t pool_uuid[16];
  AtomicU64 values[kAdapterTotalCount];
};
static_assert(sizeof(AdapterTotals) == 32 + 8 * kAdapterTotalCount && sizeof(AdapterTotals) <= kAdapterTotalsBytes);

}  // namespace maru::format
