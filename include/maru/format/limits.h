// Every maximum of the format and of the protocol, each with its reason, and how they depend on each other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maru::limits {

// -- geometry ---------------------------------------------------------------------------------------------------------

// A PageRef stores page + 1 in 32 bits and 0 means "none", so the last two values are not pages.
inline constexpr uint64_t kPagesMax = 0xFFFF'FFFEull;

// The kernel's page: a block page is never smaller, so that mappings can be cut at any page.
inline constexpr uint64_t kPageBytesMin = 4096;
// Engines use 512 KiB to 4 MiB; beyond that internal waste outweighs the saved page words.
inline constexpr uint64_t kPageBytesMax = 4ull << 20;
inline constexpr uint64_t kPageBytesDefault = 2ull << 20;
// Memory pools below this size get small pages, so that a test pool has enough of them to be interesting.
inline constexpr uint64_t kSmallPoolBytes = 4ull << 30;
inline constexpr uint64_t kPageBytesSmallPool = 64ull << 10;
// 64 TiB is the largest pool that is specified; with kPagesMax it needs pages of 16 KiB or more.
inline constexpr uint64_t kPoolBytesMax = 64ull << 40;

inline constexpr uint64_t kRegionBytesDefault = 256ull << 20;
// A pool is cut into at least this many regions by default, so that several clients can own one each.
inline constexpr uint64_t kRegionsMinDefault = 16;

// 12 bits of lane in a page word. Lane 0 is the daemon's own.
inline constexpr uint32_t kLanesMax = 4096;
inline constexpr uint32_t kLanesDefault = 256;
// By default the lanes take at most this share of a small pool; together with its pages' words the control region is an eighth.
inline constexpr uint64_t kLanesShareDefault = 16;
inline constexpr uint32_t kLanesMinDefault = 16;
inline constexpr uint32_t kLanesMinOfHostDefault = 4;  // marud's own and a few clients'
inline constexpr uint32_t kHostsMax = 64;
inline constexpr uint32_t kTenantsMax = 1u << 16;
inline constexpr uint32_t kTenantsDefault = 256;
inline constexpr uint32_t kTenantsMinDefault = 32;  // of small pools: one for each kTenantPoolBytes
inline constexpr uint64_t kTenantPoolBytes = 4ull << 20;
// Places where a tenant's record may lie; in a table that is nine tenths full one in thirty finds none of 32 free.
inline constexpr uint32_t kTenantProbes = 32;
// Accounts per lane: 32 bytes each, and 8 for the credit. 4,096 of them are less than the pin slots of the default.
inline constexpr uint32_t kAccountSlotsMin = 4;
inline constexpr uint32_t kAccountSlotsMax = 4096;
// A tenant without need of credit looks at this many slots for an account; a tenant with need of credit looks at all.
inline constexpr uint32_t kAccountProbes = 16;

// Half of the slots: at half load a bucket of seven overflows in 2.7 % of cases and its two candidates in one line stay rare.
inline constexpr uint64_t kBucketSlots = 7;
inline constexpr uint64_t kPinSetSlots = 8;
inline constexpr uint32_t kPinsMaxDefault = 16384;
// Of small pools: as many as they have pages, but from 64 to 1,024, is the least that is left to each lane.
inline constexpr uint32_t kPinsMinDefault = 64;
inline constexpr uint32_t kPinsEnoughDefault = 1024;
inline constexpr uint32_t kPinsPerLaneDefault = 16;  // of a lane, for each lane: above it pins give way, else lanes
inline constexpr uint32_t kPinsMaxLimit = 1u << 20;
inline constexpr uint32_t kTouchEntriesDefault = 4096;
inline constexpr uint32_t kTouchEntriesMinDefault = 64;  // of small pools: one for each kTouchPoolBytes
inline constexpr uint64_t kTouchPoolBytes = 4ull << 10;
inline constexpr uint32_t kTouchEntriesLimit = 1u << 20;
// Threads of one client that can free a child at the same instant; a further thread waits for a free intent word.
inline constexpr uint32_t kParentIntents = 8;

// -- keys -------------------------------------------------------------------------------------------------------------

inline constexpr uint32_t kKeyBytesMax = 4096;
inline constexpr uint32_t kKeyInlineDefault = 128;  // LMCache's string keys are about 100 characters.
inline constexpr uint32_t kKeyInlineMin = 32;       // a 256-bit digest always fits inline
inline constexpr uint32_t kKeyInlineMax = 4096;
inline constexpr uint32_t kKeyExtentBytes = 4096;
inline constexpr uint32_t kKeyExtentProbes = 32;
inline constexpr uint32_t kTenantNameMax = 64;

// -- metadata ---------------------------------------------------------------------------------------------------------

// A description of a payload and no second payload. Its length has 17 bits beside the payload's length.
inline constexpr uint32_t kMetadataBytesMax = 64u << 10;
// Metadata begins on a line of its own, so that reading it brings no line of the payload.
inline constexpr uint64_t kMetadataAlign = 64;

// -- page word --------------------------------------------------------------------------------------------------------

inline constexpr uint32_t kChildCountMax = (1u << 27) - 1;
inline constexpr uint32_t kRunPagesMax = (1u << 28) - 1;  // TAIL holds its distance to the head in 28 bits
inline constexpr uint32_t kChainDepthMax = (1u << 30);

// -- retry loops ------------------------------------------------------------------------------------------------------

// A reader repeats its read of a bucket this often while the header keeps changing. Then it takes the exact, slow way.
inline constexpr uint32_t kBucketReadRetries = 64;
// A pin meets RETIRING again only if another evictor marked the page in between.
inline constexpr uint32_t kPinReviveRetries = 64;
// Publishing restarts when another process changed the home bucket; each restart means that another process succeeded.
inline constexpr uint32_t kPublishRetries = 1u << 16;
// marud does not wait for a client that scribbles: an entry that it could not remove names a later life of a page, a miss.
inline constexpr uint32_t kMarudRemoveRetries = 64;
// A CAS on a page word fails only when another process's succeeded.
inline constexpr uint32_t kPageWordRetries = 1u << 16;

// -- the socket -------------------------------------------------------------------------------------------------------

// Larger packets are cut by the kernel; nothing in the protocol is larger.
inline constexpr size_t kMessageBytesMax = 64u << 10;
inline constexpr uint32_t kBatchKeysMax = 1u << 20;
inline constexpr uint32_t kConnectionsMax = 4096;
inline constexpr uint32_t kPoolNameMax = 63;
inline constexpr uint32_t kPoolsMax = 64;

static_assert(kPoolBytesMax / kPagesMax <= (16u << 10));
static_assert(kKeyInlineMin >= 32 && kKeyInlineMax <= kKeyBytesMax);
static_assert(kPinSetSlots * 8 == 64, "a pin set is one cache line");
static_assert(kChildCountMax < (1u << 28));

}  // namespace maru::limits
