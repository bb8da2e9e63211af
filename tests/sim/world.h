// The world of a scenario: one tiny control region, and beside it what the simulator knows and no process does.
//
// Every change of a word that becomes visible is looked at once (world.cc, on_change). So the rules below hold after every
// step of every schedule and not only at its end; each names the promise or the rule that it stands for.
//
//   page words   change only along the edges of the state machine; a generation moves only when a page is freed, by one
//   pins         a page that somebody holds pinned keeps its generation and stays READY, RETIRING or RETIRED
//   chains       a READY parent counts at least its READY, RETIRING and RETIRED children; a parent that is gone has none
//   registry     no valid entry names a page that has been freed; one key is visible at most once; what a valid slot
//                says does not change
//   the auditor  finds nothing of what it says holds always; it looks now and then, not at every step
//   payload      is compared by readers under their pin (check_payload)
//   metadata     likewise (check_metadata): its bytes, and that there is as much as the block was stored with
//
// For results it keeps, per key, the last step at which the key was visible and the last at which it was not: a call that
// reports "there" or "absent" is right if that was so at some step of the call. It keeps the same per page: a
// call may name a page only if a valid entry named that life of the page at some step of the call. The digest proves less:
// a page that has only claimed a slot has the right digest, too.
#pragma once

#include "engine.h"
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/blocks/hash.h"
#include "libmaru/shm/blocks/pin.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/page_word.h"

#include <cstdint>
#include <span>

namespace maru::sim {

using format::PageRef;
using format::PageState;
using shm::Digest;
using shm::LaneId;
using shm::PageWord;

inline constexpr uint32_t kWorldPages = 16;
inline constexpr uint32_t kWorldRegionPages = 4;
inline constexpr uint32_t kWorldLanes = 6;    // lane 0 is marud's
inline constexpr uint32_t kWorldPinsMax = 8;  // 16 slots in two sets, and 8 of overflow
inline constexpr uint32_t kWorldKeys = 24;
inline constexpr uint32_t kFirstLongKey = 20;  // from here on keys are too long for the inline cell
inline constexpr uint32_t kPayloadWords = 3;
inline constexpr uint32_t kMetadataWordsMax = 2;
inline constexpr uint32_t kPayloadStride = 16;  // a line for each page, and one behind it for the metadata
inline constexpr uint32_t kPinCounts = 64;      // private counts of a pin table, at most
inline constexpr unsigned kMarud = 0;           // the process of marud; a client's process is its lane

// Formats the region afresh; every page FREE, every lane in use. Called first by every setup.
void make_world();
// The same for a pool of kWorldHosts hosts, each with its share of the lanes and its region; region 3 is nobody's.
inline constexpr uint32_t kWorldHosts = 3;
void make_shared_world();
// The same for a pool of one host that outlives the power of its machine.
void make_durable_world();
// Caches are lost with their host from here on; the last call of a setup, before a host may die. Process and lane numbers are
// the same.
void play_shared_world();
// The epoch of marud; for a setup, before make_marud().
void start_at_epoch(uint64_t epoch);
// Of processes beyond the lanes' own: on which machine they are, as play_hosts has it. Before play_shared_world().
void belongs_to_machine(unsigned process, unsigned machine);
unsigned machine_of(unsigned process);
const shm::ControlRegion& world();

// Lanes as their owners know them; a lane that is used again gets another generation, and belongs to another process.
LaneId lane_id(uint32_t lane);
unsigned lane_process(uint32_t lane);
void reuse_lane(uint32_t lane, unsigned process);
void assign_lane(uint32_t lane, uint32_t generation, unsigned process);  // and nothing is written

// Keys. Those of one bucket share the home bucket; with `same_tag` also the 64-bit tag, so that only the block line
// tells them apart.
Digest key_digest(uint32_t key);
void define_key(uint32_t key, uint64_t bucket, bool same_tag = false);

// A key is visible while a valid entry leads to its READY or RETIRING block; its tag is listed while a valid slot shows it,
// whatever became of the block. Whether it was so at some moment since `step`, a former value of steps().
bool visible_now(uint32_t key);
bool was_visible_since(uint32_t key, uint64_t step);
bool was_absent_since(uint32_t key, uint64_t step);
bool was_listed_since(uint32_t key, uint64_t step);
bool was_unlisted_since(uint32_t key, uint64_t step);
// A life of a page is named while a valid entry has it as its location.
bool was_named_since(PageRef ref, uint64_t step);
// The key of the block that was READY in this life of a page; kWorldKeys: none of which the world knows.
uint32_t key_of_life(PageRef ref);

// What a process believes to hold. Forgotten when it dies.
void hold(unsigned process, PageRef ref);
void let_go(unsigned process, PageRef ref);
bool is_held(uint32_t page);
uint32_t hold_count_of(unsigned process);

// The location of a valid slot of a home bucket at this instant, or none. Slots 7 to 13 are in its overflow bucket.
PageRef registry_location(uint64_t bucket, uint32_t slot);

// Payload: words in memory of their own, written while the page is RESERVED and read under a pin.
std::span<AtomicU64> payload_words(uint32_t page);  // and those of the metadata behind them
void write_payload(uint32_t page, uint32_t key, uint32_t version);
void check_payload(uint32_t page, uint32_t key, const char* who);
void flush_payload(uint32_t page);
// Metadata: words in the line behind the payload's. How many depends on key and version alone, so a reader knows from the
// payload how many there must be; in a pool of the version before metadata there are none.
uint64_t metadata_bytes(uint32_t key, uint32_t version);
void write_metadata(uint32_t page, uint32_t key, uint32_t version);
void flush_metadata(uint32_t page);
void check_metadata(uint32_t page, uint32_t key, const char* who);  // of a block that the caller holds
// Reads metadata without a pin, as a listing does. Fails unless that is the whole metadata of one life of the page.
void list_metadata(uint32_t page);

// A pin table of a process; its private counts come from the world and are fresh.
shm::PinTable make_pin_table(uint32_t lane);  // the latest one of a lane counts

AtomicU32* world_pin_counts(uint32_t lane);
// Makes a pin slot of the lane look taken by another thread, for good.
void occupy_pin_slot(uint32_t lane, uint32_t slot);

// What a process held, it holds no more; every scenario's on_death.
void forget_process(unsigned process);

// Calls `function` after every change of a page word, besides what the world looks at itself. Until the next make_world().
void watch_page_words(void (*function)(uint32_t page, PageWord from, PageWord to));

// Calls `function` after every change of the word in which a host is asked for a region. Until the next make_world().
void watch_wishes(void (*function)(uint32_t host, uint64_t before, uint64_t after));

// The page where a visible key is at this instant.
PageRef visible_block(uint32_t key);

void expect_free_pages(uint32_t pages, const char* when);
uint32_t free_pages();

// What the auditor says (rest.cc).
void check_audit(shm::AuditMode mode, const char* when);

// Where things lie, and what they are called (world_names.cc).
struct WorldPlaces {
  const void* memory;
  const void* pin_counts;
  size_t pin_count_bytes;
  const void* payload;
  size_t payload_bytes;
};
const WorldPlaces& world_places();
void name_world_word(const void* address, uint64_t value, char* name, char* meaning);

// "READY.3 children 1" and the like, for messages.
const char* describe(PageWord word);

}  // namespace maru::sim
