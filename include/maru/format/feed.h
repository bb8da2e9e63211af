// The feed of a pool: a ring of events that marud writes and followers read, and a table of the blocks that the events have
// told of. docs/events.md, "The feed", says how both are used.
//
// It lies in memory of its own, a memfd that is sealed against every writer but marud (F_SEAL_FUTURE_WRITE). It exists while a
// program follows. A follower believes nothing that it reads here without a check, as with the control region.
//
//   FeedHeader | ring of 64-bit words | table: a word of 32 bits for each page
//
// Words are little-endian.
#pragma once

#include "maru/format/atomic_word.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace maru::format {

inline constexpr uint64_t kFeedMagic = 0x444545465552414d;  // "MARUFEED" when read as bytes
inline constexpr uint32_t kFeedVersion = 1;                 // another version is another layout: refused

enum class FeedState : uint32_t {
  kFilling = 0,  // marud looks at the pages for the first time: no event is written, and a snapshot would lack blocks
  kCurrent = 1,
  kEnded = 2  // marud writes no more: ask for another feed
};

struct alignas(64) FeedHeader {
  // lines 0 and 1: never change
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;  // 4096: where the ring begins
  uint8_t uuid[16];       // of the pool
  uint64_t incarnation;   // of this feed: Unix milliseconds when it began << 20 | random. Never 0
  uint64_t pages;         // of the pool, and words of the table
  uint64_t ring_bytes;    // a power of two
  uint64_t table_offset;  // header_bytes + ring_bytes
  uint64_t feed_bytes;    // of all
  uint64_t reserved0[7];  // zero
  // line 2: with each publication. While `sequence_begun` and `sequence` differ, one is under way
  AtomicU64 sequence_begun;  // written before `published`
  AtomicU64 published;       // bytes of records ever written, whole ones
  AtomicU64 sequence;        // of the last whole record, counted from 1; 0: none yet. Written after `published`
  AtomicU64 looked_ms;       // Unix milliseconds when marud last looked for news
  AtomicU32 wake;            // rises with each publication: followers wait for its change (futex)
  AtomicU32 state;           // FeedState
  uint64_t reserved1[3];
  // line 3: written before the ring's words that it covers
  AtomicU64 overwritten;  // records that begin before this many bytes are gone, or about to go
  uint64_t reserved2[7];
};
static_assert(offsetof(FeedHeader, sequence_begun) == 128);
static_assert(offsetof(FeedHeader, overwritten) == 192);
static_assert(sizeof(FeedHeader) == 256);
inline constexpr uint32_t kFeedHeaderBytes = 4096;
inline constexpr uint64_t kFeedRingBytesMin = 1u << 16;
inline constexpr uint64_t kFeedRingBytesMax = 1ull << 30;

// A record is a row of words; word i of the record at byte b lies at (b / 8 + i) mod (ring_bytes / 8) of the ring.
//
//   0  words:16 (lowest) | FeedKind:8 | reason:8 | reserved:8 | key kind:8 | key bytes:16
//   1  sequence
//   2  block, a PageRef
//   3  Unix milliseconds when marud saw it
// and of STORED
//   4  parent, a PageRef; 0: a root
//   5  tenant
//   6  BlockLine::length
//   7  BlockLine::shape
//   8  DetailLine::stored_ms
//   9  BlockLine::expires_ms
//   10 DetailLine::kind
//   11 the key, padded with zeros to whole words
//
// A reason is a number of enum maru_follow_reason (maru/follow.h).
enum class FeedKind : uint8_t { kStored = 2, kRemoved = 3 };
inline constexpr uint32_t kFeedRemovedWords = 4;
inline constexpr uint32_t kFeedStoredWords = 11;  // and the key
inline constexpr uint32_t kFeedRecordWordsMax = kFeedStoredWords + 4096 / 8;

// The table tells for each page the last life whose block followers know: the generation + 1, and 1 for the last generation;
// 0: none. So two lives in a row have different words.
constexpr uint32_t feed_mark(uint32_t generation) { return generation == ~0u ? 1 : generation + 1; }

}  // namespace maru::format
