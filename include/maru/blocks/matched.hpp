// Many registered blocks at once: part of maru/blocks.hpp, which programs include.
#ifndef MARU_BLOCKS_MATCHED_HPP
#define MARU_BLOCKS_MATCHED_HPP

#include <maru/blocks/handles.hpp>

namespace maru {
inline namespace api_0 {

namespace blocks_detail {

// The keys of hashes, on the stack for as many as an engine asks for at once.
class Keys {
 public:
  Keys(const Core& core, std::span<const BlockHash> hashes) {
    if (hashes.size() > kInPlace) more_.reset(new (std::nothrow) maru_key[hashes.size()]);
    data_ = hashes.size() > kInPlace ? more_.get() : in_place_;
    if (data_ == nullptr) return;
    const uint64_t tenant = core.options.tenant;
    for (size_t i = 0; i < hashes.size(); ++i) data_[i] = {&hashes[i], sizeof(BlockHash), MARU_KEY_DIGEST128, tenant};
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;
  const maru_key* data() const { return data_; }  // null for want of memory

 private:
  static constexpr size_t kInPlace = 256;
  maru_key in_place_[kInPlace];
  std::unique_ptr<maru_key[]> more_;
  maru_key* data_ = nullptr;
};

}  // namespace blocks_detail

// Blocks that a match or a scan found, held until this goes; it is cheaper than as many handles. A matched chain is held by one
// pin on its deepest block.
class ImmutableBlocks {
 public:
  ImmutableBlocks() = default;
  ImmutableBlocks(ImmutableBlocks&& other) noexcept
      : core_(std::move(other.core_)),
        match_(std::exchange(other.match_, {})),
        views_(std::move(other.views_)),
        hashes_(other.hashes_),
        size_(std::exchange(other.size_, 0)) {}
  ImmutableBlocks& operator=(ImmutableBlocks&& other) noexcept {
    if (this == &other) return *this;
    release();
    core_ = std::move(other.core_);
    match_ = std::exchange(other.match_, {});
    views_ = std::move(other.views_);
    hashes_ = other.hashes_;
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~ImmutableBlocks() { release(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Of block i, below size().
  std::span<const std::byte> bytes(size_t i) const {
    return {static_cast<const std::byte*>(view(i).data), size_t(view(i).bytes)};
  }
  const BlockHash& hash(size_t i) const { return hashes_[i]; }
  uint64_t sequence_hash(size_t i) const { return hashes_[i].sequence; }
  maru_block block(size_t i) const { return view(i).block; }
  WeakBlock downgrade(size_t i) const { return WeakBlock(core_, hashes_[i], view(i)); }
  // A handle of its own for block i, which holds it when this is gone. Errors: kGone the block was unregistered meanwhile: it
  // can be read here; kOther ENOBUFS.
  BlockOutcome<ImmutableBlock> hold(size_t i) const { return downgrade(i).upgrade(); }
  // Keeps the first `count` blocks and lets the others go. Errors: kBadOptions count is more than size(); kGone one of them was
  // unregistered meanwhile, and kOther ENOBUFS: all blocks are held as before.
  BlockOutcome<void> truncate(size_t count);
  // Lets all go.
  void release();

 private:
  friend class BlockPool;
  static BlockOutcome<ImmutableBlocks> match(const blocks_detail::CoreRef& core, std::span<const BlockHash> hashes);
  static BlockOutcome<ImmutableBlocks> scan(const blocks_detail::CoreRef& core, std::span<const BlockHash> hashes);
  // Room for n views and their hashes, uninitialised.
  bool reserve(size_t n) {
    views_.reset(static_cast<std::byte*>(::operator new(n * (sizeof(maru_view) + sizeof(BlockHash)), std::nothrow)));
    hashes_ = reinterpret_cast<BlockHash*>(views_.get() + n * sizeof(maru_view));
    return views_ != nullptr;
  }
  void take_away(size_t first);  // where the pool wants that of blocks without handles
  BlockError take_readable(const maru_key* keys, std::span<const BlockHash> hashes);
  maru_view* views() const { return reinterpret_cast<maru_view*>(views_.get()); }
  const maru_view& view(size_t i) const { return views()[i]; }
  // A view of a match has no pin of its own.
  bool is_match() const { return match_.blocks != 0; }

  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory); }
  };
  blocks_detail::CoreRef core_;
  maru_match match_{};
  std::unique_ptr<std::byte, Free> views_;
  BlockHash* hashes_ = nullptr;
  size_t size_ = 0;
};

// The deepest first: a block is taken away only when nothing continues it. Ends the pins that blocks have of their own.
inline void ImmutableBlocks::take_away(size_t first) {
  if (!core_->options.reset_on_release) return;
  for (size_t i = size_; i-- > first;) blocks_detail::release_view(*core_.get(), view(i), hashes_[i]);
}

inline void ImmutableBlocks::release() {
  if (!core_) return;
  using namespace blocks_detail;
  if (is_match()) {
    maru_release_match(core_->c(), &match_);
    match_ = {};
  } else if (!core_->options.reset_on_release) {
    maru_release_batch(core_->c(), views(), size_);
  }
  take_away(0);
  size_ = 0;
  views_.reset();
  core_ = {};
}

inline BlockOutcome<ImmutableBlocks> ImmutableBlocks::match(const blocks_detail::CoreRef& core,
                                                            std::span<const BlockHash> hashes) {
  using namespace blocks_detail;
  ImmutableBlocks out;
  const Keys keys(*core.get(), hashes);
  if (keys.data() == nullptr) return failed(-ENOMEM);
  maru_match match{};
  if (const int result = maru_match_prefix(core->c(), keys.data(), hashes.size(), &match); result < 0)
    return failed(result);
  if (match.blocks == 0) {
    maru_release_match(core->c(), &match);
    return out;
  }
  if (!out.reserve(match.blocks)) {
    maru_release_match(core->c(), &match);
    return failed(-ENOMEM);
  }
  out.core_ = core;
  std::copy_n(hashes.data(), match.blocks, out.hashes_);
  const int result = maru_resolve(core->c(), &match, keys.data(), match.blocks, out.views());
  if (result == 0) {
    out.size_ = match.blocks;
    out.match_ = match;
    return out;
  }
  // Something of it cannot be read: those before it can.
  const size_t blocks = match.blocks;
  maru_release_match(core->c(), &match);
  if (const BlockError error = out.take_readable(keys.data(), hashes.first(blocks)); error.fault != BlockFault::kNone)
    return error;
  return out;
}

inline BlockError ImmutableBlocks::take_readable(const maru_key* keys, std::span<const BlockHash> hashes) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const int result = maru_retrieve(core_->c(), &keys[i], &views()[i]);
    if (result == -ENOENT || result == -EIO || result == -EHWPOISON) break;
    if (result < 0) return blocks_detail::failed(result);
    size_ = i + 1;
  }
  return {};
}

inline BlockOutcome<ImmutableBlocks> ImmutableBlocks::scan(const blocks_detail::CoreRef& core,
                                                           std::span<const BlockHash> hashes) {
  using namespace blocks_detail;
  ImmutableBlocks out;
  const Keys keys(*core.get(), hashes);
  if (keys.data() == nullptr || !out.reserve(hashes.size())) return failed(-ENOMEM);
  const int result = maru_retrieve_batch(core->c(), keys.data(), hashes.size(), out.views());
  if (result < 0) return failed(result);
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (out.view(i).block == 0) continue;
    out.views()[out.size_] = out.view(i);
    out.hashes_[out.size_++] = hashes[i];
  }
  if (out.size_ != 0) out.core_ = core;
  return out;
}

inline BlockOutcome<void> ImmutableBlocks::truncate(size_t count) {
  using namespace blocks_detail;
  if (count > size_) return fault(BlockFault::kBadOptions, EINVAL, count, size_);
  if (count == size_) return {};
  if (count == 0) {
    release();
    return {};
  }
  if (is_match()) {
    // Each block with a pin of its own, so that this works for blocks that are no chain, too.
    size_t pinned = 0;
    int result = 0;
    for (; pinned < count && result == 0; ++pinned) {
      maru_view pin;
      result = maru_pin_block(core_->c(), view(pinned).block, &pin);
      if (result == 0) views()[pinned].pin = pin.pin;
    }
    if (result < 0) {
      for (size_t i = 0; i + 1 < pinned; ++i) {
        maru_release(core_->c(), &view(i));
        views()[i].pin = 0;
      }
      return result == -ENOENT ? fault(BlockFault::kGone, ENOENT) : failed(result);
    }
    maru_release_match(core_->c(), &match_);
    match_ = {};
  } else if (!core_->options.reset_on_release) {
    maru_release_batch(core_->c(), views() + count, size_ - count);
  }
  take_away(count);
  size_ = count;
  return {};
}

}  // namespace api_0
}  // namespace maru

#endif
