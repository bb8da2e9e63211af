// Storage traces of LMCache's server (.lct, schema 1 and 2): reads them as recorded calls, and writes recorded calls as traces.
//
// A file is a row of frames. Each frame is a length of 32 bits, most significant byte first, and a map in MessagePack. First
// comes a header, then a record for each call of LMCache's storage manager, when the call began. The records become:
//
//   reserve_write, then finish_write of its keys        a store, from the first to the second
//   submit_prefetch_task                                a match
//   read_prefetched_results.__enter__                   a retrieve
//   read_prefetched_results.__exit__, finish_read_prefetched  a release
//
// A trace has no results. Recorded calls get the results of an endless cache: each block that was stored before is present. A
// trace tells neither threads nor chains: all calls belong to one thread, and blocks have no parents.
//
// A key becomes a digest of 128 bits of its hash, model, rank and group. A key that lct_of() wrote becomes itself again.
#pragma once

#include "daemon/tools/replay/recording.h"

#include <cstdint>
#include <string>

namespace maru::replay {

bool is_lct(std::span<const std::byte> bytes);

// Adds the calls of one trace to `recordings`. Any bytes are safe: a cut or damaged frame counts in torn_bytes, and an unknown
// call counts in `unknown`. Errors: EBADMSG there is no header, or its version, level or schema is another.
Result<void> add_lct(std::span<const std::byte> bytes, const std::string& name, Recordings& recordings);

struct Lct {
  std::string bytes;
  uint64_t left_out = 0;  // failed calls, and calls that have no form in such a trace
};
// `schema`: 1 or 2.
Lct lct_of(const Recordings& recordings, uint32_t schema);

}  // namespace maru::replay
