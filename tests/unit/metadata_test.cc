#include "libmaru/shm/blocks/metadata.h"

#include "libmaru/shm/blocks/block_store.h"
#include "tests/unit/small_pool.h"

#include <array>
#include <cstring>
#include <gtest/gtest.h>

namespace maru::shm {
namespace {

using Names = std::set<std::string>;

TEST(MetadataPlace, BeginsOnTheNextLineBehindThePayload) {
  EXPECT_EQ(metadata_place(1, 10, 4096), (MetadataPlace{64, 10, true}));
  EXPECT_EQ(metadata_place(64, 10, 4096), (MetadataPlace{64, 10, true}));
  EXPECT_EQ(metadata_place(65, 10, 4096), (MetadataPlace{128, 10, true}));
  EXPECT_EQ(metadata_place(4096, 0, 4096), (MetadataPlace{4096, 0, true})) << "none takes no room";
}

TEST(MetadataPlace, FitsToTheLastByteOfTheRunAndNoFurther) {
  EXPECT_EQ(metadata_place(64, 4032, 4096).end(), 4096u);
  EXPECT_FALSE(metadata_place(64, 4033, 4096).fits);
  EXPECT_EQ(metadata_place(64, 4033, 4096).bytes, 0u);
  EXPECT_FALSE(metadata_place(4033, 1, 4096).fits) << "the line behind the payload is the next page's";
  EXPECT_FALSE(metadata_place(4096, 1, 4096).fits);
  EXPECT_EQ(metadata_place(100, limits::kMetadataBytesMax, 1 << 20).bytes, 65536u);
  EXPECT_FALSE(metadata_place(100, limits::kMetadataBytesMax + 1, 1 << 20).fits);
}

TEST(MetadataPlace, NoWordOfALineLeadsBeyondTheRun) {
  for (uint32_t bit = 0; bit < 64; ++bit)
    for (const uint64_t word : {uint64_t{1} << bit, ~uint64_t{0} << bit, ~(uint64_t{1} << bit), ~uint64_t{0} >> bit}) {
      const MetadataPlace place =
          metadata_place(format::payload_bytes_of(word), format::metadata_bytes_of(word), 16384);
      EXPECT_LE(place.bytes, limits::kMetadataBytesMax) << std::hex << word;
      if (place.bytes != 0) EXPECT_LE(place.end(), 16384u) << std::hex << word;
      EXPECT_EQ(format::length_word(format::payload_bytes_of(word), format::metadata_bytes_of(word)), word);
    }
}

TEST(MetadataPlace, RoomForBothIsCountedFromThePayload) {
  EXPECT_EQ(bytes_with_metadata(100, 0), 100u);
  EXPECT_EQ(bytes_with_metadata(100, 5), 133u);
  EXPECT_EQ(bytes_with_metadata(128, 5), 133u);
  EXPECT_EQ(bytes_with_metadata(~uint64_t{0}, 5), ~uint64_t{0}) << "what is too long stays so";
}

class MetadataTest : public ::testing::Test {
 protected:
  PublishResult store(std::string_view key, uint64_t metadata_bytes, uint32_t pages = 1) {
    NewBlock block = pool_.block(key);
    block.metadata_bytes = metadata_bytes;
    return publish(pool_.lane(1), pool_.take(1, pages), block);
  }
  format::BlockLine& line(PageRef ref) { return pool_.region.block(ref.page()); }
  bool read(PageRef ref, const MetadataPlace& place, size_t bytes) {
    std::array<std::byte, 64> copy;
    return read_metadata(pool_.region, ref, place, words_, std::span(copy).first(bytes));
  }

  SmallPool pool_;
  std::array<AtomicU64, 8> words_{};
};

TEST_F(MetadataTest, OneWordOfTheLineHasBothLengths) {
  const PublishResult with = store("a", 40), without = store("b", 0);
  ASSERT_EQ(with.status, PublishStatus::kStored);
  EXPECT_EQ(line(with.block).length.load_relaxed(), uint64_t{40} << 47 | 100);
  EXPECT_EQ(line(without.block).length.load_relaxed(), 100u) << "as before metadata";
  EXPECT_EQ(metadata_of(pool_.region, with.block.page()), (MetadataPlace{128, 40, true}));
  EXPECT_EQ(metadata_of(pool_.region, without.block.page()).bytes, 0u);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(MetadataTest, IsReadWithoutAPinAsLongAsTheBlockIsThere) {
  const PageRef block = store("a", 40).block;
  const MetadataPlace place = metadata_of(pool_.region, block.page());
  for (size_t i = 0; i < words_.size(); ++i) words_[i].store_relaxed(0x0101010101010101 * i);
  std::array<std::byte, 13> copy{};
  ASSERT_TRUE(read_metadata(pool_.region, block, place, words_, copy));
  for (size_t i = 0; i < copy.size(); ++i) EXPECT_EQ(copy[i], std::byte(i / 8)) << i;
  EXPECT_FALSE(read(PageRef::of(block.page(), block.generation() + 1), place, 13)) << "another life";
  EXPECT_FALSE(read(block, MetadataPlace{64, 40, true}, 13)) << "another place";
  EXPECT_FALSE(read(block, place, 41)) << "more than there is";
  EXPECT_FALSE(read(PageRef::none(), place, 13));
  ASSERT_EQ(retire_ref(pool_.lane(1), block), RetireStatus::kRetired);
  EXPECT_TRUE(read(block, place, 13)) << "deleted, and not freed yet";
  ASSERT_EQ(finish_retired(pool_.lane(1), block, pool_.lanes, nullptr), FinishStatus::kFreed);
  EXPECT_FALSE(read(block, place, 13));
}

TEST_F(MetadataTest, TheAuditorFindsWhatDoesNotFit) {
  const PageRef block = store("a", 40, 2).block;
  const auto say = [&](uint64_t payload, uint64_t metadata) {
    line(block).length.store_relaxed(format::length_word(payload, metadata));
    return pool_.audit();
  };
  EXPECT_EQ(say(100, 8192 - 128), Names{});
  EXPECT_EQ(say(100, 8192 - 127), Names{"block.metadata"});
  EXPECT_EQ(say(8192, 1), Names{"block.metadata"});
  EXPECT_EQ(say(8193, 1), Names{"block.length"}) << "one word, one finding";
  EXPECT_EQ(say(8192, 0), Names{});
}

TEST_F(MetadataTest, OfAPoolFromBeforeMetadataTheAuditorExpectsNone) {
  const PageRef block = store("a", 40).block;
  format::Header header;
  std::memcpy(&header, pool_.memory().data(), sizeof(header));
  EXPECT_EQ(header.version_minor, 2u);
  EXPECT_EQ(header.incompat_flags & format::kIncompatMetadata, format::kIncompatMetadata);
  header.incompat_flags &= ~format::kIncompatMetadata;
  header.checksum = header_checksum(header);
  std::memcpy(pool_.memory().data(), &header, sizeof(header));
  ASSERT_EQ(ControlRegion::attach(pool_.memory(), uint64_t{1} << 40, &pool_.region), nullptr);
  EXPECT_FALSE(pool_.region.has_metadata());
  EXPECT_EQ(pool_.audit(), Names{"block.metadata"});
  line(block).length.store_relaxed(100);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST(MetadataChecksum, CoversTheMetadataAndWhetherThereIsAny) {
  SmallPool pool({.checksums = true});
  NewBlock block = pool.block("a");
  block.payload_checksum = 77;
  block.metadata_bytes = 13;
  block.metadata_checksum = payload_checksum(bytes_of("layers 0 to 3"));
  const PageRef stored = publish(pool.lane(1), pool.take(1), block).block;
  const auto fits = [&](std::string_view metadata) {
    ReadBlock read{pool.digest("a"), 100, 77};
    if (!metadata.empty()) read.metadata_checksum = payload_checksum(bytes_of(metadata));
    return fits_checksum(pool.region, stored.page(), read);
  };
  EXPECT_TRUE(fits("layers 0 to 3"));
  EXPECT_FALSE(fits("layers 0 to 4"));
  EXPECT_FALSE(fits("layers 0 to "));
  EXPECT_FALSE(fits(""));
}

}  // namespace
}  // namespace maru::shm
