// The register as it lies in its file: the adapters, their forms in the pool, and the recent uses of each.
//
//   head | buckets of names | resident lists, one for each form | entries
//
// All processes of one user on one host map the file. The lock of the head protects everything but the words that are atomic.
// A process may die anywhere:
//
// * in the lock: the next owner rebuilds the derived parts (names, lists, sums) from the entries;
// * between two locks, with an intent in an entry: the intent names the owner, whose death a lock on the file proves. The next
//   process that meets it removes the dead process's parts of that form from the pool.
//
// Totals for people are in a file beside it (maru/format/adapter_totals.h), which other users may read.
//
// An entry is live when its `life` is odd. An entry is written before its life becomes odd, and its life becomes even before
// any other field of it changes.
#pragma once

#include "maru/adapters.h"

#include <atomic>
#include <bit>
#include <cstdint>
#include <pthread.h>
#include <type_traits>

namespace maru::adapters {

inline constexpr uint64_t kRegisterMagic = 0x31'72'65'74'73'69'67'72ull;
inline constexpr uint32_t kRegisterVersion = 2;

enum class Form : uint32_t { kHot = 0, kWarm = 1 };
inline constexpr uint32_t kForms = 2;
constexpr uint32_t index_of(Form form) { return uint32_t(form); }

// The work of a process on a form of an entry.
enum class Doing : uint32_t { kNothing = 0, kMaking = 1, kRemoving = 2 };

inline constexpr uint32_t kUseSlots = 8;    // periods that are remembered
inline constexpr uint32_t kUsePeriods = 6;  // periods of a window

struct EntryWord {
  std::atomic<uint32_t> doing;  // enum Doing; processes wait on this word (futex)
  std::atomic<uint32_t> owner;  // of `doing`: a place in the head's owners
};

struct Entry {
  std::atomic<uint64_t> life;
  uint64_t name_hash;
  char name[MARU_ADAPTERS_NAME_BYTES_MAX + 1];
  char folder[MARU_ADAPTERS_FOLDER_BYTES_MAX + 1];
  uint64_t device, inode, file_bytes, modified_ns;  // of the file of weights
  uint64_t headers_hash;
  uint8_t checksum[16];
  double alpha;
  uint32_t rank, modules, element, next_free;
  uint64_t form_bytes[kForms];  // of pages
  uint32_t form_parts[kForms];
  EntryWord words[kForms];
  std::atomic<uint32_t> resident;  // bit 1 << form
  uint32_t list_place[kForms];
  uint32_t is_checked;        // 1: `checksum` was known when the adapter was loaded, and never changes
  uint64_t since_ms[kForms];  // when the form came
  std::atomic<uint64_t> last_use_ms;
  std::atomic<uint64_t> uses[kUseSlots];  // period << 32 | uses in it
};
static_assert(sizeof(Entry) == 624 && std::is_standard_layout_v<Entry>);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

struct Rules {
  uint32_t window_ms, hot_enter_uses, hot_leave_uses, stay_ms;
  uint64_t adapters_max[kForms];
  uint64_t bytes_max[kForms];
};

struct Head {
  uint64_t magic;
  uint32_t version;
  std::atomic<uint32_t> ready;  // 1: all of the head and the lock are made
  uint64_t file_bytes;
  uint8_t pool_uuid[16];
  uint64_t page_bytes, part_bytes;
  uint32_t entries_max, buckets;
  Rules rules;
  char base_model[MARU_ADAPTERS_BASE_BYTES_MAX + 1];
  uint8_t base_fingerprint[16];  // zeros: none
  pthread_mutex_t lock;          // robust, of all processes
  std::atomic<uint32_t> owners_next;
  uint32_t entries_used;  // entries ever live; those above have no memory yet
  uint32_t entries_live;
  uint32_t first_free;  // entry + 1; 0: none
  uint32_t resident_count[kForms];
  uint64_t resident_bytes[kForms];
};
static_assert(sizeof(Head) <= 4096 && std::is_standard_layout_v<Head>);
inline constexpr uint64_t kHeadBytes = 4096;

struct Places {
  uint64_t buckets, lists, entries, bytes;
  uint32_t buckets_count;
};
inline Places places_of(uint32_t entries_max) {
  Places places;
  places.buckets_count = std::bit_ceil(2 * entries_max);
  places.buckets = kHeadBytes;
  places.lists = places.buckets + uint64_t{places.buckets_count} * sizeof(uint32_t);
  places.entries = (places.lists + uint64_t{kForms} * entries_max * sizeof(uint32_t) + 4095) / 4096 * 4096;
  places.bytes = (places.entries + uint64_t{entries_max} * sizeof(Entry) + 4095) / 4096 * 4096;
  return places;
}

}  // namespace maru::adapters
