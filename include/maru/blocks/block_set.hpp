// Passes blocks to another process of the pool, as bytes: the lives of the blocks, their keys and lengths, and the manifest of
// their content. C++20, header only; programs link maru, maru-tokens and maru-layout.
//
//   export_blocks()   the bytes, which go to the other process by any way
//   import_blocks()   immutable handles of exactly these lives, or a named error
//   BlockSet          the content of the bytes
//
// A set holds nothing: the exporter keeps its handles until the importer has its own. All numbers are little-endian:
//
//   0    magic "MARUBSET"
//   8    version, 32 bits: 1
//   12   bytes of the manifest, 32 bits: a multiple of 8
//   16   bytes of all, 64 bits
//   24   uuid of the pool, 16 bytes
//   40   exporter, 16 random bytes; serial, tenant, number of blocks, 64 bits each
//   80   each block: its life (maru_block), sequence hash, second hash, bytes, 64 bits each
//   ...  the manifest; a checksum, 64 bits, computed as in a manifest
#ifndef MARU_BLOCKS_BLOCK_SET_HPP
#define MARU_BLOCKS_BLOCK_SET_HPP

#include <maru/blocks.hpp>
#include <maru/blocks/manifest.hpp>

#include <sys/random.h>

namespace maru {
inline namespace api_0 {

inline constexpr size_t kBlockSetBlocksMax = 1u << 20;

enum class BlockSetFault : uint8_t {
  kNone,
  kMoved,          // the pool or a block is an empty handle
  kWrongPool,      // export: a block is of another BlockPool
  kDamaged,        // the bytes are no block set, or are cut or damaged
  kVersion,        // the block set, or its manifest, is of another version
  kOtherPool,      // the set is of another pool
  kOtherManifest,  // the set's manifest differs
  kOtherTenant,    // the blocks are of another tenant
  kOwnSet,         // this BlockPool exported the set: use the handles that it has
  kImported,       // this BlockPool has imported the set, and still has that import
  kGone,           // blocks of the set are gone; `gone` says which
  kOther,          // `code`: EINVAL a field is out of range, or an errno of maru.h
};

struct BlockSetError {
  BlockSetFault fault = BlockSetFault::kNone;
  Refusal refusal;
  bool ok() const { return fault == BlockSetFault::kNone; }
  int code() const { return refusal.code; }                         // errno, positive
  std::string_view message() const { return refusal.reason.text; }  // the found value, the expected value, the remedy
};

// The content of the bytes.
struct BlockSet {
  struct Block {
    maru_block block = 0;  // which life
    BlockHash hash;
    uint64_t bytes = 0;
  };
  static_assert(sizeof(Block) == 32 && std::has_unique_object_representations_v<Block>);

  std::array<uint8_t, 16> pool_uuid{};
  uint64_t exporter[2] = {};
  uint64_t serial = 0;  // 1 for the exporter's first
  uint64_t tenant = 0;
  Manifest manifest;
  std::vector<Block> blocks;

  // Errors: EINVAL no block, or more than kBlockSetBlocksMax; the errors of Manifest::encode.
  Answer<std::vector<std::byte>> encode() const;
  // Any bytes. Errors: of encode; EBADMSG they are no block set, or are cut or damaged; EPROTONOSUPPORT they, or the manifest
  // in them, have another version.
  static Answer<BlockSet> decode(std::span<const std::byte> bytes);
};

// The blocks of a set, held. While this lives, the same set cannot be imported again into this BlockPool; the handles may be
// moved out of `blocks`, and live on their own. Goes on any thread.
class ImportedBlocks {
 public:
  BlockList<ImmutableBlock> blocks;  // in the order of the set
  BlockList<size_t> gone;            // with kGone: which of the set, counted from 0
  BlockSetError error;

  bool ok() const { return error.ok(); }
  ImportedBlocks() = default;
  ImportedBlocks(ImportedBlocks&& other) noexcept
      : blocks(std::move(other.blocks)),
        gone(std::move(other.gone)),
        error(other.error),
        core_(std::move(other.core_)),
        id_(other.id_) {}
  ImportedBlocks& operator=(ImportedBlocks&& other) noexcept {
    if (this == &other) return *this;
    release();
    blocks = std::move(other.blocks);
    gone = std::move(other.gone);
    error = other.error;
    core_ = std::move(other.core_);
    id_ = other.id_;
    return *this;
  }
  ~ImportedBlocks() { release(); }
  // Lets the blocks go, and forgets the set.
  void release() {
    blocks.clear();
    if (!core_) return;
    {
      const std::lock_guard<std::mutex> lock(core_->sets.mutex);
      std::erase(core_->sets.imported, id_);
    }
    core_ = {};
  }

 private:
  friend struct blocks_detail::BlockSetAccess;
  blocks_detail::CoreRef core_;  // when it has the set
  blocks_detail::BlockSetId id_;
};

inline Answer<std::vector<std::byte>> BlockSet::encode() const {
  using namespace blocks_detail;
  if (blocks.empty() || blocks.size() > kBlockSetBlocksMax)
    return refuse(EINVAL, "blocks: found %zu, expected 1 to %zu", blocks.size(), kBlockSetBlocksMax);
  const Answer<std::vector<std::byte>> of_manifest = manifest.encode();
  if (!of_manifest) return of_manifest;
  ByteWriter out;
  out.put("MARUBSET", 8);
  out.put(uint32_t(1));
  out.put(uint32_t(of_manifest->size()));
  out.put(uint64_t(80 + blocks.size() * sizeof(Block) + of_manifest->size() + sizeof(uint64_t)));
  out.put(pool_uuid);
  out.put(exporter);
  for (const uint64_t number : {serial, tenant, uint64_t(blocks.size())}) out.put(number);
  out.put(blocks.data(), blocks.size() * sizeof(Block));
  out.put(of_manifest->data(), of_manifest->size());
  return out.close();
}

inline Answer<BlockSet> BlockSet::decode(std::span<const std::byte> bytes) {
  using namespace blocks_detail;
  constexpr size_t kHead = 80, kMin = kHead + sizeof(Block) + 2 * sizeof(uint64_t);
  constexpr size_t kMax = kHead + kBlockSetBlocksMax * sizeof(Block) + kManifestBytesMax + sizeof(uint64_t);
  if (const Refusal bad = check_frame<uint64_t>("block set", "MARUBSET", 1, 16, kMin, kMax, bytes); bad.code != 0)
    return bad;
  ByteReader in(bytes.first(bytes.size() - sizeof(uint64_t)));
  BlockSet set;
  in.take_bytes(12);
  const uint64_t manifest_bytes = in.take<uint32_t>();
  in.take<uint64_t>();
  set.pool_uuid = in.take<std::array<uint8_t, 16>>();
  for (uint64_t& half : set.exporter) half = in.take<uint64_t>();
  set.serial = in.take<uint64_t>();
  set.tenant = in.take<uint64_t>();
  const uint64_t count = in.take<uint64_t>();
  const size_t room = bytes.size() - kHead - sizeof(uint64_t);
  if (count == 0 || count > kBlockSetBlocksMax || count * sizeof(Block) + manifest_bytes != room)
    return refuse(
        EBADMSG,
        "blocks: found %llu and a manifest of %llu bytes, expected %zu bytes of both: the block set is damaged",
        static_cast<unsigned long long>(count), static_cast<unsigned long long>(manifest_bytes), room);
  set.blocks.resize(size_t(count));
  const std::span<const std::byte> table = in.take_bytes(size_t(count) * sizeof(Block));
  std::memcpy(set.blocks.data(), table.data(), table.size());
  Answer<Manifest> manifest = Manifest::decode(in.take_bytes(size_t(manifest_bytes)));
  if (!manifest) return refuse(manifest.error(), "manifest: %.240s", manifest.reason().data());
  set.manifest = std::move(*manifest);
  return set;
}

namespace blocks_detail {

struct BlockSetAccess {
  static BlockSetError wrong(BlockSetFault fault, const Refusal& refusal) { return {fault, refusal}; }
  static BlockSetError moved(const char* what) {
    return {BlockSetFault::kMoved, refuse(EINVAL, "the handle of %s is empty: use the handle that holds it now", what)};
  }
  static std::string hex(const std::array<uint8_t, 16>& uuid) {
    return to_text(std::bit_cast<ManifestFingerprint>(uuid));
  }
  // Errors: an errno of maru_get_geometry, negative.
  static int uuid_of(const Core& core, std::array<uint8_t, 16>& ret_uuid) {
    maru_geometry geometry{};
    geometry.size = sizeof(geometry);
    const int result = maru_get_geometry(core.c(), &geometry);
    if (result == 0) std::memcpy(ret_uuid.data(), geometry.uuid, ret_uuid.size());
    return result;
  }

  static BlockSetError gather(const CoreRef& core, std::span<const ImmutableBlock> blocks, BlockSet& set) {
    for (const ImmutableBlock& block : blocks) {
      if (!block.core_) return moved("a block");
      if (block.core_.get() != core.get())
        return {BlockSetFault::kWrongPool, refuse(EINVAL, "a block is of another BlockPool: export it from that one")};
      set.blocks.push_back({block.view_.block, block.hash_, block.view_.bytes});
    }
    return {};
  }

  static BlockSetError take_id(Core& core, BlockSet& set) {
    const std::lock_guard<std::mutex> lock(core.sets.mutex);
    BlockSetId& last = core.sets.last;
    if (last.serial == 0 && ::getrandom(last.exporter, sizeof(last.exporter), 0) != sizeof(last.exporter))
      return {BlockSetFault::kOther, refuse(errno, "getrandom(2) gave no name for the exporter: try again")};
    ++last.serial;
    std::copy_n(last.exporter, 2, set.exporter);
    set.serial = last.serial;
    return {};
  }

  static Answer<std::vector<std::byte>> encode(const BlockPool& pool, const Manifest& manifest,
                                               std::span<const ImmutableBlock> blocks, BlockSetError& error) {
    BlockSet set;
    const CoreRef& core = pool.core_;
    if (!core)
      error = moved("the pool");
    else
      error = gather(core, blocks, set);
    if (!error.ok()) return error.refusal;
    set.tenant = core->options.tenant;
    set.manifest = manifest;
    if (const int result = uuid_of(*core.get(), set.pool_uuid); result < 0)
      error = {BlockSetFault::kOther, refuse(-result, "errno %d of maru_get_geometry", -result)};
    else
      error = take_id(*core.get(), set);
    if (!error.ok()) return error.refusal;
    Answer<std::vector<std::byte>> bytes = set.encode();
    if (!bytes) error = {BlockSetFault::kOther, refuse(bytes.error(), "%s", bytes.reason().data())};
    return bytes;
  }

  // All that can be refused without a look at a block.
  static BlockSetError check(const Core& core, const BlockSet& set, const Manifest& expected) {
    std::array<uint8_t, 16> uuid{};
    if (const int result = uuid_of(core, uuid); result < 0)
      return {BlockSetFault::kOther, refuse(-result, "errno %d of maru_get_geometry", -result)};
    if (uuid != set.pool_uuid)
      return {BlockSetFault::kOtherPool,
              refuse(EXDEV, "pool: found the uuid %s, expected %s: import the set in a process of its pool",
                     hex(set.pool_uuid).c_str(), hex(uuid).c_str())};
    if (const Answer<void> same = set.manifest.expect(expected); !same)
      return {same.error() == EEXIST ? BlockSetFault::kOtherManifest : BlockSetFault::kOther,
              refuse(same.error(), "%s", same.reason().data())};
    if (set.tenant != core.options.tenant)
      return {BlockSetFault::kOtherTenant,
              refuse(EINVAL,
                     "tenant: found %016" PRIx64 ", expected %016" PRIx64 ": import it into a BlockPool of its tenant",
                     set.tenant, core.options.tenant)};
    return {};
  }

  static BlockSetError claim(const CoreRef& core, ImportedBlocks& out) {
    const std::lock_guard<std::mutex> lock(core->sets.mutex);
    BlockSets& sets = core->sets;
    if (sets.last.serial != 0 && std::equal(out.id_.exporter, out.id_.exporter + 2, sets.last.exporter))
      return {BlockSetFault::kOwnSet,
              refuse(ELOOP, "set %" PRIu64 " is this BlockPool's own: use the handles that it was made of",
                     out.id_.serial)};
    if (std::ranges::find(sets.imported, out.id_) != sets.imported.end())
      return {BlockSetFault::kImported,
              refuse(EALREADY, "set %" PRIu64 " of this exporter is imported: use that import, or release it first",
                     out.id_.serial)};
    sets.imported.push_back(out.id_);
    out.core_ = core;
    return {};
  }

  // Pins the lives of the set, all or none.
  static BlockSetError pin(const CoreRef& core, const BlockSet& set, ImportedBlocks& out) {
    const size_t n = set.blocks.size();
    std::vector<Key> keys;
    keys.reserve(n);
    for (const BlockSet::Block& block : set.blocks) keys.push_back(core->key(block.hash));
    std::vector<maru_view> views(n);
    if (!out.blocks.reserve(n) || !out.gone.reserve(n))
      return {BlockSetFault::kOther, refuse(ENOMEM, "out of memory for %zu blocks", n)};
    if (const int result = maru_retrieve_batch(core->c(), keys.data(), n, views.data()); result < 0)
      return {
          BlockSetFault::kOther,
          refuse(-result, "errno %d of maru_retrieve_batch for %zu blocks: its comment says what to do", -result, n)};
    // A later life under the key is not the exporter's block.
    for (size_t i = 0; i < n; ++i)
      if (views[i].block != set.blocks[i].block || views[i].bytes != set.blocks[i].bytes) out.gone.push(size_t(i));
    if (!out.gone.empty()) {
      maru_release_batch(core->c(), views.data(), n);
      return {BlockSetFault::kGone,
              refuse(ENOENT,
                     "found %zu of %zu blocks; block %zu of the set is gone: compute it again, or ask for another set",
                     n - out.gone.size(), n, out.gone[0])};
    }
    for (size_t i = 0; i < n; ++i) out.blocks.push(ImmutableBlock(core, views[i], set.blocks[i].hash));
    return {};
  }

  static ImportedBlocks import(const BlockPool& pool, const Manifest& expected, std::span<const std::byte> bytes) {
    ImportedBlocks out;
    const CoreRef& core = pool.core_;
    if (!core) {
      out.error = moved("the pool");
      return out;
    }
    const Answer<BlockSet> set = BlockSet::decode(bytes);
    if (!set) {
      out.error = {set.error() == EPROTONOSUPPORT ? BlockSetFault::kVersion : BlockSetFault::kDamaged,
                   refuse(set.error(), "%s", set.reason().data())};
      return out;
    }
    std::copy_n(set->exporter, 2, out.id_.exporter);
    out.id_.serial = set->serial;
    out.error = check(*core.get(), *set, expected);
    if (out.ok()) out.error = claim(core, out);
    if (out.ok()) out.error = pin(core, *set, out);
    if (!out.ok()) out.release();
    return out;
  }
};

}  // namespace blocks_detail

// The bytes of a set of registered blocks, 1 to kBlockSetBlocksMax. Of a duplicate the set has the block that is in the pool.
// Keep the handles until the other process has imported the set. Any thread; the first call of a pool enters the kernel, for
// random bytes. ret_error (may be null) has the fault by name: kMoved, kWrongPool, kOther.
inline Answer<std::vector<std::byte>> export_blocks(const BlockPool& pool, const Manifest& manifest,
                                                    std::span<const ImmutableBlock> blocks,
                                                    BlockSetError* ret_error = nullptr) {
  BlockSetError error;
  Answer<std::vector<std::byte>> bytes = blocks_detail::BlockSetAccess::encode(pool, manifest, blocks, error);
  if (ret_error != nullptr) *ret_error = error;
  return bytes;
}

// Holds exactly the lives of the set, all or none; a pool with checksums verifies their bytes. `expected` is the manifest of
// the blocks that this process can use; a set with another manifest is refused before any block is looked at. Any thread;
// neither blocks nor asks marud. The errors stand in `error`, and nothing is pinned then.
inline ImportedBlocks import_blocks(const BlockPool& pool, const Manifest& expected, std::span<const std::byte> bytes) {
  return blocks_detail::BlockSetAccess::import(pool, expected, bytes);
}

}  // namespace api_0
}  // namespace maru

#endif
