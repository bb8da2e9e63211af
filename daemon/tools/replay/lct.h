// Storage traces of LMCache's server (.lct, schema 1 and 2): read as recorded calls, and written of them.
//
// A file is a row of frames, each a length of 32 bits, most significant byte first, and a map in MessagePack: a header, then
// one record for each call of LMCache's storage manager, when it began. What is in it becomes:
//
//   reserve_write, then finish_write of its keys        a store, from the one to the other
//   submit_prefetch_task                                a match
//   read_prefetched_results.__enter__                   a retrieve
//   read_prefetched_results.__exit__, finish_read_prefetched  a release
//
// A trace has no results. Recorded calls get those that an endless cache would have: what was stored before is there. A trace
// tells neither threads nor chains: the calls are one thread's, and blocks have no parents.
//
// A key becomes a digest of 128 bits of its hash, model, rank and group; a key that was written by lct_of() becomes itself.
#pragma once

#include "daemon/tools/replay/recording.h"

#include <cstdint>
#include <string>

namespace maru::replay {

bool is_lct(std::span<const std::byte> bytes);

// The calls of one trace, added to `recordings`. Any bytes are safe; a frame that is cut or damaged counts in torn_bytes, a
// call that this program does not know in `unknown`. Errors: EBADMSG the header is none, or of another version, level, schema.
Result<void> add_lct(std::span<const std::byte> bytes, const std::string& name, Recordings& recordings);

struct Lct {
  std::string bytes;
  uint64_t left_out = 0;  // calls that such a trace has no form for, and those that failed
};
// `schema`: 1 or 2.
Lct lct_of(const Recordings& recordings, uint32_t schema);

}  // namespace maru::replay
