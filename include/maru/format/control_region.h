// The control region: the bookkeeping of a pool, as it lies in memory that several processes share.
//
// This header is the specification of the layout. docs/format.md has the steps of the operations, a worked example, and the
// state that a death between two steps leaves behind. Nothing here is a pointer: everything is an index or an offset from the
// start of the region. All integers are little-endian.
//
//   +--------------------+ 0
//   | header             |  written once, when the pool is formatted
//   +--------------------+
//   | hosts              |  one record per host, by that host's marud
//   | regions            |  one record per region: who rents it
//   | lane identities    |  which lanes are in use, and by which process            every section starts on a boundary of
//   | policy             |  per page: links, policy's word, last use                section_align bytes (2 MiB, or 4 KiB for
//   | tenants            |  limits, credit                                             pools below 4 GiB)
//   +--------------------+
//   | blocks             |  per page one line: page word, digest, parent ...
//   | details            |  per page one line: key, type, priority, checksum ...
//   | key bytes          |  per page the key as it was given, while it is short
//   | key extents        |  4 KiB cells for longer keys
//   | registry           |  home buckets: digest -> {page, generation}
//   | overflow           |  overflow buckets
//   +--------------------+
//   | lanes              |  per client: pins, touches, intents, counters, accounts
//   +--------------------+ control_bytes
//   | pages of regions   |
//   +--------------------+ pool_bytes
//
// The writers of each part (marud is the daemon; every client of the pool can read everything):
//
//   header: none after formatting · hosts, regions, lane identities, policy, tenants: marud · blocks, details, keys,
//   registry, overflow: publishers, deleters and evictors, by the rules of the page word · a lane: its client, and marud
//   after proof that the client is dead
#pragma once

#include "maru/format/atomic_word.h"
#include "maru/format/limits.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace maru::format {

inline constexpr uint64_t kMagic = 0x314c54435552414d;  // "MARUCTL1" when read as bytes
inline constexpr uint32_t kVersionMajor = 1;            // another major version is another layout: refused
inline constexpr uint32_t kVersionMinor = 2;  // a newer minor version only adds parts that an older reader may ignore

// Flags of the header. An unknown compatible flag may be ignored; an unknown incompatible flag must be refused.
inline constexpr uint64_t kIncompatShared = 1u << 0;   // several hosts, each with a marud of its own; publishers flush
inline constexpr uint64_t kIncompatDurable = 1u << 1;  // one host, and publishers flush: the memory outlives its power
// With kCompatChecksums: a block's checksum covers its key, length, parent and metadata as well (docs/format.md, "Keys").
inline constexpr uint64_t kIncompatBoundChecksums = 1u << 2;
// Blocks may have metadata, whose length shares BlockLine::length with the payload's (docs/format.md, "Metadata of a block").
inline constexpr uint64_t kIncompatMetadata = 1u << 3;
inline constexpr uint64_t kIncompatFlushed = kIncompatShared | kIncompatDurable;  // either: publishers flush
inline constexpr uint64_t kIncompatKnown = kIncompatFlushed | kIncompatBoundChecksums | kIncompatMetadata;
inline constexpr uint64_t kCompatChecksums = 1u << 0;  // blocks carry a payload checksum and readers verify it

// The keyed hash, by name, so that another implementation can build it (docs/format.md, "Keys"). 1 was the same with chain
// terms of permuted digests; no release wrote it.
inline constexpr uint32_t kHashFeistel3Siphash24 = 2;

enum Section : uint32_t {
  kSectionHosts,
  kSectionRegions,
  kSectionLaneIdentities,
  kSectionPolicy,
  kSectionTenants,
  kSectionBlocks,
  kSectionDetails,
  kSectionKeyBytes,
  kSectionKeyExtents,
  kSectionRegistry,
  kSectionOverflow,
  kSectionLanes,
  kSectionCount,
};

struct SectionRecord {
  uint64_t offset;  // bytes from the start of the region
  uint64_t bytes;   // without the padding to the next section
};

// The numbers with which the pool was formatted. Everything else in the header follows from them: a header is valid if and only
// if planning a layout from this record gives exactly the sections that the header names.
struct Parameters {
  uint64_t pool_bytes;    // control region and pages
  uint64_t page_bytes;    // power of two
  uint64_t region_pages;  // power of two
  uint64_t pages;         // multiple of region_pages
  uint32_t lanes;         // including lane 0, the daemon's
  uint32_t hosts;
  uint32_t tenants;
  uint32_t pins_max;          // per lane; power of two
  uint32_t touch_entries;     // per lane; power of two
  uint32_t key_inline_bytes;  // per page; multiple of 8
  uint64_t key_extents;       // cells of kKeyExtentBytes
  uint64_t section_align;     // power of two
};

// Bytes 0..4095 of the region.
struct Header {
  uint64_t magic;
  uint32_t version_major;
  uint32_t version_minor;
  uint64_t header_bytes;  // sizeof(Header)
  uint64_t compat_flags;
  uint64_t incompat_flags;
  uint32_t hash_algorithm;
  uint32_t reserved0;        // zero
  uint8_t uuid[16];          // of the pool, random
  uint64_t created_unix_ms;  // also the zero point of ticks
  Parameters parameters;
  uint64_t control_bytes;  // offset of page 0
  uint64_t buckets;        // home buckets
  uint64_t overflow_buckets;
  SectionRecord sections[kSectionCount];
  uint64_t secret[16];      // random; keys the hash, so that collisions cannot be aimed from outside
  uint8_t reserved1[3600];  // zero
  uint64_t checksum;        // FNV-1a (64 bits) of all bytes before it
};
static_assert(sizeof(Parameters) == 72);
static_assert(offsetof(Header, parameters) == 72);
static_assert(offsetof(Header, sections) == 168);
static_assert(sizeof(Header) == 4096);
static_assert(offsetof(Header, checksum) == 4088);
static_assert(std::has_unique_object_representations_v<Header>);

// {page, generation} of one life of one page; 0 is "none". The generation changes whenever the page is freed, so a reference to
// an earlier life never matches a later life.
struct PageRef {
  uint64_t bits = 0;  // (page + 1) << 32 | generation

  static constexpr PageRef none() { return {0}; }
  static constexpr PageRef of(uint32_t page, uint32_t generation) { return {(uint64_t(page) + 1) << 32 | generation}; }
  static constexpr PageRef from_bits(uint64_t bits) { return {bits}; }
  constexpr bool is_none() const { return (bits >> 32) == 0; }
  constexpr uint32_t page() const { return uint32_t(bits >> 32) - 1; }  // meaningless for none()
  constexpr uint32_t generation() const { return uint32_t(bits); }
  friend constexpr bool operator==(PageRef, PageRef) = default;
};

// The page word: the truth about one page. `state:4 | generation:32 | low:28`, state in the highest bits.
enum class PageState : uint8_t {
  kOut = 0,       // low 0. Region not rented, draining or returned. A zeroed page word is OUT of generation 0.
  kFree = 1,      // low 0. May be taken by a CAS from this exact word.
  kReserved = 2,  // low lane:12, lane generation:16. Being filled.
  kSealed = 3,    // low as RESERVED. Filled, not visible.
  kTail = 4,      // low distance to the head. Further page of a run.
  kReady = 5,     // low recount flag:1, child count:27. Visible.
  kRetiring = 6,  // low evictor:12, attempt:16. Tentative: anyone may put it back to READY (count 0) at any time.
  kRetired = 7,   // low lane:12, lane generation:16. Final; becomes FREE, generation + 1, when no pin is left.
  kPoisoned = 8,  // low 0. Bad memory, never used again.
};
inline constexpr uint32_t kPageStateCount = 9;
inline constexpr uint32_t kRecountFlag = 1u << 27;

// One line per page, for lookups, pins and prefix searches. Fields after the word are written while the page is
// RESERVED by the lane that holds it and do not change until the page is freed.
struct alignas(64) BlockLine {
  AtomicU64 word;       // the page word
  AtomicU64 digest_lo;  // keyed digest of the key
  AtomicU64 digest_hi;
  AtomicU64 length;      // metadata bytes:17 | payload bytes:47; without kIncompatMetadata all of it payload bytes
  AtomicU64 parent;      // PageRef of the parent, 0 for a root, and of a POISONED page that was let go
  AtomicU64 shape;       // depth:32 (0 for a root) | pages of the run:32
  AtomicU64 chain;       // order-sensitive sum over the digests from the root to this block
  AtomicU64 expires_ms;  // Unix milliseconds, 0 never
};
static_assert(sizeof(BlockLine) == 64);

// BlockLine::length, and where metadata lies: from the first multiple of kMetadataAlign behind the payload on.
inline constexpr uint32_t kPayloadBits = 47;
constexpr uint64_t length_word(uint64_t payload_bytes, uint64_t metadata_bytes) {
  return metadata_bytes << kPayloadBits | payload_bytes;
}
constexpr uint64_t payload_bytes_of(uint64_t length) { return length & ((uint64_t{1} << kPayloadBits) - 1); }
constexpr uint64_t metadata_bytes_of(uint64_t length) { return length >> kPayloadBits; }
constexpr uint64_t metadata_offset(uint64_t payload_bytes) {
  return (payload_bytes + limits::kMetadataAlign - 1) / limits::kMetadataAlign * limits::kMetadataAlign;
}
static_assert(limits::kPoolBytesMax < uint64_t{1} << kPayloadBits);
static_assert(limits::kMetadataBytesMax < 1u << (64 - kPayloadBits));

// The second line of a page, for listings, policies and verification.
struct alignas(64) DetailLine {
  AtomicU64 key;        // kind:8 | bytes:24 | extent + 1:32 (0: the key is in the page's inline cell)
  AtomicU64 tenant;     // keyed hash of the tenant's name, 0 for none
  AtomicU64 kind;       // content type:8 | reserved:24 | priority:32
  AtomicU64 checksum;   // of the payload; with kIncompatBoundChecksums of metadata and block, too; 0: the pool has none
  AtomicU64 stored_ms;  // Unix milliseconds when it was stored
  AtomicU64 owner;      // lane:12 (bits 16..27) | lane generation:16 (bits 0..15) of the publisher, for listings
  AtomicU64 reserved[2];
};
static_assert(sizeof(DetailLine) == 64);

// A registry bucket is two lines. The header word decides which slots are visible. Every change of it is a CAS that raises its
// version, so all operations on one key meet in one word.
//   header: version:49 | overflow:1 | valid:14 (bit i: slot i of this bucket; bit 7 + i: slot i of its overflow bucket)
struct alignas(64) BucketTags {
  AtomicU64 header;  // in an overflow bucket: owner, home bucket + 1:36 | lane:12 | lane generation:16; 0: unclaimed
  AtomicU64 tag[7];  // the low word of the digest
};
struct alignas(64) BucketLocations {
  AtomicU64 overflow;     // home bucket: version:32 | overflow bucket + 1:32 (0: none). Overflow bucket: 0
  AtomicU64 location[7];  // PageRef
};
struct alignas(128) Bucket {
  BucketTags tags;
  BucketLocations locations;
};
static_assert(sizeof(Bucket) == 128);

inline constexpr uint64_t kValidMask = (1ull << 14) - 1;
inline constexpr uint64_t kOverflowFlag = 1ull << 14;
inline constexpr uint64_t kHeaderVersionOne = 1ull << 15;

// -- sections that marud writes ---------------------------------------------------------------------------------------

// In a pool that is not shared there is one host, 0, and its claim is 0. docs/format.md, "Hosts", lists the writers of a claim.
enum class HostState : uint8_t { kFree = 0, kLive = 1, kSuspect = 2, kDead = 3, kAttaching = 4 };

struct alignas(64) HostRecord {
  // line 0: its marud's
  AtomicU64 boot_id_lo;  // of the host of this marud; 0, 0: unused record
  AtomicU64 boot_id_hi;
  AtomicU64 epoch;         // raised by every start of marud; clients compare it to notice a restart
  AtomicU64 heartbeat_ms;  // Unix milliseconds, several times a second while a shared pool is served
  AtomicU64 process;       // pid of marud in its own namespace
  AtomicU64 clean;         // 1: the last marud left this pool in order; no client was left in it, unless it is shared
  AtomicU64 policy;        // FNV-1a of the name of the eviction policy whose words are in the policy table; 0: none
  AtomicU64 machine_id;    // keyed hash of the machine's id, which outlives a boot; 0: not shared, or unused
  // line 1: any marud's, by CAS
  AtomicU64 claim;   // HostState:8 (lowest) | reclaimer + 1:8 | its generation:16 (low half) | generation:32 (highest);
                     // ATTACHING, LIVE, SUSPECT: HostState:8 | tag of the machine:24 | generation:32
  AtomicU64 wanted;  // a region is asked for: host that asks + 1:8 (lowest) | reserved:24 | its generation:32; 0: none
  AtomicU64 reserved1[6];
  // line 2: its marud's
  AtomicU64 name[8];  // of the host, for people: text that ends with a zero byte
  AtomicU64
      serves;  // epoch:48 | minor version of the wire:16, of the marud that wrote it; counts if that epoch is the present one
  AtomicU64 reserved2[7];
};
static_assert(sizeof(HostRecord) == 256);

// Region word: state:4 | generation:20 | host:12 | lane:12 | lane generation:16.
enum class RegionState : uint8_t { kUnused = 0, kRented = 1, kOrphaned = 2, kDraining = 3 };

struct RegionRecord {
  AtomicU64 word;
  AtomicU64 reserved[3];
};
static_assert(sizeof(RegionRecord) == 32);

// The lane identities section begins with kLanesMax bits, one per lane that a client may be using. A set bit is written before
// the lane is handed out and cleared after the lane was reclaimed. Every search for pins reads the lanes with set bits.
struct alignas(64) LaneBitmap {
  AtomicU64 words[limits::kLanesMax / 64];
};

enum class LaneState : uint8_t { kFree = 0, kLive = 1, kDead = 2 };

// Minor version 1: the lane is LIVE, and its client maps the control region through an open file description that holds a lock
// (fcntl(2), F_OFD_SETLK) on the byte lane_lock() of this life of the lane. Locks of marud's own lie before kLaneLocks.
inline constexpr uint64_t kLaneHasLock = 1u << 8;
inline constexpr uint64_t kLaneLocks = uint64_t(1) << 62;
constexpr uint64_t lane_lock(uint32_t lane, uint32_t generation) {
  return kLaneLocks + (uint64_t(lane) << 16 | generation);
}

struct alignas(64) LaneIdentity {
  AtomicU64 state;       // LaneState:8 (lowest) | kLaneHasLock:1 | reserved:39 | lane generation:16 (highest)
  AtomicU64 process;     // pid in pid_namespace
  AtomicU64 start_time;  // of that process, clock ticks since boot (/proc/PID/stat, field 22)
  AtomicU64 boot_id_lo;  // of the host where the process runs
  AtomicU64 boot_id_hi;
  AtomicU64 credentials;    // uid:32 | gid:32
  AtomicU64 attached_ms;    // Unix milliseconds
  AtomicU64 pid_namespace;  // of marud, in which `process` counts: inode number of /proc/self/ns/pid; 0: not known
};
static_assert(sizeof(LaneIdentity) == 64);

// A queue of the eviction order is linked through these; where it begins and ends only marud knows, and builds anew after a
// restart.
struct PolicyEntry {
  AtomicU32 newer;        // page + 1 of the next warmer page of the queue; 0: the warm end
  AtomicU32 older;        // page + 1 of the next colder one; 0: the cold end
  AtomicU64 last_use_ms;  // tick of the last use that marud knows, milliseconds since Header::created_unix_ms
  AtomicU32 generation;   // of the page's life that this entry speaks of, + 1; 0: of none
  AtomicU32 list;         // marud's number of the queue, + 1; 0: in no queue
  AtomicU64 word;         // the policy's
};
static_assert(sizeof(PolicyEntry) == 32);

// The tenants section: TenantRules, then the records, then for each lane and each of its accounts one word, the credit granted
// to it: the bytes, counted since the lane was given out, up to which it may charge where TenantRecord::flags asks for credit.
// A record lies at one of the kTenantProbes places from id % tenants on, wrapping around.
inline constexpr uint64_t kRulesLimited = 1u << 0;  // some tenant needs credit; 0: clients need not look further
inline constexpr uint64_t kRulesUnlistedNeedCredit = 1u << 1;  // so do tenants without a record
inline constexpr uint64_t kRulesMissed = 1u << 2;  // bytes were counted without their tenant since marud counted
struct alignas(64) TenantRules {
  AtomicU64 flags;
  AtomicU64 soft_bytes;  // of tenants without limits of their own; 0: none
  AtomicU64 hard_bytes;
  AtomicU64 reserved[5];
};
static_assert(sizeof(TenantRules) == 64);

inline constexpr uint64_t kTenantNeedsCredit = 1u << 0;
inline constexpr uint64_t kTenantListed = 1u << 1;  // an administrator named it
struct alignas(64) TenantRecord {
  AtomicU64 id;          // keyed hash of the name; 0: unused
  AtomicU64 soft_bytes;  // that apply to it; 0: no limit
  AtomicU64 hard_bytes;  // 0: no limit
  AtomicU64 used_bytes;  // when marud last looked
  AtomicU64 balance;     // two's complement: add it to the sum of the lanes' accounts to get the bytes in use
  AtomicU64 flags;
  AtomicU64 reserved;
  AtomicU64 name_bytes;  // 0: marud does not know the name
  AtomicU64 name[8];     // kTenantNameMax bytes
};
static_assert(sizeof(TenantRecord) == 128);

// -- lanes ------------------------------------------------------------------------------------------------------------

// Counters of a lane, by its client alone, since it was given out; in marud's own lane the totals of lanes it took back.
enum LaneCounter : uint32_t {
  kCounterExistsHits,  // keys asked with exists that are there, and that are not
  kCounterExistsMisses,
  kCounterRetrieveHits,  // blocks found and pinned
  kCounterRetrieveMisses,
  kCounterMatchKeys,    // keys asked with match_prefix
  kCounterMatchBlocks,  // of them present
  kCounterStores,       // blocks published
  kCounterStoredBytes,
  kCounterDuplicates,  // stores that lost to a block already there
  kCounterDeletes,
  kCounterPinFull,          // pins refused because every slot was taken
  kCounterRegistryFull,     // stores refused because both buckets were full, or no key cell was free
  kCounterRevives,          // RETIRING put back to READY by this client
  kCounterSearchFallbacks,  // prefix searches that had to walk
  kCounterChecksumErrors,   // payloads that did not match their checksum
  kCounterRents,            // requests for memory sent to marud
  kLaneCounterCount,
};

struct alignas(64) LaneHeader {
  // line 0, written on every hit
  AtomicU64 touch_count;   // entries ever written to the touch ring
  AtomicU64 pin_overflow;  // slots of the pin overflow area that may be in use: raised before, lowered after
  AtomicU64 frees;         // pages this lane has freed and not taken again, so that owners of regions look again
  AtomicU64 accounts;      // tenant accounts claimed in this lane, or about to be: 0 is none
  AtomicU64 touches_read;  // of touch_count; marud's, for the marud after it. More than that is damage
  AtomicU64 reserved[3];
  // line 1
  AtomicU64 parent_intent[limits::kParentIntents];  // PageRef of a parent whose count is being lowered
  // lines 2 to 5: a counter is the sum of its two words. One thread of the client alone writes the first word, so that counting
  // costs it a plain store; all other threads write the second.
  AtomicU64 own_counters[kLaneCounterCount];
  AtomicU64 counters[kLaneCounterCount];

  uint64_t counter(uint32_t which) const {
    return own_counters[which].load_relaxed() + counters[which].load_relaxed();  // a statistic
  }
};
static_assert(sizeof(LaneHeader) == 384);
static_assert(kLaneCounterCount == 16);

// The bytes that a lane has stored and freed for one tenant: totals since the lane was given out. A tenant's account is the
// first account of its lane that names it, from place 1 + tenant % (accounts - 1) on, wrapping around without place 0. An
// account never changes hands while the lane lives. Account 0 names no tenant: it is for tenants that found no place.
struct alignas(32) LaneAccount {
  AtomicU64 tenant;     // 0: unused
  AtomicU64 in_flight;  // frees:32 (upper) | stores:32: operations between their first and last step
  AtomicU64 charged;    // bytes of whole pages: raised before a block is SEALED
  AtomicU64 returned;   // raised after its pages became FREE, or after a store came to nothing
};
static_assert(sizeof(LaneAccount) == 32);

// Accounts of a lane, with account 0: room for each tenant that has a record, while that is not too much.
constexpr uint32_t account_slots(uint32_t tenants) {
  uint32_t slots = limits::kAccountSlotsMin;
  while (slots <= tenants && slots < limits::kAccountSlotsMax) slots *= 2;
  return slots;
}

// A lane: LaneHeader, 2 * pins_max pin slots in sets of 8, pins_max / 4 overflow slots, touch_entries touch words, then on a
// boundary of 64 bytes the LaneAccounts.
// A pin slot is a PageRef or 0. A touch is (page + 1) << 32 | lap << 31 | tick. Entry n of the lane (counted from 0) lies at n
// % touch_entries and has lap = (n / touch_entries + 1) % 2. So the reader detects an entry that is counted but not yet
// written. The tick is the low 31 bits of the milliseconds since Header::created_unix_ms.

}  // namespace maru::format
