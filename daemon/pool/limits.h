// The size of one step of a pool's work: in a turn of the pool, and in a turn of a request, before others have theirs. Every
// request waits for the step under way in any pool. So a step reads some thousand lines, which takes one or two tenths of a
// millisecond, and the rest waits for the next turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace maru::daemon {

// Lines that the works of one turn read together. A work ends when they are used up; the other works come first in the next
// turn.
inline constexpr uint64_t kLinesPerTurn = 1u << 12;
// Touches that a step applies, each of which reads some lines; and that a step reads, which are sorted at once.
inline constexpr size_t kTouchesPerDrain = 1u << 10;
inline constexpr size_t kTouchesReadAtOnce = 1u << 11;
// Touches that are read before they are applied: 64 MiB of them.
inline constexpr size_t kTouchesKept = 1u << 22;
// Pages of a step of the sweep, which reads some lines of each; and of a step that counts, which reads a word a line, in order.
inline constexpr uint32_t kSweepPagesPerTurn = 1u << 10;
inline constexpr uint64_t kCountPagesPerTurn = 1u << 12;
// Turns come with every request; mere upkeep rests in between. After a pause each part of it does so much.
inline constexpr uint64_t kUpkeepPauseMs = 10;
inline constexpr uint64_t kPinLookPauseMs = 200;
inline constexpr uint64_t kSweptPagesOfUpkeep = 1u << 12;
inline constexpr uint64_t kCountedPagesOfUpkeep = 1u << 15;
// The holdings of a dead client are taken back before any other work.
inline constexpr uint32_t kReclaimPagesPerTurn = 1u << 12;
// Pages of a step that may read lines elsewhere for each of them.
inline constexpr uint64_t kLinkedPagesPerTurn = 1u << 11;
// Parents that are counted again in one pass over the pages; and of those as many as one step begins or ends.
inline constexpr size_t kRecountsAtOnce = 1u << 14;
inline constexpr size_t kRecountsPerTurn = 1u << 10;
// Lines that searches for places in the order read in one step.
inline constexpr uint64_t kPlaceLinesPerTurn = 1u << 12;
// Of a walk over a tree: a page that is looked at is one, a block that is taken away so many.
inline constexpr uint64_t kTreeStepsPerTurn = 1u << 11;
inline constexpr uint64_t kStepsOfABlock = 64;
// Queues with scribbled links are built anew in this many pages a turn; the rest waits, without an order, for the next
// turns.
inline constexpr uint64_t kMendedPagesPerTurn = 1u << 11;
// A detach is answered when the lane is free; only in a larger pool does the rest go on in turns.
inline constexpr uint64_t kReclaimLinesAtOnce = 1u << 12;
// At the end of marud, for all lanes together: about a second.
inline constexpr uint64_t kReclaimPagesAtClose = 1u << 24;
// Looks at held blocks, in lines of memory that they read: first the look of a request that is about to evict, and each turn's
// look of a pass that some request waits for; then the look of upkeep. A line that no cache has costs some 100 ns.
inline constexpr uint64_t kHeldLinesAtOnce = 1u << 12;
inline constexpr uint64_t kHeldLinesOfUpkeep = 1u << 12;
// The same of RETIRED blocks that wait for their pins.
inline constexpr uint64_t kRetiredLinesPerTurn = 1u << 14;
// And looks for pins by which one turn of a request chooses blocks. Their lines are fetched ahead, many at a time, and
// cost less each: about thirty blocks where all 254 lanes are in use, four hundred where eight are. Later turns of it
// go on.
inline constexpr uint64_t kChoiceLinesPerTurn = 1u << 13;
// Words that one request reads in search of FREE pages, or to find blocks whose touches were lost, before it evicts.
inline constexpr uint64_t kFreeScanPagesPerRequest = 1u << 12;
inline constexpr uint64_t kLostScanPagesPerTurn = 1u << 11;
// Pages of the regions that one request gets. A client that wants more asks again.
inline constexpr uint64_t kGrantPagesPerTurn = 1u << 12;
// Pages among which one turn of a request looks for room for runs, and pages that one turn reads in a search everywhere.
inline constexpr uint64_t kWindowPagesPerTurn = 1u << 11;
inline constexpr uint64_t kSearchPagesPerTurn = 1u << 11;
// Pools up to this size are searched completely before every refusal, larger pools once in a while. In between, full searches
// rest for longer than the search took.
inline constexpr uint64_t kSmallPoolPages = 1u << 16;
inline constexpr uint64_t kFullSearchPauseMs = 200;
inline constexpr uint64_t kPagesSearchedPerMs = 1u << 12;
// Parents whose recount had to be postponed wait for a live client's next step.
inline constexpr uint64_t kRecountPauseMs = 20;
// A walk reads every page word, and the sweep finds expired blocks, too, somewhat later.
inline constexpr uint64_t kExpiredPauseMs = 1000;
inline constexpr size_t kMetExpiredMax = 1u << 11;
// Blocks missing from one list that are worth finding their places one by one; more are sorted in together.
inline constexpr size_t kSingleInsertsMax = 32;
// About a tenth of a second; a restart must answer soon.
inline constexpr uint64_t kAuditedAtStartPages = 1u << 18;
inline constexpr size_t kPinAgesMax = 1u << 16;
inline constexpr uint64_t kPinSlotsPerLook = 1u << 14;
inline constexpr uint64_t kPinSlotsPerTurn = 1u << 11;

// Whether a pause of this length that ends at `until_ms` is still going on. A clock that was set back ends it.
constexpr bool rests(uint64_t now_ms, uint64_t until_ms, uint64_t pause_ms) {
  return now_ms < until_ms && until_ms - now_ms <= pause_ms;
}

inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

}  // namespace maru::daemon
