// Any bytes as a recording of calls, or as a storage trace of LMCache: read or refused, and what is read agrees with itself. A
// trace that is written of what was read has the same calls again.
#include "daemon/tools/replay/lct.h"
#include "daemon/tools/replay/recording.h"
#include "tests/fuzz/target.h"

#include <algorithm>
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
  append(bytes, RecordingHeader{format::kRecordingMagic, format::kRecordingVersion, sizeof(RecordingHeader), 1, 0, 0, 0,
                                0, 0});
  append_call(bytes, Recorded::kMatch, 3, 2, 7, false);
  append_call(bytes, Recorded::kStoreChain, 2, 2, 9, false);
  append_call(bytes, Recorded::kStore, 1, 0, 11, true);
  append_call(bytes, Recorded::kDelete, 1, 0, 0, false);
  bytes.insert(bytes.end(), 128, 0);
  Recordings calls;
  calls.begun_unix_ns = 1'700'000'000'000'000'000;
  for (const Recorded operation : {Recorded::kMatch, Recorded::kStore, Recorded::kRetrieve, Recorded::kMatch}) {
    RecordedCall& call = calls.calls.emplace_back();
    call.operation = operation;
    call.at_ns = calls.calls.size() * 1'000'000;
    call.took_ns = 1000;
    call.block_bytes = 4096;
    call.keys = {{1, 2}, {3, calls.calls.size() / 4}};
  }
  std::vector<Input> inputs = {bytes};
  for (const uint32_t schema : {1u, 2u}) {
    const std::string trace = lct_of(calls, schema).bytes;
    inputs.emplace_back(trace.begin(), trace.end());
  }
  return inputs;
}

bool is_in_a_trace(const RecordedCall& call) {
  return !call.keys.empty() && (call.operation == Recorded::kStore || call.operation == Recorded::kMatch ||
                                call.operation == Recorded::kRetrieve);
}

uint64_t keys_in_traces(const Recordings& recordings) {
  uint64_t keys = 0;
  for (const RecordedCall& call : recordings.calls) keys += is_in_a_trace(call) ? call.keys.size() : 0;
  return keys;
}

void use_trace(std::span<const std::byte> bytes) {
  Recordings recordings;
  if (!add_lct(bytes, "input", recordings)) {
    must(recordings.calls.empty(), "calls of a trace that was refused");
    return;
  }
  must(recordings.actors == 1, "a trace is one thread's");
  must(recordings.torn_bytes <= bytes.size(), "more torn bytes than there are");
  for (const RecordedCall& call : recordings.calls)
    must(call.result >= 0 && size_t(call.result) <= std::max<size_t>(call.keys.size(), 1), "a result of other keys");
  const Lct written = lct_of(recordings, 2);
  Recordings again;
  must(add_lct(std::as_bytes(std::span(written.bytes)), "written", again).has_value(), "a trace that was just written");
  must(again.torn_bytes == 0 && again.unknown == 0, "a trace that was just written is damaged");
  must(keys_in_traces(again) == keys_in_traces(recordings), "calls were lost on the way");
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  // In memory of just that size, so that a read beyond is seen.
  const std::vector<uint8_t> input(data, data + size);
  if (is_lct(std::as_bytes(std::span(input)))) return use_trace(std::as_bytes(std::span(input))), 0;
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
