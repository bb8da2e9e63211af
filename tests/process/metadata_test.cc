// Metadata of blocks between real processes' clients: stored in every way, read from every kind of view, refused by name.
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

namespace maru::test {
namespace {

constexpr uint64_t kPageBytes = 4096;

maru_metadata metadata_of(std::string_view text) { return {text.data(), uint32_t(text.size()), 0}; }

maru_store_options with(const maru_metadata* metadata) {
  maru_store_options options{};
  options.size = sizeof(options);
  options.metadata = metadata;
  return options;
}

// Of a view: the metadata, or the error in brackets.
std::string described(maru_client* client, const maru_view& view) {
  maru_metadata metadata = {"", 77, 77};
  const int result = maru_view_metadata(client, &view, &metadata);
  if (result != 0) return "(" + std::to_string(result) + ")";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(metadata.data) % 64, 0u);
  EXPECT_EQ(metadata.reserved0, 0u);
  return std::string(static_cast<const char*>(metadata.data), metadata.bytes);
}

class Metadata : public ::testing::TestWithParam<bool> {
 protected:
  Metadata()
      : marud_({pool()}), client_(marud_.socket_path()), reader_(marud_.socket_path()), map_(marud_.socket_path()) {}
  static PoolWish pool() {
    PoolWish pool;
    pool.checksums = GetParam();
    return pool;
  }
  int copy(std::string_view key, std::string_view text, const std::string& description,
           maru_block* ret_block = nullptr) {
    const maru_metadata metadata = metadata_of(description);
    const maru_store_options options = with(&metadata);
    const maru_key k = key_of(key);
    return maru_store_copy(client_, &k, text.data(), text.size(), &options, ret_block);
  }
  std::string read(std::string_view key) {
    maru_view view{};
    const int result = reader_.retrieve(key, &view);
    if (result != 0) return "<" + std::to_string(result) + ">";
    const std::string text = described(reader_, view);
    EXPECT_EQ(reader_.release(view), 0);
    return text;
  }
  // A refused store leaves no pin, and no page beside those of blocks and caches.
  void expect_baseline(uint64_t blocks_pages) {
    EXPECT_EQ(client_.statistics().pins, 0u);
    EXPECT_EQ(reader_.statistics().pins, 0u);
    const auto pages = map_.count_pages();
    EXPECT_EQ(pages[format::PageState::kReserved], client_.statistics().pages_cached) << pages.text();
    EXPECT_EQ(pages[format::PageState::kReady] + pages[format::PageState::kTail], blocks_pages) << pages.text();
  }

  MarudProcess marud_;
  TestClient client_, reader_;
  ControlMap map_;
};
INSTANTIATE_TEST_SUITE_P(Checksums, Metadata, ::testing::Bool());

TEST_P(Metadata, AReaderGetsItFromEveryKindOfView) {
  maru_block block = 0;
  ASSERT_EQ(copy("k", "payload", "layers 0 to 3", &block), 0);
  ASSERT_EQ(client_.store("plain", "payload"), 0);
  EXPECT_EQ(read("k"), "layers 0 to 3");
  EXPECT_EQ(read("plain"), "");
  EXPECT_EQ(reader_.text("k"), "payload") << "the payload ends where it did";
  const maru_key keys[2] = {key_of("k"), key_of("plain")};
  maru_view views[2] = {};
  ASSERT_EQ(maru_retrieve_batch(reader_, keys, 2, views), 2);
  EXPECT_EQ(described(reader_, views[0]), "layers 0 to 3");
  EXPECT_EQ(described(reader_, views[1]), "");
  ASSERT_EQ(maru_release_batch(reader_, views, 2), 0);
  ASSERT_EQ(maru_pin(reader_, &keys[0], views), 0);
  EXPECT_EQ(described(reader_, views[0]), "layers 0 to 3");
  ASSERT_EQ(client_.remove("k"), 0);
  EXPECT_EQ(described(reader_, views[0]), "layers 0 to 3") << "it is pinned with its block";
  ASSERT_EQ(maru_unpin(reader_, views), 0);
  EXPECT_EQ(maru_pin_block(reader_, block, views), -ENOENT);
}

TEST_P(Metadata, OfAMatchEachBlockHasItsOwn) {
  const std::array<std::string, 3> names = {"a", "b", "c"}, texts = {"first", "", "third"};
  maru_key keys[3];
  maru_metadata metadata[3];
  maru_buffer buffers[3];
  ASSERT_EQ(maru_alloc_with_metadata(client_, kPageBytes, 5, 3, buffers), 0);
  for (size_t i = 0; i < 3; ++i) {
    keys[i] = key_of(names[i]);
    metadata[i] = metadata_of(texts[i]);
    std::memset(buffers[i].data, int(i), kPageBytes);
  }
  const maru_store_options options = with(metadata);
  size_t stored = 0, done = 0;
  ASSERT_EQ(maru_store_chain(client_, keys, buffers, 3, &options, nullptr, &stored, &done), 0);
  EXPECT_EQ(stored, 3u);
  maru_match match{};
  maru_view views[3];
  ASSERT_EQ(maru_match_prefix(reader_, keys, 3, &match), 0);
  ASSERT_EQ(match.blocks, 3u);
  ASSERT_EQ(maru_resolve(reader_, &match, keys, 3, views), 0);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(described(reader_, views[i]), texts[i]) << i;
    EXPECT_EQ(views[i].bytes, kPageBytes) << i;
  }
  ASSERT_EQ(maru_release_match(reader_, &match), 0);
  expect_baseline(6);
}

TEST_P(Metadata, InABatchEachBlockHasItsOwn) {
  const std::array<std::string, 4> names = {"a", "b", "c", "d"};
  const std::array<std::string, 4> texts = {"first", std::string(65'536, 'm'), std::string(65'537, 'm'), ""};
  maru_key keys[4];
  maru_metadata metadata[4];
  const void* data[4];
  uint64_t bytes[4];
  for (size_t i = 0; i < 4; ++i) {
    keys[i] = key_of(names[i]);
    metadata[i] = metadata_of(texts[i]);
    data[i] = names[i].data();
    bytes[i] = 1;
  }
  const maru_store_options options = with(metadata);
  int32_t results[4];
  ASSERT_EQ(maru_store_copy_batch(client_, keys, data, bytes, 4, &options, nullptr, results), 3);
  EXPECT_EQ(std::vector(results, results + 4), (std::vector<int32_t>{0, 0, -E2BIG, 0}));
  for (const size_t i : {0u, 1u, 3u}) EXPECT_EQ(read(names[i]), texts[i]) << i;
  expect_baseline(1 + 17 + 1);
  // The same of buffers.
  maru_buffer buffers[3];
  ASSERT_EQ(maru_alloc_batch(client_, kPageBytes, 3, buffers), 0);
  for (maru_buffer& buffer : buffers) buffer.bytes = 100;
  const std::array<std::string, 3> others = {"x", "y", "z"}, short_texts = {"one", std::string(4'000, 'm'), "three"};
  for (size_t i = 0; i < 3; ++i) {
    keys[i] = key_of(others[i]);
    metadata[i] = metadata_of(short_texts[i]);
  }
  ASSERT_EQ(maru_store_batch(client_, keys, buffers, 3, &options, nullptr, results), 2);
  EXPECT_EQ(std::vector(results, results + 3), (std::vector<int32_t>{0, -EMSGSIZE, 0}));
  EXPECT_EQ(read("x"), "one");
  EXPECT_EQ(read("z"), "three");
  ASSERT_EQ(maru_abort(client_, &buffers[1]), 0);
  expect_baseline(19 + 2);
}

TEST_P(Metadata, OfOneWhoKeepsReadingItsBufferIsInTheView) {
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc_with_metadata(client_, 100, 20, 1, &buffer), 0);
  std::memset(buffer.data, 1, 100);
  const std::string text = "kept by its publisher";
  const maru_metadata metadata = {text.data(), 20, 0};
  const maru_store_options options = with(&metadata);
  const maru_key key = key_of("k");
  maru_view view{};
  ASSERT_EQ(maru_store_pinned(client_, &key, &buffer, &options, &view), 0);
  EXPECT_EQ(described(client_, view), text.substr(0, 20));
  ASSERT_EQ(client_.release(view), 0);
  EXPECT_EQ(copy("k", "other", "of a block that loses"), 1);
  EXPECT_EQ(read("k"), text.substr(0, 20));
}

TEST_P(Metadata, WhatDoesNotFitIsRefusedByName) {
  const maru_key key = key_of("k");
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client_, kPageBytes, &buffer), 0);
  std::memset(buffer.data, 1, kPageBytes);
  const std::string long_text(65'537, 'm');
  const auto store = [&](const maru_metadata& metadata) {
    const maru_store_options options = with(&metadata);
    return maru_store(client_, &key, &buffer, &options, nullptr);
  };
  EXPECT_EQ(store({long_text.data(), 65'537, 0}), -E2BIG);
  EXPECT_EQ(store({long_text.data(), 65'536, 0}), -EMSGSIZE);
  EXPECT_EQ(store({long_text.data(), 1, 0}), -EMSGSIZE) << "the payload fills its page";
  EXPECT_EQ(store({nullptr, 1, 0}), -EINVAL);
  EXPECT_EQ(store({long_text.data(), 1, 7}), -EINVAL);
  EXPECT_EQ(client_.exists("k"), 0);
  EXPECT_EQ(store({nullptr, 0, 0}), 0) << "none always fits";
  EXPECT_EQ(copy("other", "text", long_text), -E2BIG);
  EXPECT_EQ(maru_alloc_with_metadata(client_, 1, 65'537, 1, &buffer), -E2BIG);
  EXPECT_EQ(maru_alloc_with_metadata(client_, 1u << 20, 1, 1, &buffer), -EFBIG) << "both count";
  EXPECT_EQ(maru_alloc_with_metadata(client_, ~uint64_t{0}, 65'536, 1, &buffer), -EFBIG);
  EXPECT_EQ(maru_alloc_with_metadata(client_, 1, 1, 1, nullptr), -EINVAL);
  EXPECT_EQ(client_.geometry().metadata_bytes_max, uint32_t(MARU_METADATA_BYTES_MAX));
  expect_baseline(1);
}

TEST_P(Metadata, OfNothingOrOfABlockThatIsGoneThereIsNone) {
  maru_block block = 0;
  ASSERT_EQ(copy("k", "payload", "text", &block), 0);
  maru_view view{};
  EXPECT_EQ(described(reader_, view), "(" + std::to_string(-EINVAL) + ")");
  ASSERT_EQ(reader_.retrieve("k", &view), 0);
  ASSERT_EQ(reader_.release(view), 0);
  ASSERT_EQ(client_.remove("k"), 0);
  EXPECT_EQ(described(reader_, view), "(" + std::to_string(-ENOENT) + ")");
  maru_metadata metadata{};
  EXPECT_EQ(maru_view_metadata(reader_, nullptr, &metadata), -EINVAL);
  EXPECT_EQ(maru_view_metadata(reader_, &view, nullptr), -EINVAL);
  EXPECT_EQ(maru_view_metadata(nullptr, &view, &metadata), -EINVAL);
}

TEST_P(Metadata, ALineThatSaysMoreThanItsPagesHoldIsDamage) {
  maru_block block = 0;
  ASSERT_EQ(copy("k", "payload", "text", &block), 0);
  maru_view view{};
  ASSERT_EQ(reader_.retrieve("k", &view), 0);
  format::BlockLine& line = map_.region().block(format::PageRef::from_bits(block).page());
  line.length.store_release(format::length_word(7, 4'096));
  EXPECT_EQ(described(reader_, view), "(" + std::to_string(-EBADMSG) + ")");
  maru_block_info info{};
  info.size = sizeof(info);
  EXPECT_EQ(maru_get_block_info(reader_, block, &info, nullptr), -EBADMSG);
  ASSERT_EQ(reader_.release(view), 0);
  const std::string found = read("k");
  EXPECT_EQ(found, GetParam() ? "<" + std::to_string(-EIO) + ">" : "(" + std::to_string(-EBADMSG) + ")");
}

TEST_P(Metadata, DamagedBytesAreFoundByTheChecksum) {
  maru_block block = 0;
  ASSERT_EQ(copy("k", "payload", "text", &block), 0);
  const uint64_t at = map_.attached().pages_offset + format::PageRef::from_bits(block).page() * kPageBytes;
  auto page = Mapping::map_shared(map_.device_fd(), off_t(at), kPageBytes, PROT_READ | PROT_WRITE);
  ASSERT_TRUE(page) << page.error().text();
  page->data()[64] ^= std::byte{1};
  EXPECT_EQ(read("k"), GetParam() ? "<" + std::to_string(-EIO) + ">" : "uext");
}

TEST_P(Metadata, OneCallSaysWhatThePoolKnowsOfABlock) {
  uint64_t tenant = 0;
  ASSERT_EQ(maru_tenant(client_, "salt", 4, &tenant), 0);
  maru_key key = key_of("child");
  key.tenant = tenant;
  maru_block parent = 0, block = 0;
  ASSERT_EQ(copy("parent", "payload", "", &parent), 0);
  const maru_metadata metadata = metadata_of("text");
  maru_store_options options = with(&metadata);
  options.parent = parent;
  options.ttl_ms = 3'600'000;
  options.priority = 9;
  options.content_type = MARU_CONTENT_LORA_WEIGHT;
  ASSERT_EQ(maru_store_copy(client_, &key, "payload", 7, &options, &block), 0);
  maru_view view{};
  ASSERT_EQ(maru_pin_block(reader_, block, &view), 0);
  maru_block_info info{};
  info.size = sizeof(info);
  maru_key_copy copy{};
  ASSERT_EQ(maru_get_block_info(reader_, block, &info, &copy), 0);
  EXPECT_EQ(info.bytes, 7u);
  EXPECT_EQ(info.metadata_bytes, 4u);
  EXPECT_EQ(info.depth, 1u);
  EXPECT_EQ(info.parent, parent);
  EXPECT_EQ(info.tenant, tenant);
  EXPECT_EQ(info.priority, 9u);
  EXPECT_EQ(info.content_type, uint32_t(MARU_CONTENT_LORA_WEIGHT));
  EXPECT_EQ(info.expires_ms, info.stored_ms + 3'600'000);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(copy.data), copy.size), "child");
  EXPECT_EQ(copy.kind, uint32_t(MARU_KEY_BYTES));
  EXPECT_EQ(copy.tenant, tenant);
  ASSERT_EQ(maru_delete(client_, &key), 0);
  info = {};
  info.size = sizeof(info);
  EXPECT_EQ(maru_get_block_info(reader_, block, &info, nullptr), 0) << "it is pinned";
  EXPECT_EQ(info.priority, 9u);
  ASSERT_EQ(reader_.release(view), 0);
  ASSERT_EQ(maru_get_block_info(reader_, parent, &info, &copy), 0) << "a snapshot of one that is not";
  EXPECT_EQ(info.parent, 0u);
  EXPECT_EQ(info.depth, 0u);
  EXPECT_EQ(info.expires_ms, 0u);
}

TEST_P(Metadata, WhatIsGoneOrNoBlockIsToldByNobody) {
  maru_block block = 0;
  ASSERT_EQ(copy("k", "payload", "", &block), 0);
  ASSERT_EQ(client_.remove("k"), 0);
  maru_block_info info{};
  info.size = sizeof(info);
  info.priority = 77;
  EXPECT_EQ(maru_get_block_info(reader_, block, &info, nullptr), -ENOENT);
  EXPECT_EQ(maru_get_block_info(reader_, 0, &info, nullptr), -EINVAL);
  EXPECT_EQ(maru_get_block_info(reader_, ~uint64_t{0}, &info, nullptr), -EINVAL);
  EXPECT_EQ(maru_get_block_info(reader_, block, nullptr, nullptr), -EINVAL);
  info.size = 5000;
  EXPECT_EQ(maru_get_block_info(reader_, block, &info, nullptr), -EINVAL);
  EXPECT_EQ(info.priority, 77u) << "untouched";
}

// A pool of the version before: its header has no flag, and a client must not write what an older one would misread.
TEST(MetadataOfOlderPools, IsRefusedAndTheirBlocksHaveNone) {
  MarudProcess marud;
  ControlMap map(marud.socket_path());
  TestClient before(marud.socket_path());
  ASSERT_EQ(before.store("k", "payload"), 0);
  format::Header header;
  std::memcpy(&header, map.bytes().data(), sizeof(header));
  header.version_minor = 1;
  header.incompat_flags &= ~format::kIncompatMetadata;
  header.checksum = shm::header_checksum(header);
  std::memcpy(map.bytes().data(), &header, sizeof(header));
  TestClient client(marud.socket_path());
  EXPECT_EQ(client.geometry().metadata_bytes_max, 0u);
  const maru_metadata metadata = metadata_of("text"), none = metadata_of("");
  maru_store_options options = with(&metadata);
  const maru_key key = key_of("l");
  EXPECT_EQ(maru_store_copy(client, &key, "payload", 7, &options, nullptr), -EOPNOTSUPP);
  maru_buffer buffer;
  EXPECT_EQ(maru_alloc_with_metadata(client, 7, 1, 1, &buffer), -EOPNOTSUPP);
  ASSERT_EQ(maru_alloc(client, 7, &buffer), 0);
  EXPECT_EQ(maru_store(client, &key, &buffer, &options, nullptr), -EOPNOTSUPP);
  options.metadata = &none;
  EXPECT_EQ(maru_store(client, &key, &buffer, &options, nullptr), 0);
  maru_view view{};
  ASSERT_EQ(client.retrieve("k", &view), 0);
  EXPECT_EQ(described(client, view), "");
  EXPECT_EQ(view.bytes, 7u);
  EXPECT_EQ(client.release(view), 0);
}

}  // namespace
}  // namespace maru::test
