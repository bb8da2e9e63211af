// Blocks between processes: found, held, won by one.
#include "tests/blocks/block_fixture.h"
#include "tests/blocks/partner.h"

namespace maru::test {
namespace {

using SharedBlocks = Blocks;

TEST_F(SharedBlocks, SecondProcessMatchesAndReadsInPlace) {
  const std::vector<uint32_t> tokens = tokens_from(1, 9 * kPageSize);
  {
    const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens);
  }
  Partner reader("match", marud_.socket_path(), 1, 12);  // asks for more than there are
  EXPECT_EQ(reader.line(), "9 9");
  EXPECT_EQ(map_.count_pins(), 1u) << "nothing but the reader's match";
  EXPECT_EQ(pool_.status()->active, 9u);
  EXPECT_EQ(pool_.reset_blocks(hashes_of(tokens))->not_reset.size(), 9u) << "it is read there";
  EXPECT_TRUE(reader.ends_well());
  EXPECT_EQ(pool_.status()->active, 0u);
  EXPECT_EQ(pool_.reset_blocks(hashes_of(tokens))->reset.size(), 9u);
}

TEST_F(SharedBlocks, HandlesOfAKilledProcessEnd) {
  const std::vector<uint32_t> tokens = tokens_from(1, 3 * kPageSize);
  {
    const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens);
  }
  Partner reader("match", marud_.socket_path(), 1, 3);
  EXPECT_EQ(reader.line(), "3 3");
  Partner writer("register", marud_.socket_path(), 500, 4);
  EXPECT_EQ(writer.line(), "ready");
  reader.kill();
  writer.kill();
  EXPECT_TRUE(wait_until([&] { return map_.count_pins() == 0; }));
  EXPECT_EQ(pool_.match_blocks(hashes_of(tokens))->size(), 3u) << "the blocks stay";
  EXPECT_EQ(pool_.match_blocks(hashes_of(tokens_from(500, 16)))->size(), 0u) << "and those not registered never were";
}

// A marud with lanes for all.
struct Crowd : Blocks {
  static PoolWish wish() {
    PoolWish wish;
    wish.bytes = 64u << 20;
    wish.lanes = 32;
    return wish;
  }
  Crowd() : Blocks(wish()) {}
};

TEST_F(Crowd, OfSixteenProcessesOneRegistersEachHash) {
  constexpr size_t kProcesses = 16, kChain = 8;
  std::vector<std::unique_ptr<Partner>> partners;
  for (size_t i = 0; i < kProcesses; ++i)
    partners.push_back(std::make_unique<Partner>("register", marud_.socket_path(), 7, kChain));
  for (auto& partner : partners) ASSERT_EQ(partner->line(), "ready");
  for (auto& partner : partners) partner->go();
  size_t fresh = 0, duplicates = 0;
  for (auto& partner : partners) {
    const std::string line = partner->line();
    const size_t space = line.find(' ');
    fresh += std::stoul(line.substr(0, space));
    duplicates += std::stoul(line.substr(space + 1));
  }
  EXPECT_EQ(fresh, kChain);
  EXPECT_EQ(duplicates, (kProcesses - 1) * kChain);
  EXPECT_EQ(pool_.status()->active, kChain);
  for (auto& partner : partners) EXPECT_TRUE(partner->ends_well());
}

}  // namespace
}  // namespace maru::test
