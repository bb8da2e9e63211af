// A pool written today is the pool that was written when the golden files were made, word by word; and the pools in the files
// can be read. MARU_GOLDEN names the directory of the files; MARU_GOLDEN_WRITE, if set, a directory for the present pools.
//
// The file is text: lines of `offset word`, both hexadecimal, of every 64-bit word that is not zero; # begins a comment.
#include "tests/unit/small_pool.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

namespace maru::shm {
namespace {

using Words = std::map<uint64_t, uint64_t>;

// Eight pages in two regions, three lanes; a root of two pages with a byte key, and a child of one page under it with a
// ready-made digest. Lane 1 pins the child. docs/format.md walks through it.
// Without metadata they are pools of minor version 1, as each file was written: of such a pool every word stays as it was.
enum class Kind : uint8_t { kPlain, kUnboundChecksums, kBoundChecksums, kMetadata };
constexpr Kind kKinds[] = {Kind::kPlain, Kind::kUnboundChecksums, Kind::kBoundChecksums, Kind::kMetadata};
const char* file_name(Kind kind) {
  switch (kind) {
    case Kind::kPlain: return "/control_region_v1.txt";
    case Kind::kUnboundChecksums: return "/control_region_v1_checksums.txt";
    case Kind::kBoundChecksums: return "/control_region_v1_bound_checksums.txt";
    case Kind::kMetadata: return "/control_region_v1_2.txt";
  }
  return "";
}

PoolShape golden_shape(Kind kind) {
  return {.pages = 8,
          .region_pages = 4,
          .lanes = 3,
          .pins_max = 8,
          .touch_entries = 8,
          .key_inline_bytes = 32,
          .key_extents = 1,
          .checksums = kind != Kind::kPlain};
}

constexpr std::string_view kMetadata = "layers 0 to 3";  // of the root, in the pool that has it
constexpr uint64_t kStored = 1'700'000'060'000;          // a minute after the pool was made

struct Golden {
  SmallPool pool;
  PageRef root, child;

  explicit Golden(Kind kind) : pool(golden_shape(kind)) {
    if (kind == Kind::kUnboundChecksums) make_older(1, format::kIncompatBoundChecksums | format::kIncompatMetadata);
    if (kind == Kind::kPlain || kind == Kind::kBoundChecksums) make_older(1, format::kIncompatMetadata);
    pool.region.host(0).epoch.store_relaxed(1);
    pool.stop_using_lane(2);
    pool.region.region(1).word.store_relaxed(0);
    for (uint32_t page = 4; page < 8; ++page) pool.set_word(page, PageWord::out(0));

    NewBlock block = pool.block("hello");
    block.length = 5000;
    block.now_ms = kStored;
    if (pool.region.has_checksums()) block.payload_checksum = payload_checksum(bytes_of("the payload of hello"));
    if (kind == Kind::kMetadata) {
      block.metadata_bytes = kMetadata.size();
      block.metadata_checksum = payload_checksum(bytes_of(kMetadata));
    }
    root = publish(pool.lane(1), pool.take(1, 2), block).block;

    const uint64_t words[2] = {1, 2};
    block = {};
    block.digest = digest_of_128(pool.region.secret(), words[0], words[1], 0);
    block.key = std::as_bytes(std::span(words));
    block.key_kind = 1;
    block.length = 4096;
    block.parent = root;
    block.now_ms = kStored;
    if (pool.region.has_checksums()) block.payload_checksum = payload_checksum(bytes_of("the payload of 1, 2"));
    block.expires_ms = kStored + 3'600'000;
    child = publish(pool.lane(1), pool.take(1), block).block;
    EXPECT_EQ(pool.client(1).pins.pin(child).status, PinStatus::kPinned);
  }
  // As every pool that a version before these flags formatted.
  void make_older(uint32_t version_minor, uint64_t without_flags) {
    format::Header header;
    std::memcpy(&header, pool.memory().data(), sizeof(header));
    header.version_minor = version_minor;
    header.incompat_flags &= ~without_flags;
    header.checksum = header_checksum(header);
    std::memcpy(pool.memory().data(), &header, sizeof(header));
    EXPECT_EQ(ControlRegion::attach(pool.memory(), uint64_t{1} << 40, &pool.region), nullptr);
  }
};

Words words_of(std::span<const std::byte> memory) {
  Words words;
  for (size_t at = 0; at < memory.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, memory.data() + at, 8);
    if (word != 0) words[at] = word;
  }
  return words;
}

const char* section_name(const ControlRegion& region, uint64_t offset) {
  static constexpr const char* kNames[] = {"hosts",   "regions",   "lane identities", "policy",   "tenants",  "blocks",
                                           "details", "key bytes", "key extents",     "registry", "overflow", "lanes"};
  const char* name = "header";
  for (uint32_t i = 0; i < format::kSectionCount; ++i)
    if (offset >= region.layout().sections[i].offset) name = kNames[i];
  return name;
}

std::string text_of(const ControlRegion& region, const Words& words) {
  std::string text =
      "# The control region of tests/golden/golden_test.cc: offset and value of each word that is not zero.\n";
  std::string section;
  for (const auto& [offset, word] : words) {
    if (section != section_name(region, offset)) text += "# " + (section = section_name(region, offset)) + "\n";
    char line[40];
    std::snprintf(line, sizeof(line), "%06llx %016llx\n", static_cast<unsigned long long>(offset),
                  static_cast<unsigned long long>(word));
    text += line;
  }
  return text;
}

Words read_golden(Kind kind) {
  const char* directory = std::getenv("MARU_GOLDEN");
  std::ifstream file((directory ? directory : "tests/golden") + std::string(file_name(kind)));
  EXPECT_TRUE(file) << "MARU_GOLDEN does not name the directory of the golden files";
  Words words;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    uint64_t offset = 0, word = 0;
    fields >> std::hex >> offset >> word;
    EXPECT_TRUE(fields) << line;
    words[offset] = word;
  }
  return words;
}

class GoldenFile : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, GoldenFile, ::testing::ValuesIn(kKinds));

TEST_P(GoldenFile, ThePoolOfTodayIsTheOneInTheFile) {
  Golden today(GetParam());
  const Words words = words_of(today.pool.memory());
  if (const char* directory = std::getenv("MARU_GOLDEN_WRITE"))
    std::ofstream(directory + std::string(file_name(GetParam()))) << text_of(today.pool.region, words);
  const Words golden = read_golden(GetParam());
  for (const auto& [offset, word] : golden) {
    const auto at = words.find(offset);
    EXPECT_EQ(at == words.end() ? 0 : at->second, word)
        << section_name(today.pool.region, offset) << " at " << std::hex << offset;
  }
  for (const auto& [offset, word] : words)
    EXPECT_TRUE(golden.contains(offset)) << section_name(today.pool.region, offset) << " at " << std::hex << offset;
}

TEST_P(GoldenFile, IsReadableAndInOrder) {
  Golden today(GetParam());  // for its memory and its private pin counts, which lie in no file
  std::memset(today.pool.memory().data(), 0, today.pool.memory().size());
  for (const auto& [offset, word] : read_golden(GetParam())) {
    ASSERT_LE(offset + 8, today.pool.memory().size());
    std::memcpy(today.pool.memory().data() + offset, &word, 8);
  }
  ControlRegion region;
  ASSERT_EQ(ControlRegion::attach(today.pool.memory(), uint64_t{1} << 40, &region), nullptr);
  EXPECT_EQ(today.pool.audit(), Names{});
  EXPECT_EQ(find_unpinned(region, digest_of_bytes(region.secret(), bytes_of("hello"), 0)), today.root);
  EXPECT_EQ(find_unpinned(region, digest_of_128(region.secret(), 1, 2, 0)), today.child);
  KeyBytes key;
  ASSERT_TRUE(read_key(region, today.root, &key));
  EXPECT_EQ(std::memcmp(key.data, "hello", 5), 0);
  EXPECT_TRUE(is_pinned(region, LaneSet::in_use(region), today.child.page()));
  EXPECT_FALSE(is_pinned(region, LaneSet::in_use(region), today.root.page()));
  const bool has_metadata = GetParam() == Kind::kMetadata;
  EXPECT_EQ(region.has_metadata(), has_metadata);
  EXPECT_EQ(format::payload_bytes_of(region.block(today.root.page()).length.load_relaxed()), 5000u);
  EXPECT_EQ(metadata_of(region, today.root.page()).bytes, has_metadata ? kMetadata.size() : 0);
  EXPECT_EQ(metadata_of(region, today.child.page()).bytes, 0u);
  if (!region.has_checksums()) return;
  // A payload under its own key, and under the other block's.
  const uint64_t sum = payload_checksum(bytes_of("the payload of hello"));
  const Digest hello = digest_of_bytes(region.secret(), bytes_of("hello"), 0);
  const auto fits = [&](const Digest& digest, uint64_t payload_sum, std::string_view metadata) {
    const uint64_t metadata_sum = metadata.empty() ? 0 : payload_checksum(bytes_of(metadata));
    return fits_checksum(region, today.root.page(), {digest, 5000, payload_sum, metadata_sum});
  };
  const std::string_view metadata = has_metadata ? kMetadata : "";
  EXPECT_TRUE(fits(hello, sum, metadata));
  EXPECT_FALSE(fits(hello, sum + 1, metadata));
  const Digest other = digest_of_128(region.secret(), 1, 2, 0);
  EXPECT_EQ(fits(other, sum, metadata), GetParam() == Kind::kUnboundChecksums);
  EXPECT_EQ(fits(hello, sum, "layers 0 to 4"), GetParam() == Kind::kUnboundChecksums);
}

}  // namespace
}  // namespace maru::shm
