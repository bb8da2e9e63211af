#include "daemon/tools/replay/recording.h"

#include "daemon/tools/replay/lct.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <unordered_map>

namespace maru::replay {
namespace {

using format::Record;
using format::Recorded;
using format::RecordingHeader;

constexpr uint32_t kKeysMax = 1u << 20;  // of one call
constexpr uint64_t kAllKeysMax = 1ull << 28;

bool is_store(Recorded operation) { return operation == Recorded::kStore || operation == Recorded::kStoreChain; }

// Reads the rest of a record behind its header, within the record's length.
bool read_body(std::span<const std::byte> body, const Record& record, RecordedCall& call) {
  const bool has_parent = (record.flags & Record::kParentKey) != 0, has_sizes = (record.flags & Record::kSizes) != 0;
  if (record.keys > kKeysMax) return false;
  const size_t keys = record.keys * sizeof(RecordedKey), parent = has_parent ? sizeof(RecordedKey) : 0;
  const size_t sizes = has_sizes ? size_t(record.keys) * 8 : 0;
  if (keys + parent + sizes != body.size()) return false;
  call.keys.resize(record.keys);
  if (keys != 0) std::memcpy(call.keys.data(), body.data(), keys);
  if (has_parent) std::memcpy(&call.parent.emplace(), body.data() + keys, parent);
  return true;
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, Recordings& recordings) : bytes_(bytes), recordings_(recordings) {}

  Result<void> read(const std::string& name);

 private:
  void add(const Record& record, std::span<const std::byte> body);
  uint32_t actor_of(const Record& record);
  void name_parent(const Record& record, RecordedCall& call);

  const std::span<const std::byte> bytes_;
  Recordings& recordings_;
  std::map<std::pair<uint16_t, uint32_t>, uint32_t> actors_;
  std::unordered_map<uint64_t, RecordedKey> keys_of_blocks_;
  uint64_t keys_ = 0;
};

Result<void> Reader::read(const std::string& name) {
  RecordingHeader header;
  if (bytes_.size() < sizeof(header))
    return failure(EBADMSG, "read " + name + ": it has " + std::to_string(bytes_.size()) +
                                " bytes, a recording at least " + std::to_string(sizeof(header)));
  std::memcpy(&header, bytes_.data(), sizeof(header));
  if (header.magic != format::kRecordingMagic)
    return failure(EBADMSG, "read " + name + ": this is no recording (MARU_RECORD of libmaru-record makes one)");
  if (header.version != format::kRecordingVersion || header.header_bytes < sizeof(header) ||
      header.header_bytes % 8 != 0)
    return failure(EBADMSG, "read " + name + ": it has version " + std::to_string(header.version) +
                                ", and this program reads " + std::to_string(format::kRecordingVersion));
  recordings_.dropped += header.dropped;
  if (recordings_.begun_unix_ns == 0) recordings_.begun_unix_ns = header.begun_unix_ns;
  uint64_t blank = 0;  // bytes since the last record
  for (size_t at = header.header_bytes; at + sizeof(Record) <= bytes_.size();) {
    Record record;
    std::memcpy(&record, bytes_.data() + at, sizeof(record));
    const bool is_whole = record.magic == format::kRecordMagic && record.bytes >= sizeof(record) &&
                          record.bytes % 8 == 0 && record.bytes <= bytes_.size() - at;
    if (!is_whole) {
      at += 8;
      blank += 8;
      continue;
    }
    recordings_.torn_bytes += std::exchange(blank, 0);  // zeros behind the last record are room
    add(record, bytes_.subspan(at + sizeof(record), record.bytes - sizeof(record)));
    at += record.bytes;
  }
  return {};
}

void Reader::add(const Record& record, std::span<const std::byte> body) {
  RecordedCall call;
  call.operation = record.operation;
  call.result = record.result;
  call.at_ns = record.at_ns;
  call.took_ns = record.took_ns;
  if (!read_body(body, record, call) || (keys_ += call.keys.size()) > kAllKeysMax) {
    recordings_.torn_bytes += sizeof(record) + body.size();
    return;
  }
  if (is_store(record.operation)) {
    if (!call.keys.empty()) call.block_bytes = record.payload_bytes / call.keys.size();
    name_parent(record, call);
  }
  const bool has_deepest =
      record.operation == Recorded::kMatch && record.result > 0 && size_t(record.result) <= call.keys.size();
  if (record.block != 0 && has_deepest) keys_of_blocks_[record.block] = call.keys[size_t(record.result) - 1];
  if (record.block != 0 && is_store(record.operation) && record.result >= 0 && !call.keys.empty()) {
    const size_t last = record.operation == Recorded::kStoreChain ? size_t(record.result) - 1 : 0;
    if (last < call.keys.size()) keys_of_blocks_[record.block] = call.keys[last];
  }
  call.actor = actor_of(record);
  recordings_.calls.push_back(std::move(call));
}

void Reader::name_parent(const Record& record, RecordedCall& call) {
  if (call.parent || record.parent == 0) return;
  const auto found = keys_of_blocks_.find(record.parent);
  if (found != keys_of_blocks_.end())
    call.parent = found->second;
  else
    ++recordings_.parents_unknown;
}

uint32_t Reader::actor_of(const Record& record) {
  const auto [place, is_new] = actors_.try_emplace({record.client, record.thread}, recordings_.actors);
  if (is_new) ++recordings_.actors;
  return place->second;
}

}  // namespace

Result<void> add_recording(std::span<const std::byte> bytes, const std::string& name, Recordings& recordings) {
  return Reader(bytes, recordings).read(name);
}

Result<Recordings> read_recordings(std::span<const std::string> paths) {
  Recordings recordings;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) return failure(errno, "open " + path);
    std::vector<std::byte> bytes(size_t(file.tellg()));
    file.seekg(0);
    if (!file.read(reinterpret_cast<char*>(bytes.data()), std::streamsize(bytes.size())))
      return failure(EIO, "read " + path);
    const auto added = is_lct(bytes) ? add_lct(bytes, path, recordings) : add_recording(bytes, path, recordings);
    if (!added) return tl::unexpected(added.error());
  }
  auto& calls = recordings.calls;
  std::stable_sort(calls.begin(), calls.end(), [](const RecordedCall& a, const RecordedCall& b) {
    return a.at_ns + a.took_ns < b.at_ns + b.took_ns;
  });
  uint64_t first = UINT64_MAX;
  for (const RecordedCall& call : calls) first = std::min(first, call.at_ns);
  for (RecordedCall& call : calls) call.at_ns -= first;
  return recordings;
}

std::string recording_of(const Recordings& recordings) {
  std::string out;
  const auto put = [&](const void* data, size_t bytes) { out.append(static_cast<const char*>(data), bytes); };
  RecordingHeader header = {};
  put(&header, sizeof(header));
  for (const RecordedCall& call : recordings.calls) {
    Record record = {};
    record.magic = format::kRecordMagic;
    record.bytes = uint32_t(sizeof(record) + (call.keys.size() + (call.parent ? 1 : 0)) * sizeof(RecordedKey));
    record.operation = call.operation;
    record.flags = call.parent ? Record::kParentKey : 0;
    record.thread = call.actor + 1;
    record.result = call.result;
    record.keys = uint32_t(call.keys.size());
    record.at_ns = call.at_ns;
    record.took_ns = call.took_ns;
    record.payload_bytes = call.block_bytes * call.keys.size();
    put(&record, sizeof(record));
    put(call.keys.data(), call.keys.size() * sizeof(RecordedKey));
    if (call.parent) put(&*call.parent, sizeof(RecordedKey));
  }
  header.magic = format::kRecordingMagic;
  header.version = format::kRecordingVersion;
  header.header_bytes = sizeof(header);
  header.begun_unix_ns = recordings.begun_unix_ns;
  header.end = out.size();
  out.replace(0, sizeof(header), reinterpret_cast<const char*>(&header), sizeof(header));
  return out;
}

}  // namespace maru::replay
