// A block in each of its states: part of maru/blocks.hpp, which programs include.
#ifndef MARU_BLOCKS_HANDLES_HPP
#define MARU_BLOCKS_HANDLES_HPP

#include <maru/blocks/core.hpp>

namespace maru {
inline namespace api_0 {

enum class BlockState : uint8_t { kReset, kPartial, kComplete, kRegistered };

class CompleteBlock;
class ImmutableBlock;
class BlockPool;

// A block that its owner fills: Reset, without a sequence, or Partial, with one. Going gives the pages back. Calls that are
// qualified && use the block up when they succeed, and leave it as it was when they fail. One thread at a time uses a handle.
class MutableBlock {
 public:
  MutableBlock() = default;
  MutableBlock(MutableBlock&&) = default;
  MutableBlock& operator=(MutableBlock&& other) noexcept {
    if (this == &other) return *this;
    release();
    core_ = std::move(other.core_);
    buffer_ = std::move(other.buffer_);
    tokens_ = std::move(other.tokens_);
    count_ = other.count_;
    salt_hash_ = other.salt_hash_;
    parent_ = other.parent_;
    return *this;
  }
  ~MutableBlock() { release(); }

  bool is_held() const { return bool(core_); }
  BlockState state() const { return tokens_ ? BlockState::kPartial : BlockState::kReset; }
  // The payload, block_bytes of it, to be written at any time before the block is registered. Empty when not held.
  std::span<std::byte> bytes() const { return buffer_.bytes(); }
  size_t len() const { return core_ ? count_ : 0; }
  // How many tokens a Partial block still takes; nothing for a Reset one.
  std::optional<size_t> remaining() const {
    if (!core_ || !tokens_) return std::nullopt;
    return core_->options.page_size - count_;
  }
  std::span<const uint32_t> tokens() const { return {tokens_.get(), len()}; }

  // Reset -> Partial, at the beginning of a sequence or behind `parent`. Errors: kMoved, kNotReset; kOther ENOMEM.
  BlockOutcome<void> init_sequence(uint64_t salt_hash, const std::optional<BlockHash>& parent = std::nullopt) {
    using namespace blocks_detail;
    if (!core_) return moved();
    if (tokens_) return fault(BlockFault::kNotReset, EINVAL, count_);
    tokens_.reset(new (std::nothrow) uint32_t[core_->options.page_size]);
    if (!tokens_) return failed(-ENOMEM);
    count_ = 0;
    salt_hash_ = salt_hash;
    parent_ = parent;
    return {};
  }
  // Errors: kMoved, kNotPartial, kFull.
  BlockOutcome<void> add_token(uint32_t token) {
    using namespace blocks_detail;
    if (const BlockError error = not_partial(); error.fault != BlockFault::kNone) return error;
    if (count_ == core_->options.page_size) return fault(BlockFault::kFull, ENOSPC, count_, count_);
    tokens_[count_++] = token;
    return {};
  }
  // Adds the tokens that fit, and returns the rest, a part of `tokens`: for the next block. Errors: kMoved, kNotPartial.
  BlockOutcome<std::span<const uint32_t>> add_tokens(std::span<const uint32_t> tokens) {
    if (const BlockError error = not_partial(); error.fault != BlockFault::kNone) return error;
    const size_t fits = std::min<size_t>(tokens.size(), core_->options.page_size - count_);
    std::copy_n(tokens.data(), fits, tokens_.get() + count_);
    count_ += uint32_t(fits);
    return tokens.subspan(fits);
  }
  // Takes the last token away, and returns it. Errors: kMoved, kNotPartial, kEmpty.
  BlockOutcome<uint32_t> pop_token() {
    using namespace blocks_detail;
    if (const BlockError error = not_partial(); error.fault != BlockFault::kNone) return error;
    if (count_ == 0) return fault(BlockFault::kEmpty, EINVAL, 0, 1);
    return tokens_[--count_];
  }
  // Errors: kMoved, kNotPartial, kInsufficientTokens (none is taken then).
  BlockOutcome<void> pop_tokens(size_t count) {
    using namespace blocks_detail;
    if (const BlockError error = not_partial(); error.fault != BlockFault::kNone) return error;
    if (count > count_) return fault(BlockFault::kInsufficientTokens, EINVAL, count_, count);
    count_ -= uint32_t(count);
    return {};
  }
  // Partial -> Reset, or nothing for a Reset block. The payload stays as it is. Errors: kMoved.
  BlockOutcome<void> reset() {
    if (!core_) return blocks_detail::moved();
    tokens_.reset();
    count_ = 0;
    parent_.reset();
    return {};
  }

  // Partial -> Complete, when full. Errors: kMoved, kNotPartial, kIncomplete; kOther ENOMEM.
  BlockOutcome<CompleteBlock> commit() &&;
  // Reset -> Complete, with the tokens and the hashes of make_token_block(). Errors: kMoved, kNotReset, kSizeMismatch; kOther
  // ENOMEM.
  BlockOutcome<CompleteBlock> apply_token_block(const TokenBlock& block) &&;
  // Gives the pages back.
  void release() {
    if (core_) core_->mutable_handles.fetch_sub(1, std::memory_order_relaxed);
    tokens_.reset();
    buffer_.abort();
    core_ = {};
  }

 private:
  friend class BlockPool;
  friend class CompleteBlock;
  MutableBlock(blocks_detail::CoreRef core, Buffer buffer) : core_(std::move(core)), buffer_(std::move(buffer)) {
    core_->mutable_handles.fetch_add(1, std::memory_order_relaxed);
  }
  BlockError not_partial() const {
    if (!core_) return blocks_detail::moved();
    if (!tokens_) return blocks_detail::fault(BlockFault::kNotPartial, EINVAL);
    return {};
  }
  CompleteBlock complete(const TokenBlock& block);

  blocks_detail::CoreRef core_;
  Buffer buffer_;
  std::unique_ptr<uint32_t[]> tokens_;  // null: Reset
  uint32_t count_ = 0;
  uint64_t salt_hash_ = 0;
  std::optional<BlockHash> parent_;
};

// A full block with its hashes, which only its owner sees: its payload may still be written. Going gives the pages back.
class CompleteBlock {
 public:
  CompleteBlock() = default;
  CompleteBlock(CompleteBlock&&) = default;
  CompleteBlock& operator=(CompleteBlock&& other) noexcept {
    if (this == &other) return *this;
    release();
    core_ = std::move(other.core_);
    buffer_ = std::move(other.buffer_);
    tokens_ = std::move(other.tokens_);
    block_ = other.block_;
    return *this;
  }
  ~CompleteBlock() { release(); }

  bool is_held() const { return bool(core_); }
  static constexpr BlockState state() { return BlockState::kComplete; }
  std::span<std::byte> bytes() const { return buffer_.bytes(); }
  const BlockHash& hash() const { return block_.hash; }
  uint64_t sequence_hash() const { return block_.hash.sequence; }
  uint64_t block_hash() const { return block_.block_hash; }
  uint64_t salt_hash() const { return block_.salt_hash; }
  const std::optional<BlockHash>& parent() const { return block_.parent; }
  std::span<const uint32_t> tokens() const { return core_ ? block_.tokens : std::span<const uint32_t>{}; }

  // Complete -> Reset. Errors: kMoved.
  BlockOutcome<MutableBlock> reset() && {
    if (!core_) return blocks_detail::moved();
    core_->complete_handles.fetch_sub(1, std::memory_order_relaxed);
    tokens_.reset();
    return MutableBlock(std::move(core_), std::move(buffer_));
  }
  // Complete -> Registered: every process of the pool finds the block from now on. Where the hash is registered already, the
  // handle is of the block that is there, as `duplicates` says. A block with a parent needs it in the pool. Blocks as
  // maru_store() does. Errors: kMoved, kParentGone; kOther with an errno of maru_store or maru_retrieve, or EAGAIN where other
  // processes stored and lost the hash again and again: the block is as before.
  BlockOutcome<ImmutableBlock> register_block() &&;
  BlockOutcome<ImmutableBlock> register_block(Duplicates duplicates) &&;

  // Gives the pages back.
  void release() {
    if (core_) core_->complete_handles.fetch_sub(1, std::memory_order_relaxed);
    tokens_.reset();
    buffer_.abort();
    core_ = {};
  }

 private:
  friend class BlockPool;
  friend class MutableBlock;
  // `parent`: the block under the parent's hash, where the caller holds it; 0: look the hash up.
  BlockOutcome<ImmutableBlock> publish(Duplicates duplicates, maru_block parent);

  blocks_detail::CoreRef core_;
  Buffer buffer_;
  std::unique_ptr<uint32_t[]> tokens_;
  TokenBlock block_;
};

// Names one life of a block and does not hold it. May be copied; keeps the client attached.
class WeakBlock {
 public:
  WeakBlock() = default;
  const BlockHash& hash() const { return hash_; }
  uint64_t sequence_hash() const { return hash_.sequence; }
  maru_block block() const { return block_; }
  // The same life, held. Errors: kGone it was evicted or removed, also where a later block has its hash; kMoved an empty
  // handle; kOther an errno of maru_pin_block, or EHWPOISON its memory is known to be bad.
  BlockOutcome<ImmutableBlock> upgrade() const;

 private:
  friend class ImmutableBlock;
  friend class ImmutableBlocks;
  WeakBlock(blocks_detail::CoreRef core, const BlockHash& hash, const maru_view& view)
      : core_(std::move(core)), hash_(hash), block_(view.block), data_(view.data), bytes_(view.bytes) {}
  blocks_detail::CoreRef core_;
  BlockHash hash_;
  maru_block block_ = 0;
  // Where this life lies in this process, as long as it lasts.
  const void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A registered block, held: neither evicted nor overwritten while the handle lives. Going leaves the block in the pool, where
// others find it until it is evicted.
class ImmutableBlock {
 public:
  ImmutableBlock() = default;
  ImmutableBlock(ImmutableBlock&&) = default;
  ImmutableBlock& operator=(ImmutableBlock&& other) noexcept {
    if (this == &other) return *this;
    release();
    core_ = std::move(other.core_);
    view_ = other.view_;
    hash_ = other.hash_;
    own_ = std::move(other.own_);
    is_new_ = other.is_new_;
    return *this;
  }
  ~ImmutableBlock() { release(); }

  bool is_held() const { return bool(core_); }
  static constexpr BlockState state() { return BlockState::kRegistered; }
  // In place. Of a duplicate: the bytes that the handle's owner wrote. Empty when not held.
  std::span<const std::byte> bytes() const {
    if (!core_) return {};
    if (own_) return own_->bytes();
    return {static_cast<const std::byte*>(view_.data), size_t(view_.bytes)};
  }
  const BlockHash& hash() const { return hash_; }
  uint64_t sequence_hash() const { return hash_.sequence; }
  maru_block block() const { return view_.block; }  // this life; the parent for maru_store, a name for other processes
  bool is_new() const { return is_new_; }           // registered by the call that returned this handle
  bool is_duplicate() const { return own_ != nullptr; }

  // Another handle of this life. Errors: kMoved; kGone the block was unregistered meanwhile: this handle still reads it; kOther
  // ENOBUFS.
  BlockOutcome<ImmutableBlock> clone() const { return downgrade().upgrade(); }
  WeakBlock downgrade() const { return WeakBlock(core_, hash_, view_); }
  // Registered -> Reset: takes this life of the block out of the pool; others that hold it read on. A block that was registered
  // later under the same hash stays. Errors: kMoved; kHasChildren and kOther (EROFS ...): the handle is as before; kGone this
  // life was removed already, and the handle is used up.
  BlockOutcome<void> unregister() &&;

  // Lets go.
  void release() {
    if (!core_) return;
    own_.reset();
    blocks_detail::release_view(*core_.get(), view_, hash_);
    core_ = {};
  }
  // The same for `count` handles, cheaper together. They hold nothing afterwards, so their memory may go without more.
  static void release_all(ImmutableBlock* blocks, size_t count);

 private:
  friend class BlockPool;
  friend class CompleteBlock;
  friend class ImmutableBlocks;
  friend class WeakBlock;
  friend struct blocks_detail::BlockSetAccess;
  ImmutableBlock(blocks_detail::CoreRef core, const maru_view& view, const BlockHash& hash, bool is_new = false)
      : core_(std::move(core)), view_(view), hash_(hash), is_new_(is_new) {}

  blocks_detail::CoreRef core_;
  std::unique_ptr<Buffer> own_;  // of a duplicate
  maru_view view_{};
  BlockHash hash_;
  bool is_new_ = false;
};

inline void ImmutableBlock::release_all(ImmutableBlock* blocks, size_t count) {
  using namespace blocks_detail;
  constexpr size_t kAtOnce = 64;
  maru_view views[kAtOnce];
  size_t gathered = 0;
  uint32_t references = 0;
  Core* core = nullptr;
  const auto let_go = [&] {
    if (gathered != 0) maru_release_batch(core->c(), views, gathered);
    gathered = 0;
    if (references != 0) CoreRef::drop(core, std::exchange(references, 0));
  };
  for (size_t i = 0; i < count; ++i) {
    ImmutableBlock& block = blocks[i];
    if (!block.core_) continue;
    if (block.own_ || block.core_->options.reset_on_release) {
      block.release();
      continue;
    }
    if (core != block.core_.get() || gathered == kAtOnce) let_go();
    core = block.core_.get();
    views[gathered++] = block.view_;
    block.core_.forget();
    ++references;
  }
  let_go();
}

// -- the transitions -------------------------------------------------------------------------------------------------

inline CompleteBlock MutableBlock::complete(const TokenBlock& block) {
  CompleteBlock complete;
  complete.core_ = std::move(core_);
  complete.buffer_ = std::move(buffer_);
  complete.tokens_ = std::move(tokens_);
  complete.block_ = block;
  complete.block_.tokens = {complete.tokens_.get(), block.tokens.size()};
  if (complete.core_->options.sequence_hash_only) {
    complete.block_.hash.check = 0;
    if (complete.block_.parent) complete.block_.parent->check = 0;
  }
  complete.core_->mutable_handles.fetch_sub(1, std::memory_order_relaxed);
  complete.core_->complete_handles.fetch_add(1, std::memory_order_relaxed);
  return complete;
}

inline BlockOutcome<CompleteBlock> MutableBlock::commit() && {
  using namespace blocks_detail;
  if (const BlockError error = not_partial(); error.fault != BlockFault::kNone) return error;
  const uint32_t page_size = core_->options.page_size;
  if (count_ != page_size) return fault(BlockFault::kIncomplete, EINVAL, count_, page_size);
  const BlockOutcome<TokenBlock> block = make_token_block(salt_hash_, page_size, tokens(), parent_);
  if (!block) return block.error();
  return complete(*block);
}

inline BlockOutcome<CompleteBlock> MutableBlock::apply_token_block(const TokenBlock& block) && {
  using namespace blocks_detail;
  if (!core_) return moved();
  if (tokens_) return fault(BlockFault::kNotReset, EINVAL, count_);
  if (block.tokens.size() != core_->options.page_size)
    return fault(BlockFault::kSizeMismatch, EINVAL, block.tokens.size(), core_->options.page_size);
  tokens_.reset(new (std::nothrow) uint32_t[block.tokens.size()]);
  if (!tokens_) return failed(-ENOMEM);
  std::copy(block.tokens.begin(), block.tokens.end(), tokens_.get());
  return complete(block);
}

inline BlockOutcome<ImmutableBlock> CompleteBlock::publish(Duplicates duplicates, maru_block parent) {
  using namespace blocks_detail;
  // A block that is in the way may be evicted before it is held; then this one is stored after all. Each turn needs another
  // process that stores and loses the same hash in between.
  constexpr int kTries = 64;
  const Key key = core_->key(block_.hash);
  Key parent_key;
  maru_store_options options = store_options();
  options.ttl_ms = core_->options.ttl_ms;
  options.priority = core_->options.priority;
  options.parent = parent;
  if (parent == 0 && block_.parent) {
    parent_key = core_->key(*block_.parent);
    options.parent_key = &parent_key;
  }
  int result = -EAGAIN;
  for (int tries = 0; tries < kTries; ++tries) {
    maru_view view{};
    std::unique_lock<std::mutex> lock;
    if (core_->listened) lock = core_->listened->lock();
    result = maru_store_pinned(core_->c(), &key, &buffer_.c(), &options, &view);
    if (result == 0 && core_->listened)
      core_->listened->registered({block_.hash, block_.parent, view.block, core_->options.tenant});
    if (lock.owns_lock()) lock.unlock();
    if (result < 0) break;
    const bool is_new = result == 0;
    if (!is_new && (result = maru_retrieve(core_->c(), &key, &view)) == -ENOENT) {
      result = -EAGAIN;
      continue;
    }
    if (result < 0) break;
    std::unique_ptr<Buffer> own;
    if (!is_new && duplicates == Duplicates::kAllow) {
      own.reset(new (std::nothrow) Buffer());
      if (!own) {
        maru_release(core_->c(), &view);
        return failed(-ENOMEM);
      }
      *own = std::move(buffer_);
    }
    core_->complete_handles.fetch_sub(1, std::memory_order_relaxed);
    tokens_.reset();
    ImmutableBlock block(std::move(core_), view, block_.hash, is_new);
    block.own_ = std::move(own);
    if (is_new)
      buffer_.forget();
    else
      buffer_.abort();
    return block;
  }
  return result == -ENOLINK ? fault(BlockFault::kParentGone, ENOLINK) : failed(result);
}

inline BlockOutcome<ImmutableBlock> CompleteBlock::register_block(Duplicates duplicates) && {
  if (!core_) return blocks_detail::moved();
  return publish(duplicates, 0);
}

inline BlockOutcome<ImmutableBlock> CompleteBlock::register_block() && {
  if (!core_) return blocks_detail::moved();
  return publish(core_->options.duplicates, 0);
}

inline BlockOutcome<ImmutableBlock> WeakBlock::upgrade() const {
  using namespace blocks_detail;
  if (!core_) return moved();
  maru_view view;
  const int result = maru_pin_block(core_->c(), block_, &view);
  if (result == -ENOENT) return fault(BlockFault::kGone, ENOENT);
  if (result < 0) return failed(result);
  if (const int known = maru_view_error(core_->c(), &view); known < 0) {
    maru_release(core_->c(), &view);
    return failed(known);
  }
  view.data = data_;
  view.bytes = bytes_;
  return ImmutableBlock(core_, view, hash_);
}

inline BlockOutcome<void> ImmutableBlock::unregister() && {
  using namespace blocks_detail;
  if (!core_) return moved();
  std::unique_lock<std::mutex> lock;
  if (core_->listened) lock = core_->listened->lock();
  // Without its own pin the pages are free at once, and the parent loses its child.
  maru_release(core_->c(), &view_);
  int result = maru_delete_block(core_->c(), view_.block, 0);
  if (result < 0 && result != -ENOENT) {
    maru_view pin;
    if (maru_pin_block(core_->c(), view_.block, &pin) == 0) {
      view_.pin = pin.pin;
      if (result == -ENOTEMPTY) return fault(BlockFault::kHasChildren, ENOTEMPTY);
      return failed(result);
    }
    result = -ENOENT;  // removed between the two
  }
  if (core_->listened) core_->listened->removed(hash_, view_.block);
  if (lock.owns_lock()) lock.unlock();
  own_.reset();
  core_ = {};
  if (result < 0) return fault(BlockFault::kGone, ENOENT);
  return {};
}

}  // namespace api_0
}  // namespace maru

#endif
