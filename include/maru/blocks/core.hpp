// The state that the handles of one BlockPool share. Programs include maru/blocks.hpp, and get this file by it.
#ifndef MARU_BLOCKS_CORE_HPP
#define MARU_BLOCKS_CORE_HPP

#include <maru/blocks/hashes.hpp>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace maru {
inline namespace api_0 {

// The fate of a block when its hash has a registered block already. Either way the caller gets the block that was there first.
enum class Duplicates : uint8_t {
  kReject,  // its pages are given back, and the handle is of the block that is there
  kAllow,   // its pages stay, private to the handle, until that goes; the handle holds the other block, too
};

struct BlockEvent {
  BlockHash hash;
  std::optional<BlockHash> parent;  // of a registration
  maru_block block = 0;             // which life of the hash
  uint64_t tenant = 0;
};

// Hears of registrations and removals of this BlockPool's blocks. For each life of a block on_register comes before on_remove,
// in whatever threads they happen, and an on_remove never means a later life of its hash. Removals come from this pool, from
// requests of its client (allocate), and from BlockPool::reconcile(). Calls come one at a time, from any thread that uses the
// pool, and must not call it. The listener outlives the pool and all its handles.
class BlockListener {
 public:
  virtual void on_register(const BlockEvent& event) noexcept = 0;
  virtual void on_remove(const BlockEvent& event) noexcept = 0;

 protected:
  ~BlockListener() = default;
};

struct BlockPoolOptions {
  uint32_t page_size = 16;   // tokens of a block, 1 to MARU_TOKENS_BLOCK_MAX
  uint64_t block_bytes = 0;  // payload of a block, 1 to the bytes of a region
  uint64_t tenant = 0;       // from Client::tenant(), 0 for none
  uint64_t ttl_ms = 0;       // as in maru_store_options, of every block
  uint32_t priority = 0;
  Duplicates duplicates = Duplicates::kReject;
  bool reset_on_release = false;  // the last handle of a registered block takes it out of the pool
  bool sequence_hash_only =
      false;  // names are Dynamo's sequence hashes alone, for partners that know no more: collisions hit
  BlockListener* listener =
      nullptr;  // with one, the pool keeps a table of its registrations, and registers one block at a time
};

namespace blocks_detail {

// The registrations that a listener has heard of, by hash. Its own allocations end the program for want of memory.
class Listened {
 public:
  explicit Listened(BlockListener& listener) : listener_(listener) {}

  // A thread that changes the pool and tells the listener holds this lock from before the change until after the call.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  void registered(const BlockEvent& event) {
    const auto found = lives_.find(event.hash);
    if (found != lives_.end()) removed(event.hash, found->second.block);  // that life is over, or this one could not be
    lives_.insert_or_assign(event.hash, event);
    listener_.on_register(event);
  }
  // Only the life that the listener knows; a later life under this hash stays.
  void removed(const BlockHash& hash, maru_block block) {
    const auto found = lives_.find(hash);
    if (found == lives_.end() || found->second.block != block) return;
    const BlockEvent event = found->second;
    lives_.erase(found);
    listener_.on_remove(event);
  }
  // Tells of the life under this hash if it is over. A hash that was evicted may have another life by now.
  void look(maru_client* client, const BlockHash& hash) {
    const auto found = lives_.find(hash);
    if (found != lives_.end()) tell_if_over(client, found->second);
  }
  size_t look_at_all(maru_client* client) {
    size_t over = 0;
    for (auto next = lives_.begin(); next != lives_.end();) {
      const BlockEvent event = (next++)->second;
      over += tell_if_over(client, event);
    }
    return over;
  }

 private:
  struct HashOf {
    size_t operator()(const BlockHash& hash) const { return size_t(hash.sequence ^ hash.check); }
  };
  bool tell_if_over(maru_client* client, BlockEvent event) {
    maru_view view;
    const int result = maru_pin_block(client, event.block, &view);
    if (result == 0) maru_release(client, &view);
    if (result != -ENOENT) return false;
    removed(event.hash, event.block);
    return true;
  }

  BlockListener& listener_;
  std::mutex mutex_;
  std::unordered_map<BlockHash, BlockEvent, HashOf> lives_;
};

// Names a block set: its exporter, and its number there.
struct BlockSetId {
  uint64_t exporter[2] = {};  // random
  uint64_t serial = 0;
  friend bool operator==(const BlockSetId&, const BlockSetId&) = default;
};

// The block sets of a pool, for block_set.hpp.
struct BlockSets {
  std::mutex mutex;  // of all here
  BlockSetId last;   // exported; serial 0: none so far
  std::vector<BlockSetId> imported;
};

// Lets block_set.hpp make handles.
struct BlockSetAccess;

// Lives as long as the pool or any of its handles. Any thread.
struct Core {
  Core(Client&& attached, const BlockPoolOptions& wanted) : client(std::move(attached)), options(wanted) {
    if (options.listener != nullptr) listened.emplace(*options.listener);
  }
  Key key(const BlockHash& hash) const { return Key::digest128(&hash, options.tenant); }
  maru_client* c() const { return client.c(); }

  Client client;
  const BlockPoolOptions options;
  std::optional<Listened> listened;
  BlockSets sets;
  std::atomic<uint32_t> references{1};
  std::atomic<uint64_t> mutable_handles{0}, complete_handles{0};
};

// Counts the references itself, so that nothing is allocated but the core.
class CoreRef {
 public:
  CoreRef() = default;
  static CoreRef adopt(Core* core) {
    CoreRef reference;
    reference.core_ = core;
    return reference;
  }
  CoreRef(const CoreRef& other) : core_(other.core_) {
    if (core_) core_->references.fetch_add(1, std::memory_order_relaxed);
  }
  CoreRef(CoreRef&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  CoreRef& operator=(CoreRef other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~CoreRef() {
    if (core_) drop(core_, 1);
  }
  // For a caller that ends many references at once: this reference counts on, and drop() ends it.
  void forget() { core_ = nullptr; }
  static void drop(Core* core, uint32_t count) {
    if (core->references.fetch_sub(count, std::memory_order_acq_rel) == count) delete core;
  }

  Core* operator->() const { return core_; }
  Core* get() const { return core_; }
  explicit operator bool() const { return core_ != nullptr; }

 private:
  Core* core_ = nullptr;
};

// Ends a pin, and takes the block away where the pool wants that. Another holder keeps it; then it is that one's to take away.
inline void release_view(Core& core, const maru_view& view, const BlockHash& hash) {
  maru_release(core.c(), &view);
  if (!core.options.reset_on_release) [[likely]]
    return;
  std::unique_lock<std::mutex> lock;
  if (core.listened) lock = core.listened->lock();
  if (maru_delete_block(core.c(), view.block, MARU_DELETE_UNPINNED) == 0 && core.listened)
    core.listened->removed(hash, view.block);
}

// An array of handles or results that grows without exceptions.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(Array&& other) noexcept
      : items_(std::exchange(other.items_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        room_(std::exchange(other.room_, 0)) {}
  Array& operator=(Array&& other) noexcept {
    if (this == &other) return *this;
    clear();
    items_ = std::exchange(other.items_, nullptr);
    size_ = std::exchange(other.size_, 0);
    room_ = std::exchange(other.room_, 0);
    return *this;
  }
  ~Array() { clear(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return items_[i]; }
  const T& operator[](size_t i) const { return items_[i]; }
  T* begin() { return items_; }
  T* end() { return items_ + size_; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }

  // False for want of memory; the item is untouched then.
  bool push(T&& item) {
    if (size_ == room_ && !reserve(room_ == 0 ? 16 : 2 * room_)) return false;
    ::new (static_cast<void*>(items_ + size_++)) T(std::move(item));
    return true;
  }
  bool reserve(size_t room) {
    if (room <= room_) return true;
    T* const items = static_cast<T*>(::operator new(room * sizeof(T), std::nothrow));
    if (items == nullptr) return false;
    std::uninitialized_move(begin(), end(), items);
    std::destroy(begin(), end());
    ::operator delete(items_);
    items_ = items;
    room_ = room;
    return true;
  }
  // The item at the end, taken out. Only when not empty().
  T pop() {
    T item = std::move(items_[--size_]);
    std::destroy_at(items_ + size_);
    return item;
  }
  void clear() {
    // Handles that can go together do, and have nothing left to destroy.
    if constexpr (requires { T::release_all(items_, size_); })
      T::release_all(items_, size_);
    else
      std::destroy(begin(), end());
    ::operator delete(items_);
    items_ = nullptr;
    size_ = room_ = 0;
  }

 private:
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  T* items_ = nullptr;
  size_t size_ = 0;
  size_t room_ = 0;
};

}  // namespace blocks_detail

// The lists that calls on several blocks take and return: move-only, in the order of the call.
template <typename T>
using BlockList = blocks_detail::Array<T>;

}  // namespace api_0
}  // namespace maru

#endif
