// The life of KV blocks, as NVIDIA Dynamo's block manager (KVBM) has it, over one pool of marud: a block is filled with tokens,
// named by their hashes, registered, matched by other processes, and evicted. C++20, header only, no exceptions.
//
//   BlockPool        the pool, through one client: allocate, register, match, scan, touch, reset
//   MutableBlock     Reset or Partial: pages that its owner fills
//   CompleteBlock    full, with its hashes; only its owner sees it
//   ImmutableBlock   Registered, and held; WeakBlock names one without holding it
//   ImmutableBlocks  what a match or a scan found, held together
//   KeepAlive        holds any of these for a transfer in flight, whatever its type
//   BlockListener    hears of registrations and removals
//
// A state is a type, and a transition uses one handle up and gives the next, so most mistakes do not compile. The others return
// a BlockError: its message() names the state found, the state expected, and the remedy. An error loses nothing: the handle is
// as before.
//
// Bytes stay where they are, in the pool's pages, which every process of the pool reads in place; this layer owns no memory but
// the tokens of unregistered blocks. Handles may go in any order, the pool's handle among them, on any thread; the last one
// detaches the client. One thread at a time uses a handle; all threads may use a BlockPool.
//
// Programs may include two more headers: maru/blocks/attached_manifest.hpp records how blocks were computed, and
// maru/blocks/block_set.hpp hands blocks to another process.
//
// Programs link maru and maru-tokens. maru.h says which calls block or enter the kernel: those that allocate or register may
// ask marud, and the others do neither.
#ifndef MARU_BLOCKS_HPP
#define MARU_BLOCKS_HPP

#include <maru/blocks/handles.hpp>
#include <maru/blocks/keep_alive.hpp>
#include <maru/blocks/matched.hpp>

namespace maru {
inline namespace api_0 {

struct BlockPoolStatus {
  uint64_t active = 0;    // registered blocks that a process holds, and their ancestors
  uint64_t inactive = 0;  // registered blocks that nothing holds: found by matches, and evicted when room is needed
  uint64_t empty = 0;     // blocks of block_bytes for which there are free pages
};

// Unregistered handles of this BlockPool that live now.
struct BlockHandles {
  uint64_t in_mutable = 0;
  uint64_t in_complete = 0;
};

struct AllocatedBlocks {
  BlockList<MutableBlock> blocks;
  // Blocks that this client's requests evicted since the last allocate(), in any thread; maru_next_evicted() keeps 4096.
  // `evicted_others` counts blocks of other tenants or with keys of other kinds.
  BlockList<BlockHash> evicted;
  uint64_t evicted_others = 0;
};

struct RegisteredBlocks {
  BlockList<ImmutableBlock> blocks;  // the registered ones, in the order given
  BlockList<CompleteBlock> rest;     // from the first block that failed on, unchanged
  BlockError error;                  // of rest[0]
  bool ok() const { return error.fault == BlockFault::kNone; }
};

struct ResetBlocks {
  BlockList<BlockHash> reset;
  BlockList<BlockHash> not_found;
  BlockList<BlockHash> not_reset;  // a process holds the block, or the block has children
};

class BlockPool {
 public:
  BlockPool() = default;

  // Takes the client; on a failure the caller keeps it. Errors: kBadOptions page_size, block_bytes; kOther ENOMEM, and the
  // errors of maru_get_geometry.
  static BlockOutcome<BlockPool> create(Client& client, const BlockPoolOptions& options) {
    using namespace blocks_detail;
    if (options.page_size == 0 || options.page_size > MARU_TOKENS_BLOCK_MAX)
      return fault(BlockFault::kBadOptions, EINVAL, options.page_size, MARU_TOKENS_BLOCK_MAX);
    if (!client.is_attached()) return moved();
    const Outcome<maru_geometry> geometry = client.geometry();
    if (!geometry) return failed(-geometry.error());
    const uint64_t region_bytes = geometry->page_bytes * geometry->region_pages;
    if (options.block_bytes == 0 || options.block_bytes > region_bytes)
      return fault(BlockFault::kBadOptions, EINVAL, options.block_bytes, region_bytes);
    BlockPool pool;
    Core* const core = new (std::nothrow) Core(std::move(client), options);
    if (core == nullptr) return failed(-ENOMEM);
    pool.core_ = CoreRef::adopt(core);
    pool.block_pages_ = (options.block_bytes + geometry->page_bytes - 1) / geometry->page_bytes;
    return pool;
  }

  bool is_held() const { return bool(core_); }
  // For calls of maru.hpp. Only when is_held().
  Client& client() const { return core_->client; }
  const BlockPoolOptions& options() const { return core_->options; }

  // Takes n blocks (1 to 2^20), all Reset, or none; evicts blocks that nothing holds where there is too little room. Errors:
  // kBadOptions n; kNotEnoughBlocks; kOther with an errno of maru_alloc.
  BlockOutcome<AllocatedBlocks> allocate(size_t n) const {
    using namespace blocks_detail;
    constexpr size_t kBlocksMax = 1u << 20;  // of a batch of maru.h
    if (!core_) return moved();
    if (n == 0 || n > kBlocksMax) return fault(BlockFault::kBadOptions, EINVAL, n, kBlocksMax);
    AllocatedBlocks out;
    if (!out.blocks.reserve(n)) return failed(-ENOMEM);
    const std::unique_ptr<maru_buffer[]> buffers(new (std::nothrow) maru_buffer[n]());
    if (!buffers) return failed(-ENOMEM);
    const int result = maru_alloc_batch(core_->c(), core_->options.block_bytes, n, buffers.get());
    take_evicted(out);
    if (result == -ENOSPC) {
      const BlockOutcome<BlockPoolStatus> now = status();
      return fault(BlockFault::kNotEnoughBlocks, ENOSPC, now ? now->empty + now->inactive : 0, n);
    }
    if (result < 0) return failed(result);
    for (size_t i = 0; i < n; ++i) out.blocks.push(MutableBlock(core_, Buffer(core_->c(), buffers[i])));
    return out;
  }

  // Registers blocks in their order, parents before their children, each as CompleteBlock::register_block() does. The first
  // failure ends the call.
  RegisteredBlocks register_blocks(BlockList<CompleteBlock> blocks) const {
    return register_blocks(std::move(blocks), core_ ? core_->options.duplicates : Duplicates::kReject);
  }
  RegisteredBlocks register_blocks(BlockList<CompleteBlock> blocks, Duplicates duplicates) const {
    using namespace blocks_detail;
    RegisteredBlocks out;
    if (!core_) out.error = moved();
    if (out.ok() && (!out.blocks.reserve(blocks.size()) || !out.rest.reserve(blocks.size())))
      out.error = failed(-ENOMEM);
    if (!out.ok()) {
      out.rest = std::move(blocks);
      return out;
    }
    size_t done = 0;
    for (; done < blocks.size(); ++done) {
      out.error = register_next(blocks[done], duplicates, out.blocks);
      if (!out.ok()) break;
    }
    for (; done < blocks.size(); ++done) out.rest.push(std::move(blocks[done]));
    return out;
  }

  // Matches the longest run of leading hashes with blocks in the pool, held together. It ends at the first miss; a block that
  // cannot be read is a miss, too. Errors: kOther ENOBUFS, ENOMEM, ESHUTDOWN.
  BlockOutcome<ImmutableBlocks> match_blocks(std::span<const BlockHash> hashes) const {
    if (!core_) return blocks_detail::moved();
    return ImmutableBlocks::match(core_, hashes);
  }
  // Finds and holds each block that is there under one of the hashes, in the order of the hashes. Errors: as match_blocks.
  BlockOutcome<ImmutableBlocks> scan_matches(std::span<const BlockHash> hashes) const {
    if (!core_) return blocks_detail::moved();
    return ImmutableBlocks::scan(core_, hashes);
  }
  // Counts as a use of each block that is there, for the eviction policy. Returns how many are there. Errors: as match_blocks.
  BlockOutcome<size_t> touch(std::span<const BlockHash> hashes) const {
    using namespace blocks_detail;
    if (!core_) return moved();
    size_t there = 0;
    for (const BlockHash& hash : hashes) {
      const Key key = core_->key(hash);
      maru_view view;
      const int result = maru_pin(core_->c(), &key, &view);
      if (result == -ENOENT) continue;
      if (result < 0) return failed(result);
      maru_release(core_->c(), &view);
      ++there;
    }
    return there;
  }

  // Takes registered blocks out of the pool, the last of the hashes first, so that a chain may be given as it was matched.
  // Errors: kOther EROFS, ENOMEM, ESHUTDOWN; blocks that are out stay out.
  BlockOutcome<ResetBlocks> reset_blocks(std::span<const BlockHash> hashes) const {
    using namespace blocks_detail;
    if (!core_) return moved();
    const std::unique_ptr<int[]> results(new (std::nothrow) int[hashes.size()]);
    ResetBlocks out;
    if (!results || !out.reset.reserve(hashes.size()) || !out.not_found.reserve(hashes.size()) ||
        !out.not_reset.reserve(hashes.size()))
      return failed(-ENOMEM);
    for (size_t i = hashes.size(); i-- > 0;) {
      results[i] = reset_one(hashes[i]);
      if (results[i] != 0 && results[i] != -ENOENT && results[i] != -EBUSY && results[i] != -ENOTEMPTY)
        return failed(results[i]);
    }
    for (size_t i = 0; i < hashes.size(); ++i) {
      BlockList<BlockHash>& list = results[i] == 0 ? out.reset : results[i] == -ENOENT ? out.not_found : out.not_reset;
      list.push(BlockHash(hashes[i]));
    }
    return out;
  }

  // Counts the whole pool, of all processes: some milliseconds for a million pages (maru_count_blocks).
  BlockOutcome<BlockPoolStatus> status() const {
    using namespace blocks_detail;
    if (!core_) return moved();
    maru_block_counts counts{};
    counts.size = sizeof(counts);
    if (const int result = maru_count_blocks(core_->c(), &counts); result < 0) return failed(result);
    // Counted while others go on: a block may be held that was not there yet.
    const uint64_t held = std::min(counts.held, counts.blocks);
    return BlockPoolStatus{held, counts.blocks - held, counts.free_pages / block_pages_};
  }
  BlockHandles handles() const {
    if (!core_) return {};
    return {core_->mutable_handles.load(std::memory_order_relaxed),
            core_->complete_handles.load(std::memory_order_relaxed)};
  }

  // Tells the listener of registered blocks that are gone, by any process's removal or eviction. Looks at each registration.
  // Returns how many were gone.
  size_t reconcile() const {
    if (!core_ || !core_->listened) return 0;
    const auto lock = core_->listened->lock();
    return core_->listened->look_at_all(core_->c());
  }

 private:
  friend struct blocks_detail::BlockSetAccess;
  BlockError register_next(CompleteBlock& block, Duplicates duplicates, BlockList<ImmutableBlock>& done) const {
    using namespace blocks_detail;
    if (!block.core_) return moved();
    if (block.core_.get() != core_.get()) return fault(BlockFault::kWrongPool, EINVAL);
    // A parent that is held need not be looked up.
    const bool follows = !done.empty() && block.parent() == done[done.size() - 1].hash();
    BlockOutcome<ImmutableBlock> registered = block.publish(duplicates, follows ? done[done.size() - 1].block() : 0);
    if (!registered) return registered.error();
    done.push(std::move(*registered));
    return {};
  }

  int reset_one(const BlockHash& hash) const {
    const Key key = core_->key(hash);
    maru_view view;
    std::unique_lock<std::mutex> lock;
    if (core_->listened) lock = core_->listened->lock();
    if (const int result = maru_pin(core_->c(), &key, &view); result < 0) return result;
    maru_release(core_->c(), &view);
    const int result = maru_delete_block(core_->c(), view.block, MARU_DELETE_UNPINNED);
    if (result == 0 && core_->listened) core_->listened->removed(hash, view.block);
    return result;
  }

  void take_evicted(AllocatedBlocks& out) const {
    maru_key_copy key;
    while (maru_next_evicted(core_->c(), &key) == 0) {
      BlockHash hash;
      if (key.kind != MARU_KEY_DIGEST128 || key.tenant != core_->options.tenant) {
        ++out.evicted_others;
        continue;
      }
      std::memcpy(&hash, key.data, sizeof(hash));
      if (core_->listened) {
        const auto lock = core_->listened->lock();
        core_->listened->look(core_->c(), hash);
      }
      if (!out.evicted.push(std::move(hash))) ++out.evicted_others;
    }
  }

  blocks_detail::CoreRef core_;
  uint64_t block_pages_ = 1;
};

}  // namespace api_0
}  // namespace maru

#endif
