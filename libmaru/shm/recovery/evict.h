// Eviction: taking unpinned, childless blocks away, many at a time. The policy chooses them.
//
// Each victim goes READY -> RETIRING{evictor, attempt}. Any process may undo this by putting it back to READY, and a reader
// that meets it does. Then the lanes' pins are read. A victim without a pin goes RETIRING -> RETIRED by a CAS from that very
// word, attempt included, so that a revived and re-marked word cannot be mistaken for ours. [pairs page.retiring] All are
// marked before the pins are read, once for all, so the barrier is paid once for a batch.
//
// Thread safety: marud alone evicts, with its own lane. If the process dies here: RETIRING costs no reader a miss; RETIRED{its
// lane} is finished by the next marud.
#pragma once

#include "libmaru/shm/blocks/block_store.h"

#include <cstdint>

namespace maru::shm {

inline constexpr size_t kEvictBatchMax = 256;

// Tries to retire each of `count` (at most kEvictBatchMax) pages and removes their registry entries. ret_retired receives the
// retired pages, each to be freed by free_retired (their pins were looked for). Returns how many.
// *attempt is the evictor's private count of batches.
size_t retire_unpinned(LaneContext& evictor, const LaneSet& lanes, const uint32_t* pages, size_t count,
                       uint16_t* attempt, PageRef* ret_retired);

}  // namespace maru::shm
