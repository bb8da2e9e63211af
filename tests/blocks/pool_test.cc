// The pool of a BlockPool: room, matches, duplicates, resets, and what a listener hears.
#include "tests/blocks/block_fixture.h"

#include <algorithm>
#include <map>

namespace maru::test {
namespace {

using Pool = Blocks;

std::vector<BlockHash> listed(const BlockList<BlockHash>& list) { return {list.begin(), list.end()}; }

TEST_F(Pool, MatchEndsAtTheFirstMissAndScanFindsTheRest) {
  const std::vector<uint32_t> tokens = tokens_from(1, 6 * kPageSize);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  // Roots, so that there may be a hole.
  for (const size_t i : {0u, 1u, 3u, 5u}) {
    const BlockOutcome<TokenBlock> block =
        make_token_block(kSalt, kPageSize, std::span(tokens).subspan(i * kPageSize, kPageSize),
                         i == 0 ? std::nullopt : std::optional(hashes[i - 1]));
    ASSERT_EQ(block->hash, hashes[i]);
    TokenBlock root = *block;
    root.parent.reset();
    ASSERT_TRUE(std::move(*one_block(pool_).apply_token_block(root)).register_block().ok());
  }
  const BlockOutcome<ImmutableBlocks> matched = pool_.match_blocks(hashes);
  ASSERT_TRUE(matched.ok());
  EXPECT_EQ(matched->size(), 2u);
  EXPECT_EQ(matched->hash(1), hashes[1]);
  const BlockOutcome<ImmutableBlocks> scanned = pool_.scan_matches(hashes);
  ASSERT_TRUE(scanned.ok());
  ASSERT_EQ(scanned->size(), 4u);
  EXPECT_EQ(scanned->hash(2), hashes[3]);
  EXPECT_EQ(scanned->sequence_hash(3), hashes[5].sequence);
  EXPECT_EQ(*pool_.touch(hashes), 4u);
  EXPECT_EQ(pool_.match_blocks({})->size(), 0u);
  EXPECT_EQ(pool_.scan_matches({})->size(), 0u);
}

TEST_F(Pool, MatchOfAChainIsHeldByOnePinUntilItGoes) {
  const std::vector<uint32_t> tokens = tokens_from(1, 12 * kPageSize);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  {
    const BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens);
  }
  EXPECT_EQ(map_.count_pins(), 0u);
  ImmutableBlocks matched = std::move(*pool_.match_blocks(hashes));
  ASSERT_EQ(matched.size(), 12u);
  EXPECT_EQ(map_.count_pins(), 1u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(matched.bytes(i).size(), kBlockBytes);
    EXPECT_EQ(matched.bytes(i)[77], std::byte(1 + i * kPageSize)) << i;
  }
  BlockOutcome<ImmutableBlock> third = matched.hold(2);
  ASSERT_TRUE(third.ok());
  EXPECT_TRUE(matched.truncate(5).ok());
  expect_fault(matched.truncate(6), BlockFault::kBadOptions, "found 6, expected 1 to 5");
  EXPECT_EQ(map_.count_pins(), 5u);
  EXPECT_EQ(matched.bytes(4)[0], std::byte{17});
  EXPECT_TRUE(matched.truncate(0).ok());
  EXPECT_EQ(map_.count_pins(), 1u) << "the third is held by its own handle";
  EXPECT_EQ(third->bytes()[0], std::byte{9});
}

TEST_F(Pool, WrongSecondHashIsAMiss) {
  const ImmutableBlock block = registered_block(pool_, tokens_from(1, 4));
  const BlockHash collision = {block.hash().sequence, block.hash().check ^ 1};
  EXPECT_EQ(pool_.match_blocks({&collision, 1})->size(), 0u);
  EXPECT_EQ(pool_.scan_matches({&collision, 1})->size(), 0u);
}

TEST_F(Pool, SequenceHashesAloneAreNamesWhereThePoolWantsThat) {
  BlockPoolOptions options = pool_options();
  options.sequence_hash_only = true;
  const BlockPool plain = pool_of(marud_.socket_path(), options);
  const BlockList<ImmutableBlock> chain = registered_chain(plain, tokens_from(1, 8));
  EXPECT_EQ(chain[0].hash(), (BlockHash{14643705804678351452u, 0}));
  const BlockHash known[] = {{14643705804678351452u, 0}, {4945711292740353085u, 0}};
  EXPECT_EQ(plain.match_blocks(known)->size(), 2u);
}

TEST_F(Pool, DuplicateIsRejectedOrAllowed) {
  const std::vector<uint32_t> tokens = tokens_from(1, 4);
  const ImmutableBlock first = registered_block(pool_, tokens);
  CompleteBlock second = complete_block(pool_, tokens), third = complete_block(pool_, tokens);
  second.bytes()[0] = std::byte{2};
  third.bytes()[0] = std::byte{3};

  const BlockOutcome<ImmutableBlock> rejected = std::move(second).register_block(Duplicates::kReject);
  ASSERT_TRUE(rejected.ok());
  EXPECT_FALSE(rejected->is_new());
  EXPECT_FALSE(rejected->is_duplicate());
  EXPECT_EQ(rejected->block(), first.block());
  EXPECT_EQ(rejected->bytes()[0], std::byte{1}) << "the bytes that were there first";

  BlockOutcome<ImmutableBlock> allowed = std::move(third).register_block(Duplicates::kAllow);
  ASSERT_TRUE(allowed.ok());
  EXPECT_FALSE(allowed->is_new());
  EXPECT_TRUE(allowed->is_duplicate());
  EXPECT_EQ(allowed->block(), first.block());
  EXPECT_EQ(allowed->bytes()[0], std::byte{3}) << "its own bytes";
  EXPECT_EQ(pool_.match_blocks(hashes_of(tokens))->bytes(0)[0], std::byte{1}) << "others find the first";
  EXPECT_EQ(map_.count_pages()[format::PageState::kReserved] > 0, true);
  allowed->release();
  EXPECT_FALSE(allowed->is_duplicate());
}

TEST_F(Pool, RegisterBlocksGivesBackThoseThatFailed) {
  BlockList<CompleteBlock> blocks;
  blocks.push(complete_block(pool_, tokens_from(1, 4)));
  blocks.push(complete_block(pool_, tokens_from(100, 4), hashes_of(tokens_from(200, 4))[0]));
  blocks.push(complete_block(pool_, tokens_from(300, 4)));
  const RegisteredBlocks registered = pool_.register_blocks(std::move(blocks));
  EXPECT_EQ(registered.error.fault, BlockFault::kParentGone);
  EXPECT_EQ(registered.blocks.size(), 1u);
  ASSERT_EQ(registered.rest.size(), 2u);
  EXPECT_EQ(registered.rest[0].tokens()[0], 100u);
  EXPECT_EQ(registered.rest[1].tokens()[0], 300u);
}

TEST_F(Pool, StatusCountsActiveInactiveAndEmptyBlocks) {
  const BlockPoolStatus before = *pool_.status();
  EXPECT_EQ(before.active + before.inactive, 0u);
  EXPECT_GT(before.empty, 0u);
  BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 3 * kPageSize));
  {
    const ImmutableBlock idle = registered_block(pool_, tokens_from(100, 4));
  }
  EXPECT_EQ(pool_.status()->active, 3u);
  EXPECT_EQ(pool_.status()->inactive, 1u);
  EXPECT_LE(pool_.status()->empty, before.empty - 4);
  // The deepest block holds its ancestors.
  const ImmutableBlock deepest = std::move(chain[2]);
  chain = {};
  EXPECT_EQ(map_.count_pins(), 1u);
  EXPECT_EQ(pool_.status()->active, 3u);
}

TEST_F(Pool, ResetBlocksSaysWhatBecameOfEach) {
  const std::vector<uint32_t> tokens = tokens_from(1, 3 * kPageSize);
  const std::vector<BlockHash> chain = hashes_of(tokens), absent = hashes_of(tokens_from(500, 4)),
                               held = hashes_of(tokens_from(600, 4));
  {
    const BlockList<ImmutableBlock> idle = registered_chain(pool_, tokens);
  }
  const ImmutableBlock holder = registered_block(pool_, tokens_from(600, 4));
  const std::vector<BlockHash> asked = {chain[0], absent[0], chain[1], held[0], chain[2]};
  const BlockOutcome<ResetBlocks> reset = pool_.reset_blocks(asked);
  ASSERT_TRUE(reset.ok());
  EXPECT_EQ(listed(reset->reset), (std::vector<BlockHash>{chain[0], chain[1], chain[2]}));
  EXPECT_EQ(listed(reset->not_found), absent);
  EXPECT_EQ(listed(reset->not_reset), held);
  EXPECT_EQ(pool_.scan_matches(asked)->size(), 1u);
  EXPECT_EQ(holder.bytes()[0], std::byte(600 & 0xFF));
}

TEST_F(Pool, ResetLeavesABlockThatAnotherProcessHoldsOrThatHasChildren) {
  const std::vector<uint32_t> tokens = tokens_from(1, 2 * kPageSize);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  {
    const BlockList<ImmutableBlock> idle = registered_chain(pool_, tokens);
  }
  const BlockPool other = pool_of(marud_.socket_path());
  {
    const ImmutableBlocks theirs = std::move(*other.match_blocks(hashes));
    EXPECT_EQ(listed(pool_.reset_blocks(hashes)->not_reset), hashes);
  }
  EXPECT_EQ(listed(pool_.reset_blocks({hashes.data(), 1})->not_reset), std::vector{hashes[0]}) << "it has a child";
  EXPECT_EQ(pool_.reset_blocks(hashes)->reset.size(), 2u);
}

TEST_F(Pool, LateUnregisterLeavesANewerRegistration) {
  const std::vector<uint32_t> tokens = tokens_from(1, 4);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  ImmutableBlock late = registered_block(pool_, tokens);
  // Another holder takes the block out, and it is registered anew.
  const BlockPool other = pool_of(marud_.socket_path());
  ASSERT_TRUE(std::move(*other.match_blocks(hashes)->hold(0)).unregister().ok());
  EXPECT_EQ(late.bytes()[0], std::byte{1}) << "who holds it reads on";
  const ImmutableBlock newer = registered_block(other, tokens);
  EXPECT_NE(newer.block(), late.block());
  expect_fault(std::move(late).unregister(), BlockFault::kGone, "evicted or removed");
  EXPECT_FALSE(late.is_held());
  const BlockOutcome<ImmutableBlocks> found = pool_.match_blocks(hashes);
  ASSERT_EQ(found->size(), 1u) << "the newer registration stays";
  EXPECT_EQ(found->block(0), newer.block());
}

struct FleetingPool : Pool {
  BlockPool fleeting_pool() {
    BlockPoolOptions options = pool_options();
    options.reset_on_release = true;
    return pool_of(marud_.socket_path(), options);
  }
};

TEST_F(FleetingPool, LastHandleTakesTheBlockAwayWhereThePoolWantsThat) {
  const BlockPool fleeting = fleeting_pool();
  const std::vector<uint32_t> tokens = tokens_from(1, 3 * kPageSize);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  BlockList<ImmutableBlock> chain = registered_chain(fleeting, tokens);
  ImmutableBlocks matched = std::move(*fleeting.match_blocks(hashes));
  chain = {};
  EXPECT_EQ(pool_.match_blocks(hashes)->size(), 3u);
  matched.release();
  EXPECT_EQ(pool_.match_blocks(hashes)->size(), 0u);
}

TEST_F(FleetingPool, BlocksThatAreCutOffGoWhereThePoolWantsThat) {
  const BlockPool fleeting = fleeting_pool();
  const std::vector<uint32_t> tokens = tokens_from(1, 4 * kPageSize);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  BlockList<ImmutableBlock> chain = registered_chain(fleeting, tokens);
  ImmutableBlocks matched = std::move(*fleeting.match_blocks(hashes));
  chain = {};
  EXPECT_TRUE(matched.truncate(3).ok());  // one pin held all
  EXPECT_EQ(pool_.match_blocks(hashes)->size(), 3u);
  EXPECT_TRUE(matched.truncate(1).ok());  // each has a pin of its own
  EXPECT_EQ(pool_.match_blocks(hashes)->size(), 1u);
  matched.release();
  EXPECT_EQ(pool_.match_blocks(hashes)->size(), 0u);
  EXPECT_EQ(map_.count_pins(), 0u);
}

// -- the listener ----------------------------------------------------------------------------------------------------

class Recorder : public BlockListener {
 public:
  void on_register(const BlockEvent& event) noexcept override { record('+', event); }
  void on_remove(const BlockEvent& event) noexcept override { record('-', event); }
  std::string of(const BlockHash& hash) const {
    std::string signs;
    for (const auto& [sign, event] : events_)
      if (event.hash == hash) signs += sign;
    return signs;
  }
  // For each life + comes before -, and each at most once.
  void expect_order() const {
    std::map<maru_block, std::string> lives;
    for (const auto& [sign, event] : events_) lives[event.block] += sign;
    for (const auto& [block, signs] : lives) EXPECT_TRUE(signs == "+" || signs == "+-") << signs;
  }
  const std::vector<std::pair<char, BlockEvent>>& events() const { return events_; }

 private:
  void record(char sign, const BlockEvent& event) { events_.emplace_back(sign, event); }
  std::vector<std::pair<char, BlockEvent>> events_;  // calls come one at a time
};

struct Listening : Blocks {
  Listening() { options.listener = &recorder; }
  void TearDown() override {
    heard = {};
    recorder.expect_order();
    Blocks::TearDown();
  }
  Recorder recorder;
  BlockPoolOptions options = pool_options();
  BlockPool heard;
};

TEST_F(Listening, RegisterPrecedesRemove) {
  heard = pool_of(marud_.socket_path(), options);
  const std::vector<uint32_t> tokens = tokens_from(1, 2 * kPageSize);
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  {
    const BlockList<ImmutableBlock> chain = registered_chain(heard, tokens);
  }
  ASSERT_EQ(recorder.events().size(), 2u);
  EXPECT_EQ(recorder.events()[1].second.parent, hashes[0]);
  {
    const ImmutableBlock again = registered_block(heard, std::span(tokens).first(4));
  }
  EXPECT_EQ(recorder.events().size(), 2u) << "a duplicate is no event";
  EXPECT_EQ(heard.reset_blocks(hashes)->reset.size(), 2u);
  EXPECT_EQ(recorder.of(hashes[0]), "+-");
  EXPECT_EQ(recorder.of(hashes[1]), "+-");
  ASSERT_TRUE(registered_block(heard, std::span(tokens).first(4)).unregister().ok());
  EXPECT_EQ(recorder.of(hashes[0]), "+-+-");
}

TEST_F(Listening, RemovalsByOthersAreFoundByReconcile) {
  heard = pool_of(marud_.socket_path(), options);
  const std::vector<BlockHash> hashes = hashes_of(tokens_from(1, 4));
  {
    const ImmutableBlock block = registered_block(heard, tokens_from(1, 4));
  }
  EXPECT_EQ(pool_.reset_blocks(hashes)->reset.size(), 1u);
  EXPECT_EQ(recorder.of(hashes[0]), "+");
  EXPECT_EQ(heard.reconcile(), 1u);
  EXPECT_EQ(heard.reconcile(), 0u);
  EXPECT_EQ(recorder.of(hashes[0]), "+-");
}

TEST_F(Listening, NewLifeAfterARemovalByOthersIsAnnouncedInOrder) {
  heard = pool_of(marud_.socket_path(), options);
  const std::vector<BlockHash> hashes = hashes_of(tokens_from(1, 4));
  {
    const ImmutableBlock block = registered_block(heard, tokens_from(1, 4));
  }
  EXPECT_EQ(pool_.reset_blocks(hashes)->reset.size(), 1u);
  const ImmutableBlock newer = registered_block(heard, tokens_from(1, 4));
  EXPECT_EQ(recorder.of(hashes[0]), "+-+");
  EXPECT_EQ(heard.reconcile(), 0u);
}

TEST_F(Listening, AllocateReturnsWhatWasEvictedAndTellsTheListener) {
  heard = pool_of(marud_.socket_path(), options);
  std::map<uint64_t, BlockHash> registered;
  const uint64_t room = heard.status()->empty;
  BlockList<BlockHash> evicted;
  for (uint32_t i = 0; evicted.empty() && i < 2 * room; ++i) {
    BlockOutcome<AllocatedBlocks> one = heard.allocate(1);
    ASSERT_TRUE(one.ok()) << one.error().message().c_str();
    evicted = std::move(one->evicted);
    const std::vector<uint32_t> tokens = tokens_from(1000 * i, kPageSize);
    const BlockOutcome<TokenBlock> block = make_token_block(kSalt, kPageSize, tokens);
    const BlockOutcome<ImmutableBlock> done =
        std::move(*std::move(one->blocks[0]).apply_token_block(*block)).register_block();
    ASSERT_TRUE(done.ok()) << done.error().message().c_str();
    registered[done->hash().sequence] = done->hash();
  }
  ASSERT_FALSE(evicted.empty());
  for (const BlockHash& hash : evicted) {
    EXPECT_TRUE(registered.contains(hash.sequence));
    EXPECT_EQ(recorder.of(hash), "+-");
    EXPECT_EQ(heard.scan_matches({&hash, 1})->size(), 0u);
  }
}

TEST_F(Pool, AllocateIsAllOrNothing) {
  const uint64_t room = pool_.status()->empty;
  const BlockOutcome<AllocatedBlocks> too_many = pool_.allocate(room + 2000);
  ASSERT_FALSE(too_many.ok());
  EXPECT_EQ(too_many.error().fault, BlockFault::kNotEnoughBlocks) << too_many.error().message().c_str();
  EXPECT_EQ(too_many.error().expected, room + 2000);
  EXPECT_EQ(pool_.handles().in_mutable, 0u);
  const BlockOutcome<AllocatedBlocks> some = pool_.allocate(3);
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->blocks.size(), 3u);
  EXPECT_EQ(pool_.handles().in_mutable, 3u);
}

}  // namespace
}  // namespace maru::test
