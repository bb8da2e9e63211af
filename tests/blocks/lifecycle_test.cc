// Each transition of a block, legal and illegal, as far as it compiles: illegal_uses.cc has what does not.
#include "tests/blocks/block_fixture.h"

namespace maru::test {
namespace {

using Lifecycle = Blocks;

const std::vector<uint32_t> kTokens = {1, 2, 3, 4};

TEST_F(Lifecycle, HashesAreDynamosBitForBit) {
  const ImmutableBlock first = registered_block(pool_, kTokens);
  EXPECT_EQ(first.sequence_hash(), 14643705804678351452u);
  CompleteBlock second = complete_block(pool_, std::vector<uint32_t>{5, 6, 7, 8}, first.hash());
  EXPECT_EQ(second.block_hash(), 16777012769546811212u);
  EXPECT_EQ(second.sequence_hash(), 4945711292740353085u);
  EXPECT_EQ(second.parent(), first.hash());
  EXPECT_NE(second.hash().check, second.hash().sequence) << "the second hash is another one";
}

TEST_F(Lifecycle, ResetBlockBecomesPartialCompleteRegistered) {
  MutableBlock block = one_block(pool_);
  EXPECT_EQ(block.state(), BlockState::kReset);
  EXPECT_EQ(block.len(), 0u);
  EXPECT_EQ(block.remaining(), std::nullopt);
  EXPECT_EQ(block.bytes().size(), kBlockBytes);

  ASSERT_TRUE(block.init_sequence(kSalt).ok());
  EXPECT_EQ(block.state(), BlockState::kPartial);
  EXPECT_EQ(block.remaining(), 4u);
  ASSERT_TRUE(block.add_tokens(kTokens).ok());
  EXPECT_EQ(block.remaining(), 0u);

  BlockOutcome<CompleteBlock> complete = std::move(block).commit();
  ASSERT_TRUE(complete.ok());
  EXPECT_FALSE(block.is_held());
  EXPECT_EQ(complete->tokens().size(), 4u);
  EXPECT_EQ(complete->tokens()[3], 4u);
  EXPECT_EQ(pool_.handles().in_complete, 1u);
  complete->bytes()[0] = std::byte{42};

  const std::vector<BlockHash> hashes = hashes_of(kTokens);
  EXPECT_EQ(pool_.match_blocks(hashes)->size(), 0u) << "only its owner sees a Complete block";
  BlockOutcome<ImmutableBlock> registered = std::move(*complete).register_block();
  ASSERT_TRUE(registered.ok());
  EXPECT_TRUE(registered->is_new());
  EXPECT_EQ(registered->hash(), hashes[0]);
  EXPECT_EQ(registered->bytes()[0], std::byte{42});
  EXPECT_EQ(registered->bytes().size(), kBlockBytes);
  EXPECT_EQ(pool_.match_blocks(hashes)->size(), 1u);
}

TEST_F(Lifecycle, ResetBlockTakesATokenBlock) {
  const BlockOutcome<TokenBlock> tokens = make_token_block(kSalt, kPageSize, kTokens);
  ASSERT_TRUE(tokens.ok());
  BlockOutcome<CompleteBlock> complete = one_block(pool_).apply_token_block(*tokens);
  ASSERT_TRUE(complete.ok());
  EXPECT_EQ(complete->hash(), hashes_of(kTokens)[0]);
  EXPECT_EQ(complete->block_hash(), 14643705804678351452u);
}

TEST_F(Lifecycle, AnyBlockThatIsNotRegisteredGoesBackToReset) {
  MutableBlock block = filled_block(pool_, kTokens);
  ASSERT_TRUE(block.reset().ok());
  EXPECT_EQ(block.state(), BlockState::kReset);
  EXPECT_TRUE(block.reset().ok()) << "a Reset block stays so";
  ASSERT_TRUE(block.init_sequence(kSalt).ok());
  ASSERT_TRUE(block.add_tokens(kTokens).ok());
  BlockOutcome<CompleteBlock> complete = std::move(block).commit();
  ASSERT_TRUE(complete.ok());
  BlockOutcome<MutableBlock> again = std::move(*complete).reset();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->state(), BlockState::kReset);
  EXPECT_EQ(again->bytes()[0], std::byte{1}) << "the payload stays as it is";
  EXPECT_EQ(pool_.handles().in_mutable, 1u);
  EXPECT_EQ(pool_.handles().in_complete, 0u);
}

TEST_F(Lifecycle, PagesOfABlockThatGoesUnregisteredAreGivenBack) {
  {
    const MutableBlock block = one_block(pool_);
  }
  {
    const MutableBlock block = filled_block(pool_, kTokens);
  }
  {
    const CompleteBlock block = complete_block(pool_, kTokens);
  }
  EXPECT_EQ(pool_.handles().in_mutable + pool_.handles().in_complete, 0u);
  EXPECT_EQ(pool_.match_blocks(hashes_of(kTokens))->size(), 0u);
}

// -- the illegal half of the matrix ----------------------------------------------------------------------------------

TEST_F(Lifecycle, InitSequenceIsRefusedOnAPartialBlock) {
  MutableBlock block = one_block(pool_);
  ASSERT_TRUE(block.init_sequence(kSalt).ok());
  ASSERT_TRUE(block.add_token(7).ok());
  expect_fault(block.init_sequence(kSalt), BlockFault::kNotReset, "block is not reset: it has a sequence of 1 tokens");
  EXPECT_EQ(block.len(), 1u) << "the sequence is as it was";
}

TEST_F(Lifecycle, TokensAreRefusedOnAResetBlock) {
  MutableBlock block = one_block(pool_);
  expect_fault(block.add_token(1), BlockFault::kNotPartial, "block is not partial: found a Reset block");
  expect_fault(block.add_tokens(kTokens), BlockFault::kNotPartial, "Reset");
  expect_fault(block.pop_token(), BlockFault::kNotPartial, "Reset");
  expect_fault(block.pop_tokens(1), BlockFault::kNotPartial, "Reset");
  EXPECT_EQ(block.state(), BlockState::kReset);
}

TEST_F(Lifecycle, CommitIsRefusedOnAResetBlockAndOnOneThatIsNotFull) {
  MutableBlock block = one_block(pool_);
  expect_fault(std::move(block).commit(), BlockFault::kNotPartial, "Reset");
  ASSERT_TRUE(block.is_held()) << "a refused block is as before";
  ASSERT_TRUE(block.init_sequence(kSalt).ok());
  expect_fault(std::move(block).commit(), BlockFault::kIncomplete, "found 0 tokens, expected 4");
  ASSERT_TRUE(block.add_tokens(std::span(kTokens).first(3)).ok());
  expect_fault(std::move(block).commit(), BlockFault::kIncomplete, "found 3 tokens, expected 4");
  ASSERT_TRUE(block.add_token(4).ok());
  EXPECT_TRUE(std::move(block).commit().ok());
}

TEST_F(Lifecycle, FullBlockTakesNoTokenAndEmptyOneGivesNone) {
  MutableBlock block = filled_block(pool_, kTokens);
  expect_fault(block.add_token(5), BlockFault::kFull, "it has 4 of 4 tokens");
  expect_fault(block.pop_tokens(5), BlockFault::kInsufficientTokens, "block has 4 tokens; 5 were");
  EXPECT_EQ(block.len(), 4u);
  for (uint32_t token = 4; token > 0; --token) EXPECT_EQ(*block.pop_token(), token);
  expect_fault(block.pop_token(), BlockFault::kEmpty, "no token");
}

TEST_F(Lifecycle, AddTokensReturnsWhatDidNotFit) {
  for (const size_t count : {size_t(0), size_t(1), size_t(3), size_t(4), size_t(5), size_t(9)}) {
    MutableBlock block = one_block(pool_);
    ASSERT_TRUE(block.init_sequence(kSalt).ok());
    const std::vector<uint32_t> tokens = tokens_from(10, count);
    const BlockOutcome<std::span<const uint32_t>> rest = block.add_tokens(tokens);
    ASSERT_TRUE(rest.ok());
    EXPECT_EQ(block.len(), std::min<size_t>(count, 4)) << count;
    EXPECT_EQ(rest->size(), count - block.len()) << count;
    if (!rest->empty()) {
      EXPECT_EQ(rest->front(), 14u);
    }
  }
}

TEST_F(Lifecycle, TokenBlockOfAnotherSizeIsRefused) {
  const std::vector<uint32_t> eight = tokens_from(1, 8);
  expect_fault(make_token_block(kSalt, kPageSize, eight), BlockFault::kSizeMismatch,
               "token block has 8 tokens, the pool's blocks have 4");
  const BlockOutcome<TokenBlock> wrong = make_token_block(kSalt, 8, eight);
  ASSERT_TRUE(wrong.ok());
  MutableBlock block = one_block(pool_);
  expect_fault(std::move(block).apply_token_block(*wrong), BlockFault::kSizeMismatch, "8 tokens");
  ASSERT_TRUE(block.init_sequence(kSalt).ok()) << "the block is as before";
  const BlockOutcome<TokenBlock> right = make_token_block(kSalt, 4, kTokens);
  expect_fault(std::move(block).apply_token_block(*right), BlockFault::kNotReset, "not reset");
}

TEST_F(Lifecycle, RegisterIsRefusedWithoutItsParent) {
  const std::vector<BlockHash> absent = hashes_of(tokens_from(100, 4));
  CompleteBlock block = complete_block(pool_, kTokens, absent[0]);
  expect_fault(std::move(block).register_block(), BlockFault::kParentGone, "parent is not in the pool");
  ASSERT_TRUE(block.is_held()) << "the block is as before";
  const ImmutableBlock parent = registered_block(pool_, tokens_from(100, 4));
  EXPECT_TRUE(std::move(block).register_block().ok());
}

TEST_F(Lifecycle, UnregisterIsRefusedOfABlockWithChildren) {
  BlockList<ImmutableBlock> chain = registered_chain(pool_, tokens_from(1, 8));
  expect_fault(std::move(chain[0]).unregister(), BlockFault::kHasChildren, "has children");
  EXPECT_TRUE(chain[0].is_held());
  EXPECT_TRUE(std::move(chain[1]).unregister().ok());
  EXPECT_FALSE(chain[1].is_held());
  EXPECT_EQ(pool_.match_blocks(hashes_of(tokens_from(1, 8)))->size(), 1u);
  EXPECT_TRUE(std::move(chain[0]).unregister().ok());
}

TEST_F(Lifecycle, HandleThatWasMovedFromSaysSo) {
  MutableBlock from = filled_block(pool_, kTokens);
  MutableBlock to = std::move(from);
  const char* const words = "the handle holds no block";
  expect_fault(from.init_sequence(kSalt), BlockFault::kMoved, words);
  expect_fault(from.add_token(1), BlockFault::kMoved, words);
  expect_fault(from.add_tokens(kTokens), BlockFault::kMoved, words);
  expect_fault(from.pop_token(), BlockFault::kMoved, words);
  expect_fault(from.pop_tokens(0), BlockFault::kMoved, words);
  expect_fault(from.reset(), BlockFault::kMoved, words);
  expect_fault(std::move(from).commit(), BlockFault::kMoved, words);
  expect_fault(std::move(from).apply_token_block(*make_token_block(kSalt, 4, kTokens)), BlockFault::kMoved, words);
  EXPECT_TRUE(from.bytes().empty() && from.tokens().empty() && from.len() == 0);

  CompleteBlock complete = std::move(*std::move(to).commit());
  expect_fault(to.add_token(5), BlockFault::kMoved, words);  // tokens after commit
  CompleteBlock complete_to = std::move(complete);
  expect_fault(std::move(complete).register_block(), BlockFault::kMoved, words);
  expect_fault(std::move(complete).reset(), BlockFault::kMoved, words);
  EXPECT_TRUE(complete.bytes().empty() && complete.tokens().empty());

  ImmutableBlock registered = std::move(*std::move(complete_to).register_block());
  expect_fault(std::move(complete_to).register_block(), BlockFault::kMoved, words);  // registered twice
  ImmutableBlock registered_to = std::move(registered);
  expect_fault(registered.clone(), BlockFault::kMoved, words);
  expect_fault(std::move(registered).unregister(), BlockFault::kMoved, words);
  expect_fault(registered.downgrade().upgrade(), BlockFault::kMoved, words);
  EXPECT_TRUE(registered.bytes().empty());
  EXPECT_TRUE(registered_to.is_held());

  const BlockPool nothing;
  expect_fault(nothing.allocate(1), BlockFault::kMoved, words);
  expect_fault(nothing.match_blocks({}), BlockFault::kMoved, words);
  expect_fault(nothing.scan_matches({}), BlockFault::kMoved, words);
  expect_fault(nothing.reset_blocks({}), BlockFault::kMoved, words);
  expect_fault(nothing.touch({}), BlockFault::kMoved, words);
  expect_fault(nothing.status(), BlockFault::kMoved, words);
  EXPECT_EQ(nothing.register_blocks({}).error.fault, BlockFault::kMoved);
}

TEST_F(Lifecycle, BlockOfAnotherPoolIsRefused) {
  const BlockPool other = pool_of(marud_.socket_path());
  BlockList<CompleteBlock> blocks;
  blocks.push(complete_block(pool_, kTokens));
  const RegisteredBlocks registered = other.register_blocks(std::move(blocks));
  EXPECT_EQ(registered.error.fault, BlockFault::kWrongPool);
  EXPECT_EQ(registered.rest.size(), 1u);
}

TEST_F(Lifecycle, ImpossibleOptionsAreRefused) {
  Outcome<Client> client = Client::attach(attach_options(marud_.socket_path(), "default"));
  ASSERT_TRUE(client.ok());
  BlockPoolOptions options = pool_options();
  options.page_size = 0;
  expect_fault(BlockPool::create(*client, options), BlockFault::kBadOptions, "found 0, expected 1 to 4096");
  options.page_size = MARU_TOKENS_BLOCK_MAX + 1;
  expect_fault(BlockPool::create(*client, options), BlockFault::kBadOptions, "found 4097");
  options = pool_options();
  options.block_bytes = 0;
  expect_fault(BlockPool::create(*client, options), BlockFault::kBadOptions, "found 0");
  options.block_bytes = (1u << 20) + 1;
  expect_fault(BlockPool::create(*client, options), BlockFault::kBadOptions, "expected 1 to 1048576");
  EXPECT_TRUE(client->is_attached()) << "the client stays the caller's";
  expect_fault(pool_.allocate(0), BlockFault::kBadOptions, "found 0");
  expect_fault(pool_.allocate(size_t(1) << 40), BlockFault::kBadOptions, "expected 1 to 1048576");
  std::vector<BlockHash> hashes(1);
  expect_fault(hash_tokens(kSalt, 0, kTokens, hashes), BlockFault::kBadOptions, "found 0");
}

// -- weak handles and transfers --------------------------------------------------------------------------------------

TEST_F(Lifecycle, WeakBlockIsUpgradedWhileItsLifeLasts) {
  ImmutableBlock block = registered_block(pool_, kTokens);
  const WeakBlock weak = block.downgrade();
  block.release();
  {
    const BlockOutcome<ImmutableBlock> again = weak.upgrade();
    ASSERT_TRUE(again.ok()) << "inactive, and found again";
    EXPECT_EQ(again->block(), weak.block());
    EXPECT_EQ(again->bytes()[5], std::byte{1});
    EXPECT_EQ(again->bytes().size(), kBlockBytes);
  }
  ASSERT_TRUE(std::move(*weak.upgrade()).unregister().ok());
  expect_fault(weak.upgrade(), BlockFault::kGone, "evicted or removed");
  const ImmutableBlock another = registered_block(pool_, kTokens);
  expect_fault(weak.upgrade(), BlockFault::kGone, "evicted or removed");
}

TEST_F(Lifecycle, KeepAliveHoldsABlockWithoutItsType) {
  KeepAlive writing(one_block(pool_));
  KeepAlive reading(registered_block(pool_, kTokens));
  KeepAlive copy = reading;
  reading.release();
  EXPECT_EQ(map_.count_pins(), 1u);
  EXPECT_FALSE(copy.take<MutableBlock>().is_held()) << "it is of another type";
  EXPECT_TRUE(copy.is_held());
  const ImmutableBlock back = copy.take<ImmutableBlock>();
  EXPECT_TRUE(back.is_held() && !copy.is_held());
  KeepAlive many(std::move(*pool_.match_blocks(hashes_of(kTokens))));
  EXPECT_TRUE(many.is_held());
  MutableBlock written = writing.take<MutableBlock>();
  EXPECT_TRUE(written.is_held());
}

TEST_F(Lifecycle, HandlesOutliveThePoolInEveryOrder) {
  MutableBlock block = one_block(pool_);
  CompleteBlock complete = complete_block(pool_, tokens_from(50, 4));
  ImmutableBlock registered = registered_block(pool_, kTokens);
  ImmutableBlocks matched = std::move(*pool_.match_blocks(hashes_of(kTokens)));
  const WeakBlock weak = registered.downgrade();
  pool_ = {};
  EXPECT_TRUE(std::move(complete).register_block().ok());
  EXPECT_TRUE(block.init_sequence(kSalt).ok());
  registered.release();
  EXPECT_EQ(matched.bytes(0)[0], std::byte{1});
  matched.release();
  EXPECT_TRUE(weak.upgrade().ok());
}

}  // namespace
}  // namespace maru::test
