// Uses of maru/blocks.hpp that must not compile. Each part between two `// use` lines is compiled alone, as the body of a
// function; behind the colon stands a pattern of the compiler's error. The first part is the control: it compiles.
#include <maru/blocks.hpp>

using namespace maru;

// The handles of each part.
#define GIVEN                                                                                                       \
  [[maybe_unused]] BlockPool &pool, [[maybe_unused]] MutableBlock &block, [[maybe_unused]] CompleteBlock &complete, \
      [[maybe_unused]] ImmutableBlock &registered, [[maybe_unused]] WeakBlock &weak,                                \
      [[maybe_unused]] ImmutableBlocks &matched, [[maybe_unused]] std::span<const BlockHash> hashes

// use control: COMPILES
(void)block.init_sequence(1337);
(void)block.add_token(1);
block.bytes()[0] = std::byte{1};
BlockOutcome<CompleteBlock> done = std::move(block).commit();
complete.bytes()[0] = std::byte{1};
BlockOutcome<ImmutableBlock> out = std::move(complete).register_block();
BlockOutcome<MutableBlock> back = std::move(*done).reset();
WeakBlock other = weak;
BlockOutcome<ImmutableBlock> again = other.upgrade();
(void)std::move(registered).unregister();
(void)pool.match_blocks(hashes);
KeepAlive kept(std::move(matched));
KeepAlive copy = kept;
// use copy of a Mutable block: deleted
MutableBlock other = block;
// use copy of a Complete block: deleted
CompleteBlock other = complete;
// use copy of an Immutable block: deleted
ImmutableBlock other = registered;
// use copy of matched blocks: deleted
ImmutableBlocks other = matched;
// use assignment of a Mutable block: deleted
MutableBlock other;
other = block;
// use commit without giving the handle away: discards qualifiers|lvalue|rvalue
(void)block.commit();
// use register without giving the handle away: discards qualifiers|lvalue|rvalue
(void)complete.register_block();
// use reset of a Complete block without giving the handle away: discards qualifiers|lvalue|rvalue
(void)complete.reset();
// use unregister without giving the handle away: discards qualifiers|lvalue|rvalue
(void)registered.unregister();
// use register of a Reset or Partial block: no member named|has no member
(void)std::move(block).register_block();
// use register of a Registered block: no member named|has no member
(void)std::move(registered).register_block();
// use register_blocks with Mutable blocks: could not convert|no viable conversion|no matching
BlockList<MutableBlock> blocks;
(void)pool.register_blocks(std::move(blocks));
// use tokens after commit: no member named|has no member
(void)complete.add_token(1);
// use more tokens after commit: no member named|has no member
(void)complete.add_tokens({});
// use pop_token after commit: no member named|has no member
(void)complete.pop_token();
// use init_sequence of a Complete block: no member named|has no member
(void)complete.init_sequence(1);
// use commit of a Complete block: no member named|has no member
(void)std::move(complete).commit();
// use tokens of a Registered block: no member named|has no member
(void)registered.add_token(1);
// use init_sequence of a Registered block: no member named|has no member
(void)registered.init_sequence(1);
// use commit of a Registered block: no member named|has no member
(void)std::move(registered).commit();
// use reset of a Registered block: no member named|has no member
(void)std::move(registered).reset();
// use write into a Registered block: assignment of read-only|read-only|cannot assign|not assignable
registered.bytes()[0] = std::byte{1};
// use write into a matched block: assignment of read-only|read-only|cannot assign|not assignable
matched.bytes(0)[0] = std::byte{1};
// use read through a weak handle: no member named|has no member
(void)weak.bytes();
// use weak handle for a held one: conversion from|no viable conversion
ImmutableBlock other = weak;
// use Mutable block for a Registered one: conversion from|no viable conversion
ImmutableBlock other = std::move(block);
// use Registered block for a Mutable one: conversion from|no viable conversion
MutableBlock other = std::move(registered);
// use handle made of nothing: private|no matching|calling a private
MutableBlock other(blocks_detail::CoreRef{}, Buffer{});
// use result of commit ignored: ignoring return value|nodiscard
std::move(block).commit();
// use result of add_token ignored: ignoring return value|nodiscard
block.add_token(1);
// use result of register_block ignored: ignoring return value|nodiscard
std::move(complete).register_block();
// use hashes that are numbers: no matching|cannot convert|could not convert|no viable conversion
const uint64_t numbers[] = {1, 2};
(void)pool.match_blocks(numbers);
// use transfer that keeps a handle with its owner: no matching|constraints not satisfied|not satisf
KeepAlive kept(registered);
// use transfer that holds a weak handle: no matching|constraints not satisfied|not satisf
KeepAlive kept(std::move(weak));
