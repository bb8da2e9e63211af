// Blocks: found, published, retired, freed. docs/format.md has the steps of each operation, and the state after a death at each
// step, under the same numbers as in the comments of block_store.cc.
//
// Thread safety: any number of threads and processes, each with its own LaneContext (threads of a client share one).
#pragma once

#include "libmaru/shm/blocks/hash.h"
#include "libmaru/shm/blocks/metadata.h"
#include "libmaru/shm/blocks/pin.h"
#include "libmaru/shm/blocks/registry.h"
#include "libmaru/shm/blocks/tenant_account.h"
#include "libmaru/shm/region/page_run.h"

#include <cstdint>
#include <span>

namespace maru::shm {

// Whether the words read of a region are the region's words. A machine may take memory away, and a handler may put zeros in its
// place so that the process lives on. Then a slot with a pin in it reads as an empty slot.
class RegionTrust {
 public:
  // False from before the calling thread's first read of such zeros.
  virtual bool is_whole() const = 0;

 protected:
  ~RegionTrust() = default;
};

// The identity and the private state of the lane that runs an operation. Owned by the client or by marud; lives as long as the
// lane.
struct LaneContext {
  const ControlRegion* region = nullptr;
  LaneId id;
  PinTable* pins = nullptr;
  AtomicU64 intents_in_use{0};         // private: the lane's parent intents that threads are using
  TenantReturns* returns = nullptr;    // marud's; clients and tests use the lane's accounts
  const RegionTrust* trust = nullptr;  // marud's; a process without one ends with the memory

  format::LaneHeader& header() const { return *region->lane(id.lane).header; }
  // To be asked after a look for pins, and before an act that relies on finding none.
  bool may_believe() const { return trust == nullptr || trust->is_whole(); }
};

// The lane of a host's running marud, to which work is handed.
LaneId daemon_lane(const ControlRegion& region, uint32_t host = 0);

// -- finding ----------------------------------------------------------------------------------------------------------

enum class FindStatus : uint8_t { kFound, kAbsent, kPinsFull };
struct Found {
  FindStatus status = FindStatus::kAbsent;
  PageRef ref;        // kAbsent: a block of this key that has expired, or none
  uint32_t slot = 0;  // of the pin
};
// Finds, pins, and proves: the whole digest is compared under the pin. now_ms: expired blocks are absent; 0 ignores expiry.
Found find_and_pin(LaneContext& lane, const Digest& digest, uint64_t now_ms);
// The same proof without a pin: true at one moment of the call.
PageRef find_unpinned(const ControlRegion& region, const Digest& digest);

// -- keys and metadata ------------------------------------------------------------------------------------------------

struct KeyBytes {
  uint32_t kind = 0;
  uint32_t size = 0;
  uint64_t tenant = 0;
  std::byte data[limits::kKeyBytesMax];
};
// Copies the key of a block. False if the block went away meanwhile, or its key is damaged.
bool read_key(const ControlRegion& region, PageRef ref, KeyBytes* ret_key);
// Copies the first bytes of a block's metadata, as many as `ret_bytes` has, without a pin. `place`: the result of metadata_of()
// for this page, and `words` the memory there. False if the block went away meanwhile, or was another block.
bool read_metadata(const ControlRegion& region, PageRef ref, const MetadataPlace& place,
                   std::span<const AtomicU64> words, std::span<std::byte> ret_bytes);

// Whether a block's checksum fits the bytes read of it, by its line and under its pin. Without bound checksums the payload's
// alone counts, and 0 fits all.
struct ReadBlock {
  Digest digest;                   // of the key that the caller looked for, since a line is another process's word
  uint64_t bytes = 0;              // of the payload, as they were read
  uint64_t payload_checksum = 0;   // of these
  uint64_t metadata_checksum = 0;  // payload_checksum() of the metadata, 0 for none
};
bool fits_checksum(const ControlRegion& region, uint32_t page, const ReadBlock& read);

// -- storing ----------------------------------------------------------------------------------------------------------

struct NewBlock {
  Digest digest;
  std::span<const std::byte> key;
  uint32_t key_kind = 0;
  uint64_t tenant = 0;
  uint64_t length = 0;          // payload bytes
  uint64_t metadata_bytes = 0;  // metadata.h; the bytes are in the pages when publish() is called
  PageRef parent;               // none: a root
  uint64_t expires_ms = 0;      // 0: never; cut to the parent's
  uint32_t priority = 0;
  uint8_t content_type = 0;
  uint64_t payload_checksum = 0;  // 0: the pool has none
  uint64_t metadata_checksum = 0;
  uint64_t now_ms = 0;
};
enum class PublishStatus : uint8_t {
  kStored,
  kDuplicate,
  kNoParent,
  kRegistryFull,
  kKeySpaceFull,
  kPinsFull,
  kExpiredInTheWay,
  kNotReserved,
  kNeedsCredit,  // the tenant has a hard limit: marud must grant more, or refuse
};
struct PublishResult {
  PublishStatus status = PublishStatus::kNotReserved;
  PageRef block;  // kStored: own; kDuplicate: the winner
};
// Makes the RESERVED run `own` of this lane visible under block.digest. Unless it says kStored the run is RESERVED by the
// lane as before (or POISONED). kStored is also said of a block that a `clear` took away before it had its entry.
PublishResult publish(LaneContext& lane, PageRef own, const NewBlock& block);
// Fetches the lines that publish() reads first and writes, for a caller that stores other blocks before this block. `own` may
// be any word.
void prefetch_publish(const ControlRegion& region, PageRef own, const Digest& digest);

// -- removing ---------------------------------------------------------------------------------------------------------

enum class RetireStatus : uint8_t { kRetired, kAbsent, kHasChildren };
// One CAS, then the registry entry: the key is gone when this returns, with or without pins. The page is then freed by
// finish_retired.
RetireStatus retire(LaneContext& lane, const Digest& digest, PageRef* ret_ref);
RetireStatus retire_ref(LaneContext& lane, PageRef ref);

enum class FinishStatus : uint8_t { kFreed, kPinned, kNotMine };
// Frees a run that this lane has RETIRED, if no lane of `lanes` pins it, and uncounts it from its parent.
// *ret_pages (may be null): pages that became FREE.
FinishStatus finish_retired(LaneContext& lane, PageRef ref, const LaneSet& lanes, uint32_t* ret_pages);
// The same for a client. It leaves the block's last use as a touch of its parent: otherwise a hot parent would go cold with its
// last child. marud passes on the uses of blocks that it frees itself. `use_tick`: the last use that the caller knows of, 0 for
// none; `now_tick`: milliseconds since the pool was made.
FinishStatus finish_deleted(LaneContext& lane, PageRef ref, const LaneSet& lanes, uint64_t use_tick, uint64_t now_tick,
                            uint32_t* ret_pages);
// The same without looking for pins, for a caller that has looked already while the page was RETIRING.
// Its registry entry must have been removed after that look.
FinishStatus free_retired(LaneContext& lane, PageRef ref, uint32_t* ret_pages);
// Leaves a RETIRED page to another lane (a client to marud, marud to itself after a death). Returns success.
bool hand_over_retired(const ControlRegion& region, PageRef ref, LaneId from, LaneId to);

// -- parents ----------------------------------------------------------------------------------------------------------

// The child count of a parent, in its page word. add_child fails if the parent is not visible any more.
bool add_child(const ControlRegion& region, PageRef parent);
void drop_child(const ControlRegion& region, PageRef parent);

}  // namespace maru::shm
