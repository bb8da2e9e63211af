// A recording: the calls that one process made to libmaru, as libmaru-record.so writes them and maru-replay plays them.
//
// A file has a header and records, one behind the other, roughly in the order in which the calls ended: threads write at once.
// Numbers have the byte order of the machine. A record begins with its magic and its length. A process that died in the middle
// of a record leaves a place without a magic: a reader goes on by 8 bytes until it meets the next magic. A reader comes when
// the process has ended: until then the keys of a record may still be on their way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace maru::format {

constexpr uint64_t kRecordingMagic = 0x3143'4552'5552'414D;  // "MARUREC1"
constexpr uint32_t kRecordMagic = 0x5243'4452;               // "RDCR"
constexpr uint32_t kRecordingVersion = 1;

struct RecordingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;   // where the first record begins
  uint64_t process;        // its number
  uint64_t begun_unix_ns;  // by the clock of the day
  uint64_t begun_ns;       // by the monotonic clock, which `at_ns` of a record counts on
  uint64_t end;            // of the last record; 0: the process was killed, and the last record is the one before zeros
  uint64_t dropped;        // calls that were not recorded, because the file had its full size
  uint64_t reserved;
};
static_assert(sizeof(RecordingHeader) == 64 && std::has_unique_object_representations_v<RecordingHeader>);

enum class Recorded : uint8_t {
  kAttach = 1,
  kDetach,
  kExists,  // also of many, and maru_which
  kMatch,
  kRetrieve,  // also of many
  kPin,       // likewise
  kRelease,   // likewise, and of a match
  kAlloc,     // likewise; payload_bytes: of all buffers
  kAbort,
  kStore,  // one, or several that are no chain; also with a copy of the data
  kStoreChain,
  kDelete,
  kDeleteTree
};

struct Record {
  enum Flags : uint8_t {
    kParentKey = 1,  // a digest of the parent's key follows the digests of the keys
    kSizes = 2       // then a length (64 bits) for each key: they differ
  };

  uint32_t magic;  // written last
  uint32_t bytes;  // of the record, with its keys and sizes; a multiple of 8
  Recorded operation;
  uint8_t flags;
  uint16_t client;  // tells the clients of a process apart
  uint32_t thread;  // the kernel's number
  int32_t result;   // of the call; below 0: -errno. kExists, kRetrieve, kPin: the keys that were present; kMatch: the
                    // leading keys that were; kStoreChain: the keys that are present after it
  uint32_t keys;    // digests that follow
  uint64_t at_ns;   // when it began
  uint64_t took_ns;
  uint64_t payload_bytes;  // of the stored or allocated payloads, all together
  uint64_t block;          // the block that was stored last, or the deepest of a match; else 0
  uint64_t parent;         // the block that was given as the parent, else 0
};
static_assert(sizeof(Record) == 64 && std::has_unique_object_representations_v<Record>);

// A key's digest, equal for equal keys in all processes. A key of 128 bits is its own digest. A key of 256 bits has the
// exclusive or of its halves. Both have the tenant by exclusive or in `high`. Other keys have XXH3 of 128 bits over the bytes,
// seeded with tenant and kind.
struct RecordedKey {
  uint64_t low, high;
};

}  // namespace maru::format
