// The errors in the life of a block: part of maru/blocks.hpp, which programs include.
#ifndef MARU_BLOCKS_FAULTS_HPP
#define MARU_BLOCKS_FAULTS_HPP

#include <maru/maru.hpp>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

namespace maru {
inline namespace api_0 {

enum class BlockFault : uint8_t {
  kNone,
  kMoved,               // the handle was moved from, or used up
  kNotReset,            // init_sequence or apply_token_block on a block with a sequence
  kNotPartial,          // tokens or commit without a sequence
  kFull,                // add_token on a full block
  kEmpty,               // pop_token on a block without a token
  kInsufficientTokens,  // pop_tokens asks for more than there are
  kIncomplete,          // commit before the block is full
  kSizeMismatch,        // a token block of another size
  kWrongPool,           // a handle of another BlockPool
  kNotEnoughBlocks,     // allocate
  kParentGone,          // register: the parent is not in the pool any more
  kGone,                // this life of the block is over
  kHasChildren,         // unregister of a block that others continue
  kBadOptions,          // BlockPool::create, or another argument that is impossible
  kOther,               // `code` is an errno of maru.h
};

// Text in place: an error needs no memory.
struct BlockMessage {
  char text[192] = {};
  const char* c_str() const { return text; }
};

struct BlockError {
  BlockFault fault = BlockFault::kNone;
  int code = 0;           // errno, positive
  uint64_t found = 0;     // tokens, blocks or bytes, as the fault has it
  uint64_t expected = 0;  // the same unit

  // A sentence with the found state or number, the expected value, and the remedy.
  BlockMessage message() const {
    BlockMessage out;
    const auto say = [&](const char* format, auto... values) {
      std::snprintf(out.text, sizeof(out.text), format, values...);
    };
    const char* const state = found == 0 ? "Reset" : "Partial";
    switch (fault) {
      case BlockFault::kNone: say("%s", "no error"); break;
      case BlockFault::kMoved:
        say("%s", "the handle holds no block: it was moved from or used up; use the handle that has the block now");
        break;
      case BlockFault::kNotReset:
        say("block is not reset: it has a sequence of %" PRIu64 " tokens; expected a Reset block: call reset() first",
            found);
        break;
      case BlockFault::kNotPartial:
        say("block is not partial: found a %s block; expected a Partial one: call init_sequence() first", state);
        break;
      case BlockFault::kFull:
        say("block is full: it has %" PRIu64 " of %" PRIu64 " tokens; commit it, and go on in the next block", found,
            expected);
        break;
      case BlockFault::kEmpty: say("%s", "block has no token to take away; expected at least one"); break;
      case BlockFault::kInsufficientTokens:
        say("block has %" PRIu64 " tokens; %" PRIu64 " were to be taken away: take fewer", found, expected);
        break;
      case BlockFault::kIncomplete:
        say("block is incomplete: found %" PRIu64 " tokens, expected %" PRIu64 ": add the rest before commit()", found,
            expected);
        break;
      case BlockFault::kSizeMismatch:
        say("token block has %" PRIu64 " tokens, the pool's blocks have %" PRIu64
            ": cut the sequence by the pool's page size",
            found, expected);
        break;
      case BlockFault::kWrongPool: say("%s", "the block belongs to another BlockPool: give it to that pool"); break;
      case BlockFault::kNotEnoughBlocks:
        say("%" PRIu64 " blocks were asked for, and there is room for %" PRIu64
            " beside held ones: release handles or ask for fewer",
            expected, found);
        break;
      case BlockFault::kParentGone:
        say("%s", "the parent is not in the pool any more: register the parent again first");
        break;
      case BlockFault::kGone:
        say("%s", "this block was evicted or removed; match its hash, or compute it again");
        break;
      case BlockFault::kHasChildren:
        say("%s", "the block has children in the pool: unregister these first, or let eviction do it");
        break;
      case BlockFault::kBadOptions:
        say("found %" PRIu64 ", expected 1 to %" PRIu64 ": correct the argument", found, expected);
        break;
      case BlockFault::kOther:
        say("errno %d: the call's comment in maru.h says what it means and what to do", code);
        break;
    }
    return out;
  }
};

// Either a T, or the BlockError that says why there is none.
template <typename T>
class [[nodiscard]] BlockOutcome {
 public:
  BlockOutcome(T value) : value_(std::move(value)) {}
  BlockOutcome(BlockError error) : error_(error) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const
    requires(!std::is_same_v<T, bool>)
  {
    return ok();
  }
  const BlockError& error() const { return error_; }  // kNone when there is a value

  // Only when ok().
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  BlockError error_;
};

template <>
class [[nodiscard]] BlockOutcome<void> {
 public:
  BlockOutcome() = default;
  BlockOutcome(BlockError error) : error_(error) {}

  bool ok() const { return error_.fault == BlockFault::kNone; }
  explicit operator bool() const { return ok(); }
  const BlockError& error() const { return error_; }

 private:
  BlockError error_;
};

namespace blocks_detail {

inline BlockError fault(BlockFault which, int code, uint64_t found = 0, uint64_t expected = 0) {
  return {which, code, found, expected};
}
inline BlockError moved() { return fault(BlockFault::kMoved, EINVAL); }
// `result`: the negative result of a call of maru.h.
inline BlockError failed(int result) { return fault(BlockFault::kOther, -result); }

}  // namespace blocks_detail

}  // namespace api_0
}  // namespace maru

#endif
