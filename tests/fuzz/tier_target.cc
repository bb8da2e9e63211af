// What maru-tierd reads from devices, servers and clients: a region of the file tier's log, an entry's attributes, a head from
// Redis, and a question on its socket. The first byte says which. What verifies lies within what was read.
#include "daemon/tierd/attributes.h"
#include "daemon/tierd/prefetch_door.h"
#include "daemon/tierd/tiers/file/recovery.h"
#include "daemon/tierd/tiers/resp_value.h"
#include "tests/fuzz/target.h"

#include <cstring>
#include <string>

namespace maru::fuzz {
namespace {

using namespace maru::tierd;

constexpr unsigned kForms = 4;
enum Form : unsigned { kRegion, kAttributes, kHead, kQuestion };
constexpr LogId kId = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr uint64_t kSequence = 7, kRegionBytes = 32 * kLogBlock, kPieceBytes = 3 * kLogBlock;
constexpr std::string_view kKey = "a key";

// Records, then a footer if it is wanted: what a region that was closed has.
std::vector<std::byte> region_of(unsigned records, bool has_footer) {
  std::vector<std::byte> region(kRegionBytes);
  write_region_header(std::span(region).first(kLogBlock), kId, 0, kSequence);
  std::vector<LogEntry> entries;
  uint64_t at = kLogBlock;
  for (unsigned i = 0; i < records; ++i) {
    LogEntry entry;
    entry.key = "key " + std::to_string(i);
    entry.sequence = 10 + i;
    entry.payload_bytes = 100 + 3000 * i;
    entry.attributes_bytes = 5;
    entry.region_offset = at;
    std::byte* const payload = region.data() + at + entry.header_bytes();
    std::memset(payload, int(i), entry.payload_bytes);
    entry.payload_checksum = checksum_of(payload, entry.payload_bytes);
    write_record_header(std::span(region).subspan(at, entry.header_bytes()), kId, kSequence, entry, "about");
    at += entry.record_bytes();
    entries.push_back(std::move(entry));
  }
  if (!has_footer) return region;
  const auto footer = make_footer(kId, kSequence, kRegionBytes, entries);
  std::copy(footer.begin(), footer.end(), region.end() - ptrdiff_t(footer.size()));
  return region;
}

void must_lie_within(const std::vector<LogEntry>& entries) {
  for (const LogEntry& entry : entries)
    must(entry.region_offset >= kLogBlock && entry.payload_bytes <= kRegionBytes &&
             entry.region_offset + entry.record_bytes() <= kRegionBytes,
         "an entry beyond its region");
}

// What was changed in a region: positions and bytes, so that small inputs change large regions.
void read_region(Reader& reader) {
  std::vector<std::byte> region = region_of(unsigned(reader.number(1) % 6), reader.number(1) % 2 != 0);
  while (!reader.is_over()) {
    const uint64_t at = reader.number(3) % region.size();
    for (const uint8_t byte : reader.bytes(reader.number(1) % 16 + 1))
      region[std::min(at, region.size() - 1)] ^= std::byte(byte);
  }
  uint64_t torn = 0, torn_in_pieces = 0;
  const std::vector<LogEntry> whole = scan_region(region, kId, kSequence, &torn);
  must_lie_within(whole);
  std::vector<LogEntry> in_pieces;
  for (uint64_t offset = 0, bytes = kPieceBytes; offset < kRegionBytes;) {
    bytes = std::min(bytes, kRegionBytes - offset);
    const uint64_t next = scan_piece(std::span(region).subspan(offset, bytes), offset, kRegionBytes, kId, kSequence,
                                     in_pieces, &torn_in_pieces);
    must(next > offset || bytes < kRegionBytes - offset, "a scan that stands still");
    bytes = next > offset ? kPieceBytes : kRegionBytes;
    offset = next;
  }
  must(in_pieces.size() == whole.size() && torn_in_pieces == torn, "other records in pieces than in the whole");
  const auto trailer = read_trailer(std::span(region).last(kLogBlock), kId, kSequence, kRegionBytes);
  if (!trailer) return;
  must(trailer->footer_offset < kRegionBytes, "a footer beyond its region");
  const auto entries = read_footer(std::span(region).subspan(trailer->footer_offset), kId, *trailer, kRegionBytes);
  if (entries) must_lie_within(*entries);
  (void)read_superblock(region);
}

}  // namespace

std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  for (const unsigned records : {0u, 1u, 5u})
    for (const unsigned has_footer : {0u, 1u})
      inputs.push_back(Writer().number(kRegion, 1).number(records, 1).number(has_footer, 1).take());
  Attributes attributes;
  attributes.payload_bytes = 100;
  attributes.parent = "parent";
  attributes.metadata = "metadata";
  inputs.push_back(Writer().number(kAttributes, 1).bytes(encode_attributes(attributes, kKey)).take());
  inputs.push_back(Writer().number(kHead, 1).bytes(encode_resp_head({100, 7, 64, 9, 11, "about"}, kKey)).take());
  Writer question;
  question.number(kQuestion, 1).number(2, 4).number(0, 4).number(100, 4).number(0, 20);
  for (const char* key : {"12345678", "abc"}) {
    question.number(std::strlen(key), 4).number(0, 4).number(0, 8).bytes(std::string_view(key));
    if (std::strlen(key) % 8 != 0) question.number(0, unsigned(8 - std::strlen(key) % 8));
  }
  inputs.push_back(question.take());
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  Reader reader(data, size);
  const auto form = Form(reader.number(1) % kForms);
  if (form == kRegion) return read_region(reader), 0;
  const std::vector<uint8_t> rest = reader.bytes(reader.left());
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (form == kAttributes) {
    const auto found = decode_attributes(text, kKey);
    must(!found || found->parent.size() + found->metadata.size() < rest.size(), "attributes larger than their bytes");
  } else if (form == kHead) {
    const auto found = decode_resp_head(text, kKey);
    must(!found || found->chunks() <= kRespChunksMax, "a head with too many chunks");
  } else {
    const auto found = read_prefetch_request(std::as_bytes(std::span(rest)));
    must(!found || (!found->keys.empty() && found->keys.size() <= maru::prefetch::kKeysMax),
         "a question with a wrong number of keys");
    if (found)
      for (const auto& key : found->keys) must(!key.data.empty() && key.data.size() <= 4096, "a key of a wrong length");
  }
  return 0;
}
