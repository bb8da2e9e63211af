// Block sets between processes: exactly the lives that were exported, or an error with a name.
#include "maru/blocks/block_set.hpp"
#include "tests/blocks/manifest_fixture.h"
#include "tests/blocks/partner.h"

namespace maru::test {
namespace {

using BlockSets = Blocks;

const Manifest kManifest = manifest_of("model-7");

std::vector<std::byte> exported(const BlockPool& pool, const BlockList<ImmutableBlock>& blocks) {
  Answer<std::vector<std::byte>> bytes = export_blocks(pool, kManifest, {blocks.begin(), blocks.size()});
  if (!bytes) throw std::runtime_error(std::string(bytes.reason()));
  return std::move(*bytes);
}

void expect_refused(const ImportedBlocks& imported, BlockSetFault fault, const std::string& words) {
  EXPECT_EQ(int(imported.error.fault), int(fault)) << imported.error.message();
  EXPECT_NE(imported.error.message().find(words), std::string_view::npos)
      << "\"" << imported.error.message() << "\" does not say \"" << words << "\"";
  EXPECT_TRUE(imported.blocks.empty());
}

// python/tests/test_manifest.py has the same numbers: both languages write the same bytes.
TEST(BlockSetBytes, AreTheSameInEveryLanguage) {
  BlockSet set;
  for (uint8_t i = 0; i < 16; ++i) set.pool_uuid[i] = i;
  set.exporter[0] = 0x0102030405060708;
  set.exporter[1] = 9;
  set.serial = 10;
  set.tenant = 11;
  set.manifest = manifest_of("llama");
  set.blocks = {{12, {13, 14}, 15}, {UINT64_MAX, {16, 17}, 18}};
  const Answer<std::vector<std::byte>> bytes = set.encode();
  ASSERT_TRUE(bytes.ok()) << bytes.reason();
  EXPECT_EQ(bytes->size(), 80u + 2 * 32 + 272 + 8);
  uint64_t checksum;
  std::memcpy(&checksum, bytes->data() + bytes->size() - 8, 8);
  EXPECT_EQ(checksum, 1963147944054341833u);
}

TEST_F(BlockSets, SecondProcessHoldsExactlyTheseLives) {
  BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 3 * kPageSize));
  const std::vector<std::byte> bytes = exported(pool_, chain);
  Partner importer("import", marud_.socket_path(), 7, 1);
  importer.send(bytes);
  EXPECT_EQ(importer.line(), "0: 3 blocks, 3 right");
  EXPECT_EQ(map_.count_pins(), 6u) << "three here, three there";
  importer.send(bytes);
  EXPECT_EQ(importer.line(), "9: set 1 of this exporter is imported: use that import, or release it first");
  EXPECT_EQ(map_.count_pins(), 6u);

  // They hold it alone now: the blocks neither go nor change.
  std::vector<BlockHash> hashes;
  for (const ImmutableBlock& block : chain) hashes.push_back(block.hash());
  chain.clear();
  EXPECT_EQ(pool_.reset_blocks(hashes)->not_reset.size(), 3u);
  importer.send({});  // lets go
  EXPECT_EQ(importer.line(), "released");
  EXPECT_EQ(map_.count_pins(), 0u);
  importer.send(bytes);
  EXPECT_EQ(importer.line(), "0: 3 blocks, 3 right") << "what was released may be imported again";
  EXPECT_TRUE(importer.ends_well());
}

TEST_F(BlockSets, SaysWhichBlocksAreGoneAndHoldsNone) {
  BlockList<ImmutableBlock> blocks;
  for (uint32_t first : {100u, 200u, 300u}) blocks.push(registered_block(pool_, tokens_from(first, kPageSize)));
  const std::vector<std::byte> bytes = exported(pool_, blocks);
  const BlockHash second = blocks[1].hash();
  ASSERT_TRUE(std::move(blocks[1]).unregister().ok());
  // Another life under the hash is not the one that was exported.
  const ImmutableBlock later = registered_block(pool_, tokens_from(200, kPageSize));
  EXPECT_EQ(later.hash(), second);
  Partner importer("import", marud_.socket_path(), 7, 1);
  const size_t pins = map_.count_pins();
  importer.send(bytes);
  EXPECT_EQ(importer.line(),
            "10: found 2 of 3 blocks; block 1 of the set is gone: compute it again, or ask for another set");
  EXPECT_EQ(importer.line(), "gone: 1");
  EXPECT_EQ(map_.count_pins(), pins);
  importer.send(bytes);
  EXPECT_EQ(importer.line().substr(0, 3), "10:") << "an import that failed is none";
  EXPECT_EQ(importer.line(), "gone: 1");
  EXPECT_TRUE(importer.ends_well());
}

TEST_F(BlockSets, OneOfAnotherManifestIsRefusedBeforeItsBlocks) {
  const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 2 * kPageSize));
  const std::vector<std::byte> bytes = exported(pool_, chain);
  Partner importer("import", marud_.socket_path(), 8, 1);  // expects model-8
  importer.send(bytes);
  EXPECT_EQ(importer.line(), "6: model: found \"model-7\", expected \"model-8\"");
  EXPECT_EQ(map_.count_pins(), 2u);
  // Of another version: of the set, and of the manifest in it.
  importer.send(forged(bytes, 8, uint32_t(2)));
  EXPECT_EQ(importer.line().substr(0, 32), "4: version: found 2, expected 1:");
  std::vector<std::byte> manifest = forged(encoded(kManifest), 8, uint32_t(3));
  std::vector<std::byte> later = bytes;
  std::copy(manifest.begin(), manifest.end(), later.end() - std::ptrdiff_t(manifest.size()) - 8);
  importer.send(forged(later, 40, uint64_t(1)));
  EXPECT_EQ(importer.line().substr(0, 42), "4: manifest: version: found 3, expected 1:");
  EXPECT_TRUE(importer.ends_well());
}

TEST_F(BlockSets, OnesOwnIsRefused) {
  const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 2 * kPageSize));
  const std::vector<std::byte> bytes = exported(pool_, chain);
  expect_refused(import_blocks(pool_, kManifest, bytes), BlockSetFault::kOwnSet, "set 1 is this BlockPool's own");
  expect_refused(import_blocks(pool_, kManifest, exported(pool_, chain)), BlockSetFault::kOwnSet, "set 2");
  EXPECT_EQ(map_.count_pins(), 2u);
  // Another client of this process is another holder.
  const BlockPool other = pool_of(marud_.socket_path());
  EXPECT_EQ(import_blocks(other, kManifest, bytes).blocks.size(), 2u);
  EXPECT_EQ(map_.count_pins(), 2u);
}

TEST_F(BlockSets, OneOfAnotherPoolOrTenantIsRefused) {
  const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 2 * kPageSize));
  const std::vector<std::byte> bytes = exported(pool_, chain);
  MarudProcess elsewhere({PoolWish{}});
  const BlockPool foreign = pool_of(elsewhere.socket_path());
  registered_chain(foreign, tokens_from(1, 2 * kPageSize));  // the same hashes are there
  expect_refused(import_blocks(foreign, kManifest, bytes), BlockSetFault::kOtherPool, "pool: found the uuid ");

  BlockPoolOptions options = pool_options();
  options.tenant = 5;
  const BlockPool other_tenant = pool_of(marud_.socket_path(), options);
  expect_refused(import_blocks(other_tenant, kManifest, bytes), BlockSetFault::kOtherTenant,
                 "tenant: found 0000000000000000, expected 0000000000000005");
  EXPECT_EQ(map_.count_pins(), 2u);
}

TEST_F(BlockSets, CutOrDamagedBytesAreRefused) {
  const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 2 * kPageSize));
  std::vector<std::byte> bytes = exported(pool_, chain);
  const BlockPool importer = pool_of(marud_.socket_path());
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + std::ptrdiff_t(n));
    expect_refused(import_blocks(importer, kManifest, cut), BlockSetFault::kDamaged, "length: found ");
  }
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte flip{uint8_t(1 << bit % 8)};
    bytes[bit / 8] ^= flip;
    EXPECT_FALSE(import_blocks(importer, kManifest, bytes).ok()) << "bit " << bit;
    bytes[bit / 8] ^= flip;
  }
  // With a right checksum.
  for (const uint64_t count : {uint64_t(0), uint64_t(1), uint64_t(3), uint64_t(1) << 20, uint64_t(1) << 59, UINT64_MAX})
    expect_refused(import_blocks(importer, kManifest, forged(bytes, 72, count)), BlockSetFault::kDamaged,
                   "blocks: found " + std::to_string(count));
  expect_refused(import_blocks(importer, kManifest, forged(bytes, 12, UINT32_MAX)), BlockSetFault::kDamaged,
                 "blocks: ");
  // A life, a key or a length that is not so.
  for (const size_t at : {80u, 88u, 96u, 104u})
    expect_refused(import_blocks(importer, kManifest, forged(bytes, at, uint64_t(77))), BlockSetFault::kGone,
                   "found 1 of 2 blocks; block 0 of the set is gone");
  EXPECT_EQ(map_.count_pins(), 2u) << "the exporter's";
  EXPECT_TRUE(import_blocks(importer, kManifest, bytes).ok());
}

TEST_F(BlockSets, WhatCannotBeExportedIsRefused) {
  BlockSetError error;
  EXPECT_FALSE(export_blocks(pool_, kManifest, {}, &error).ok());
  EXPECT_EQ(error.message(), "blocks: found 0, expected 1 to 1048576");
  BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 2 * kPageSize));
  const BlockPool other = pool_of(marud_.socket_path());
  EXPECT_FALSE(export_blocks(other, kManifest, {chain.begin(), 2}, &error).ok());
  EXPECT_EQ(int(error.fault), int(BlockSetFault::kWrongPool));
  chain[0].release();
  EXPECT_FALSE(export_blocks(pool_, kManifest, {chain.begin(), 2}, &error).ok());
  EXPECT_EQ(int(error.fault), int(BlockSetFault::kMoved));
  EXPECT_FALSE(export_blocks(BlockPool(), kManifest, {chain.begin(), 2}, &error).ok());
  EXPECT_EQ(int(error.fault), int(BlockSetFault::kMoved));
  expect_refused(import_blocks(BlockPool(), kManifest, {}), BlockSetFault::kMoved, "the pool");
}

TEST_F(BlockSets, HandlesOutliveTheImport) {
  const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 2 * kPageSize));
  const std::vector<std::byte> bytes = exported(pool_, chain);
  ImmutableBlock kept;
  {
    const BlockPool importer = pool_of(marud_.socket_path());
    ImportedBlocks imported = import_blocks(importer, kManifest, bytes);
    ASSERT_TRUE(imported.ok()) << imported.error.message();
    EXPECT_EQ(imported.blocks[1].block(), chain[1].block());
    ImportedBlocks moved = std::move(imported);
    expect_refused(import_blocks(importer, kManifest, bytes), BlockSetFault::kImported, "set 1");
    kept = std::move(moved.blocks[1]);
  }
  EXPECT_EQ(kept.hash(), chain[1].hash());
  EXPECT_EQ(kept.bytes()[0], chain[1].bytes()[0]);
  EXPECT_EQ(map_.count_pins(), 3u);
}

}  // namespace
}  // namespace maru::test
