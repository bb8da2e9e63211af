// Any bytes as a recording of calls: read or refused, and what is read agrees with itself.
#include "daemon/tools/replay/recording.h"
#include "tests/fuzz/target.h"

#include <span>

namespace maru::fuzz {
namespace {

using namespace maru::replay;
using format::Record;
using format::Recorded;
using format::RecordingHeader;

template <typename T>
void append(Input& bytes, const T& value) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(value));
}

void append_call(Input& bytes, Recorded operation, uint32_t keys, int result, uint64_t block, bool has_parent) {
  Record record = {};
  record.magic = format::kRecordMagic;
  record.bytes = uint32_t(sizeof(record) + (keys + has_parent) * sizeof(RecordedKey));
  record.operation = operation;
  record.flags = has_parent ? Record::kParentKey : 0;
  record.keys = keys;
  record.result = result;
  record.payload_bytes = keys * 4096;
  record.block = block;
  record.parent = has_parent ? 0 : 7;
  append(bytes, record);
  for (uint64_t i = 0; i < keys + has_parent; ++i) append(bytes, RecordedKey{i, block});
}

}  // namespace

std::vector<Input> first_inputs() {
  Input bytes;
  append(bytes, RecordingHeader{format::kRecordingMagic, format::kRecordingVersion, sizeof(RecordingHeader), 1, 0, 0, 0, 0, 0});
  append_call(bytes, Recorded::kMatch, 3, 2, 7, false);
  append_call(bytes, Recorded::kStoreChain, 2, 2, 9, false);
  append_call(bytes, Recorded::kStore, 1, 0, 11, true);
  append_call(bytes, Recorded::kDelete, 1, 0, 0, false);
  bytes.insert(bytes.end(), 128, 0);
  return {bytes};
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  // In memory of just that size, so that a read beyond is seen.
  const std::vector<uint8_t> input(data, data + size);
  Recordings recordings;
  if (!add_recording(std::as_bytes(std::span(input)), "input", recordings)) {
    must(recordings.calls.empty(), "calls of a recording that was refused");
    return 0;
  }
  uint64_t keys = 0;
  for (const RecordedCall& call : recordings.calls) {
    must(call.actor < recordings.actors, "an actor that is not counted");
    keys += call.keys.size();
  }
  must(recordings.calls.size() * sizeof(Record) + keys * sizeof(RecordedKey) <= size, "more than the input has");
  must(recordings.torn_bytes <= size, "more torn bytes than there are");
  return 0;
}
