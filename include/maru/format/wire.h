// Messages between libmaru or marudctl and marud: AF_UNIX, SOCK_SEQPACKET, one message a packet, at most
// limits::kMessageBytesMax bytes. A request carries an id above 0 and gets exactly one reply with the same id. marud may
// send messages without a request at any time; they carry the id 0, and a client may drop them. A message is a fixed struct
// of little-endian integers without padding; data of variable size follows it, at the places described.
//
// A reply with a negative status carries an explanation for people as text and nothing else.
#pragma once

#include "maru/format/limits.h"

#include <cstdint>
#include <type_traits>

namespace maru::wire {

inline constexpr uint32_t kMagic = 0x5552414d;  // "MARU" when read as bytes
inline constexpr uint16_t kVersion = 1;
// Messages that later maruds know: 1 adds kMakeRoom, 2 kFollow, 3 kRentWantsTimes, 4 kHasCopies. marud shows its minor version
// in HostRecord::serves, since an earlier marud ends the connection at a message that it does not know.
inline constexpr uint16_t kMinorVersion = 4;

enum class Type : uint16_t {
  kAttach = 1,       // AttachRequest [+ descriptors handed back] -> AttachReply + descriptors, see there
  kDetach = 2,       // nothing -> nothing; the lane is free when the reply comes
  kRent = 3,         // RentRequest -> RentReply, see there
  kDeleteTree = 4,   // DeleteTreeRequest -> DeleteTreeReply
  kAdmin = 5,        // JSON object {"command": ...} -> JSON object (docs/administration.md names the commands)
  kPing = 6,         // nothing -> nothing
  kRegionTaken = 7,  // unasked: RegionTaken
  kCredit = 8,       // CreditRequest -> nothing; refused with EDQUOT, EUSERS or EPERM
  kBadMemory = 9,    // BadMemoryReport -> nothing
  kPoolLeaves = 10,  // unasked: PoolLeaves
  kMakeRoom = 11,    // RoomRequest -> nothing; refused with EXFULL
  kFollow = 12,      // FollowRequest -> FollowReply + descriptors, see there
  kHasCopies = 13,   // 1 to kCopiesMax PageRefs of 8 bytes each -> CopiesReply, see there
};
inline constexpr uint16_t kTypeMax = 13;

struct MessageHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t type;        // Type, the same in the reply
  uint32_t request_id;  // chosen by the sender of the request; 0: unasked
  int32_t status;       // requests: 0. Replies: 0 or -errno
  uint32_t bytes;       // that follow this header
  uint32_t reserved;    // zero
};
static_assert(sizeof(MessageHeader) == 24);
inline constexpr size_t kPayloadBytesMax = limits::kMessageBytesMax - sizeof(MessageHeader);

// Descriptors come with the request, as they came with the reply; of a pool that is not in memory the first one alone.
inline constexpr uint32_t kAttachHandsBack = 1u << 0;
inline constexpr uint32_t kAttachReadOnly = 1u << 1;  // the client never stores; it gets no memory to store into

struct AttachRequest {
  char pool[64];  // name, zero-padded
  uint32_t flags;
  uint32_t previous_lane;        // of this process in this pool before the connection was lost; 0: none
  uint32_t previous_generation;  // of that lane
  uint32_t reserved0;
  uint8_t uuid[16];  // of the pool attached before; zero: none
  uint64_t reserved[4];
};
static_assert(sizeof(AttachRequest) == 128);

// With one descriptor: the device, which begins with the control region. With two: the device of the pages, read-only for a
// request with kAttachReadOnly, and the device that begins with the control region.
struct AttachReply {
  uint8_t uuid[16];
  uint64_t pool_bytes;  // control region and pages
  uint64_t control_bytes;
  uint64_t epoch;  // of marud in this pool
  uint32_t lane;
  uint32_t lane_generation;
  uint32_t lane_kept;          // 1: the lane is the previous one, with everything that it holds
  uint32_t host;               // index of the host record
  uint32_t map_alignment;      // mappings of the first descriptor start and end on a multiple of this
  uint32_t descriptors;        // 1 or 2
  uint64_t pages_offset;       // of page 0 in the first descriptor
  uint64_t control_alignment;  // as map_alignment, of the device with the control region
  uint64_t user_regions_max;   // that the user may rent over all pools, now; 0: as many as there are
  uint64_t user_bytes_max;     // of these regions
};
static_assert(sizeof(AttachReply) == 96);

inline constexpr uint32_t kRentWantsTimes = 1u << 0;  // RentTimes at the end of the reply

struct RentRequest {
  uint64_t runs;       // wanted
  uint64_t run_pages;  // each; 1 for pages anywhere
  uint32_t flags;      // kRentWantsTimes
  uint32_t reserved0;
  uint64_t tenant;  // the tenant that wants the memory: its blocks go first; 0: none
  uint64_t reserved;
};
static_assert(sizeof(RentRequest) == 40);

// No regions and no runs: there was no memory to give (ENOSPC), but blocks were evicted during the search.
// Followed by `regions` u32 region indices (rented to the asker now; their pages are FREE), `runs` RunRecords (evicted for
// the asker; every page of them is RESERVED by its lane) and `evicted` EvictedKeys. Padded with zeros to 8 bytes between
// the three. RentTimes come last, where they were asked for.
struct RentReply {
  uint32_t regions;
  uint32_t runs;
  uint32_t evicted;        // keys that follow
  uint32_t evicted_total;  // blocks that were evicted; the keys of some may lack room here
};
static_assert(sizeof(RentReply) == 16);

struct RunRecord {
  uint32_t page;
  uint32_t pages;
};
static_assert(sizeof(RunRecord) == 8);

// The times of marud's steps for the request, in nanoseconds of the Unix clock: for the spans of its client (docs/tracing.md).
struct RentTimes {
  uint64_t came_ns;
  uint64_t chose_from_ns;  // marud began to look for blocks that may go, and evicted them. 0: it did not
  uint64_t chose_to_ns;
  uint64_t answered_ns;
  uint64_t turns;  // of its loop, the first one included
};
static_assert(sizeof(RentTimes) == 40 && std::has_unique_object_representations_v<RentTimes>);

// Followed by `size` bytes of key, padded with zeros to 8.
struct EvictedKey {
  uint32_t size;
  uint32_t kind;  // maru_key_kind
  uint64_t tenant;
};
static_assert(sizeof(EvictedKey) == 16);

// A region of the client has another owner now. This is a hint: the region's word in shared memory is the truth, and a client
// that misses this message finds it there.
struct RegionTaken {
  uint32_t region;
  uint32_t generation;  // of the region word from which on it was no longer the client's
};
static_assert(sizeof(RegionTaken) == 8);

// Asks for credit of a tenant: when the reply comes, the credit of the account is in the control region.
struct CreditRequest {
  uint64_t tenant;
  uint64_t bytes;    // of the pages of the block that is to be stored
  uint32_t account;  // of the asker's lane, which names the tenant; 0: it found no place
  uint32_t reserved0;
  uint64_t reserved;
};
static_assert(sizeof(CreditRequest) == 32);

// The registry has no slot for this key: the coldest block that shares its buckets and may go makes room.
struct RoomRequest {
  uint64_t digest_lo;
  uint64_t digest_hi;
  uint64_t parent;    // PageRef of the block below which the asker stores: it is spared; 0: none
  uint64_t reserved;  // zero
};
static_assert(sizeof(RoomRequest) == 32);

// Follows a pool (docs/events.md) until the connection ends. It needs no lane.
struct FollowRequest {
  char pool[64];   // name, zero-padded
  uint32_t flags;  // zero
  uint32_t reserved0;
  uint64_t reserved[3];
};
static_assert(sizeof(FollowRequest) == 96);

// With two descriptors: the feed, and the device with the control region and the pages. With three: the feed, the device with
// the control region, and the device with the pages. None of them can be written.
struct FollowReply {
  uint8_t uuid[16];
  uint64_t incarnation;
  uint64_t feed_bytes;
  uint64_t pool_bytes;  // control region and pages
  uint64_t control_bytes;
  uint64_t pages_offset;       // of page 0 in the last descriptor
  uint64_t control_alignment;  // mappings of the control region start and end on a multiple of this
  uint64_t map_alignment;      // likewise, of the pages
  uint32_t descriptors;        // 2 or 3
  uint32_t reserved0;
};
static_assert(sizeof(FollowReply) == 80);

// The client met memory in this page that the machine cannot read. marud looks for itself.
struct BadMemoryReport {
  uint32_t page;
  uint32_t reserved0;  // zero
};
static_assert(sizeof(BadMemoryReport) == 8);

// marud wants the pool's memory back. The client refuses new work, unmaps everything after its last view is released, and
// detaches.
struct PoolLeaves {
  uint64_t deadline_ms;  // from now; afterwards an administrator may end the process
};
static_assert(sizeof(PoolLeaves) == 8);

// Blocks that the client, or storage below the pool, has a copy of. A hint: among blocks that the pool's policy finds equally
// cold, those with a copy go first. marud leaves out blocks that have gone, blocks that it has not met yet, and blocks in
// regions of other hosts.
inline constexpr size_t kCopiesMax = 1024;
struct CopiesReply {
  uint64_t noted;  // of the blocks
};
static_assert(sizeof(CopiesReply) == 8);

struct DeleteTreeRequest {
  uint64_t digest_lo;
  uint64_t digest_hi;
};
static_assert(sizeof(DeleteTreeRequest) == 16);

struct DeleteTreeReply {
  uint64_t deleted;
  uint64_t left;  // pinned, or with children that stayed
};
static_assert(sizeof(DeleteTreeReply) == 16);

static_assert(std::has_unique_object_representations_v<MessageHeader> &&
              std::has_unique_object_representations_v<AttachReply> &&
              std::has_unique_object_representations_v<RentRequest> &&
              std::has_unique_object_representations_v<CreditRequest> &&
              std::has_unique_object_representations_v<FollowReply>);

}  // namespace maru::wire
