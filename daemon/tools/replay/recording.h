// Reads recordings (maru/format/recording.h) of one or several processes, as calls in the order of their ends.
#pragma once

#include "libmaru/base/result.h"
#include "maru/format/recording.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace maru::replay {

using format::RecordedKey;

struct RecordedCall {
  format::Recorded operation{};
  uint32_t actor = 0;  // the thread of a client of a process, numbered from 0
  int32_t result = 0;  // as format::Record has it
  uint64_t at_ns = 0;  // since the first call of all
  uint64_t took_ns = 0;
  uint64_t block_bytes = 0;  // of each block of a store
  std::vector<RecordedKey> keys;
  std::optional<RecordedKey> parent;  // of a store
};

struct Recordings {
  std::vector<RecordedCall> calls;
  uint32_t actors = 0;
  uint64_t torn_bytes = 0;       // between records: processes died in the middle of a record
  uint64_t dropped = 0;          // calls that no longer had room in a file
  uint64_t parents_unknown = 0;  // stores below a block that no recorded call named; they are played as roots
  uint64_t unknown = 0;          // calls of LMCache without a counterpart here
  uint64_t begun_unix_ns = 0;    // time of the first call, by the clock of the day; 0: not known
};

// Also storage traces of LMCache (lct.h). Errors: of the system; EBADMSG a file is no recording, or of another version.
Result<Recordings> read_recordings(std::span<const std::string> paths);

// Adds the records in one file's bytes to `recordings`. Any bytes are safe.
Result<void> add_recording(std::span<const std::byte> bytes, const std::string& name, Recordings& recordings);

// The calls as one recording. Blocks have no numbers in it: a store names its parent by key.
std::string recording_of(const Recordings& recordings);

}  // namespace maru::replay
