// maru.h for C++20: the same calls, with owners that give back. Header only, needs no exceptions.
//
//   Outcome<T>   a value, or the errno that says why there is none
//   Key          the key of a block; refers to the caller's bytes
//   Client       an attachment; detaches when it goes
//   Buffer(s)    memory to fill; aborted when it goes without having been stored
//   View         a block, pinned; released when it goes
//   Match        the leading blocks of a chain, pinned together; released when it goes
//
// All but Outcome and Key are move-only. Buffers, views and matches must go before their Client does (moving the Client is
// fine). maru.h has the errors, the threads and the kernel entries of each call; nothing differs here.
#ifndef MARU_HPP
#define MARU_HPP

#include <maru/maru.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace maru {
// Named so that it shares no symbol with the library's own internals.
inline namespace api_0 {

// -- results ---------------------------------------------------------------------------------------------------------

struct Failed {
  int code = 0;  // errno, positive
};

// Either a T, or the errno (positive) of the call that had none to give.
template <typename T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : value_(std::move(value)) {}
  Outcome(Failed failed) : error_(failed.code) {}

  bool ok() const { return value_.has_value(); }
  // Not where the value is a bool itself: there it would say whether there is one, and be taken for it.
  explicit operator bool() const
    requires(!std::is_same_v<T, bool>)
  {
    return ok();
  }
  int error() const { return error_; }  // 0 when there is a value

  // Only when ok().
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  int error_ = 0;
};

template <>
class [[nodiscard]] Outcome<void> {
 public:
  Outcome() = default;
  Outcome(Failed failed) : error_(failed.code) {}

  bool ok() const { return error_ == 0; }
  explicit operator bool() const { return ok(); }
  int error() const { return error_; }

 private:
  int error_ = 0;
};

// -- keys ------------------------------------------------------------------------------------------------------------

// A key refers to bytes of the caller, which must stay until the call it is passed to returns. An array of Key is an
// array of maru_key.
struct Key : maru_key {
  Key() : maru_key{nullptr, 0, MARU_KEY_BYTES, 0} {}
  explicit Key(std::string_view bytes, uint64_t of_tenant = 0)
      : maru_key{bytes.data(), size_of(bytes.size()), MARU_KEY_BYTES, of_tenant} {}
  explicit Key(std::span<const std::byte> bytes, uint64_t of_tenant = 0)
      : maru_key{bytes.data(), size_of(bytes.size()), MARU_KEY_BYTES, of_tenant} {}

  // `digest` points to 16 or 32 bytes.
  static Key digest128(const void* digest, uint64_t of_tenant = 0) {
    return Key(digest, 16, MARU_KEY_DIGEST128, of_tenant);
  }
  static Key digest256(const void* digest, uint64_t of_tenant = 0) {
    return Key(digest, 32, MARU_KEY_DIGEST256, of_tenant);
  }

 private:
  // A size that is too large stays so, and the call refuses it.
  static constexpr uint32_t size_of(size_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(bytes);
  }
  Key(const void* digest, uint32_t digest_bytes, uint32_t of_kind, uint64_t of_tenant)
      : maru_key{digest, digest_bytes, of_kind, of_tenant} {}
};
static_assert(sizeof(Key) == sizeof(maru_key), "an array of Key is passed where maru.h wants an array of maru_key");

// -- metadata --------------------------------------------------------------------------------------------------------

// Bytes of the caller as maru_store_options::metadata wants them, for one block: options.metadata = &metadata. They must stay
// until the call that stores them returns. Bytes that are too long stay so, and the call refuses them.
inline maru_metadata metadata_from(std::span<const std::byte> bytes) {
  return {bytes.data(), bytes.size() > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(bytes.size()), 0};
}
inline maru_metadata metadata_from(std::string_view bytes) { return metadata_from(std::as_bytes(std::span(bytes))); }

// -- the owners -------------------------------------------------------------------------------------------------------

// Pages to fill, for one block.
class Buffer {
 public:
  Buffer() = default;
  Buffer(maru_client* client, const maru_buffer& buffer) : client_(client), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept : client_(std::exchange(other.client_, nullptr)), buffer_(other.buffer_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      abort();
      client_ = std::exchange(other.client_, nullptr);
      buffer_ = other.buffer_;
    }
    return *this;
  }
  ~Buffer() { abort(); }

  // Empty when this holds no pages any more: other clients may have them by then.
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(buffer_.data), client_ ? size_t(buffer_.bytes) : 0};
  }
  maru_block block() const { return buffer_.block; }
  bool is_held() const { return client_ != nullptr; }
  const maru_buffer& c() const { return buffer_; }

  // Gives the pages back.
  void abort() {
    if (maru_client* client = std::exchange(client_, nullptr)) maru_abort(client, &buffer_);
  }
  // The buffer has been used up by a store.
  void forget() { client_ = nullptr; }

 private:
  maru_client* client_ = nullptr;
  maru_buffer buffer_{};
};

// Pages for several blocks, taken in one go. Those before `done` have been stored.
class Buffers {
 public:
  Buffers() = default;
  Buffers(maru_client* client, std::unique_ptr<maru_buffer[]> buffers, size_t size)
      : client_(client), buffers_(std::move(buffers)), size_(size) {}
  Buffers(Buffers&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)),
        buffers_(std::move(other.buffers_)),
        size_(std::exchange(other.size_, 0)),
        done_(std::exchange(other.done_, 0)) {}
  Buffers& operator=(Buffers&& other) noexcept {
    if (this != &other) {
      abort();
      client_ = std::exchange(other.client_, nullptr);
      buffers_ = std::move(other.buffers_);
      size_ = std::exchange(other.size_, 0);
      done_ = std::exchange(other.done_, 0);
    }
    return *this;
  }
  ~Buffers() { abort(); }

  size_t size() const { return size_; }
  size_t done() const { return done_; }
  // Empty for a buffer that was stored or given back.
  std::span<std::byte> bytes(size_t i) const {
    if (i < done_) return {};
    return {static_cast<std::byte*>(buffers_[i].data), size_t(buffers_[i].bytes)};
  }
  const maru_buffer* c() const { return buffers_.get(); }

  // Gives back the pages of the buffers that have not been stored.
  void abort() {
    if (client_ && done_ < size_) maru_abort_batch(client_, buffers_.get() + done_, size_ - done_);
    done_ = size_;
  }
  // `count` more have been used up by a store.
  void forget(size_t count) { done_ += count; }

 private:
  maru_client* client_ = nullptr;
  std::unique_ptr<maru_buffer[]> buffers_;
  size_t size_ = 0;
  size_t done_ = 0;
};

// The metadata of a block that is held, by its view of any kind.
inline Outcome<std::span<const std::byte>> metadata_of(maru_client* client, const maru_view& view) {
  maru_metadata metadata{};
  if (const int result = maru_view_metadata(client, &view, &metadata); result < 0) return Failed{-result};
  return std::span(static_cast<const std::byte*>(metadata.data), metadata.bytes);
}

// A block that stays as it is for as long as the view lives.
class View {
 public:
  View() = default;
  View(maru_client* client, const maru_view& view) : client_(client), view_(view) {}
  View(View&& other) noexcept : client_(std::exchange(other.client_, nullptr)), view_(other.view_) {}
  View& operator=(View&& other) noexcept {
    if (this != &other) {
      release();
      client_ = std::exchange(other.client_, nullptr);
      view_ = other.view_;
    }
    return *this;
  }
  ~View() { release(); }

  // Empty when the view came from pin() or pin_block(), which do not map the payload, and when nothing is held any more.
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.data), client_ && view_.data ? size_t(view_.bytes) : 0};
  }
  uint64_t size() const { return view_.bytes; }
  // Empty where the block has none; valid for as long as the view is held. EINVAL when nothing is.
  Outcome<std::span<const std::byte>> metadata() const { return metadata_of(client_, view_); }
  maru_block block() const { return view_.block; }
  bool is_held() const { return client_ != nullptr; }
  const maru_view& c() const { return view_; }
  // EHWPOISON when memory of it went bad while it was held: zeros may have been read. See handle_memory_errors(). 0: nothing is
  // known.
  int error() const { return client_ ? -maru_view_error(client_, &view_) : 0; }

  void release() {
    if (maru_client* client = std::exchange(client_, nullptr)) maru_release(client, &view_);
  }

 private:
  maru_client* client_ = nullptr;
  maru_view view_{};
};

// The leading blocks that were there, none of which goes while the match lives.
class Match {
 public:
  Match() = default;
  Match(maru_client* client, const maru_match& match) : client_(client), match_(match) {}
  Match(Match&& other) noexcept : client_(std::exchange(other.client_, nullptr)), match_(other.match_) {}
  Match& operator=(Match&& other) noexcept {
    if (this != &other) {
      release();
      client_ = std::exchange(other.client_, nullptr);
      match_ = other.match_;
    }
    return *this;
  }
  ~Match() { release(); }

  size_t blocks() const { return client_ ? match_.blocks : 0; }
  maru_block deepest() const { return match_.deepest; }
  bool is_held() const { return client_ != nullptr; }
  const maru_match& c() const { return match_; }

  // Views of the first ret_views.size() of the keys that were matched; they end with the match and are plain data.
  Outcome<void> resolve(std::span<const Key> keys, std::span<maru_view> ret_views) const {
    if (keys.size() < ret_views.size()) return Failed{EINVAL};
    const int result = maru_resolve(client_, &match_, keys.data(), ret_views.size(), ret_views.data());
    if (result < 0) return Failed{-result};
    return {};
  }

  void release() {
    if (maru_client* client = std::exchange(client_, nullptr)) maru_release_match(client, &match_);
  }

 private:
  maru_client* client_ = nullptr;
  maru_match match_{};
};

// -- the client ------------------------------------------------------------------------------------------------------

// Option structures with their size filled in.
inline maru_attach_options attach_options() {
  maru_attach_options options{};
  options.size = sizeof(options);
  return options;
}
inline maru_store_options store_options() {
  maru_store_options options{};
  options.size = sizeof(options);
  return options;
}
// For a block below `parent`; 0 makes a root.
inline maru_store_options store_under(maru_block parent) {
  maru_store_options options = store_options();
  options.parent = parent;
  return options;
}

struct Stored {
  maru_block block = 0;  // the block under the key now
  bool is_new = false;   // false: it was there already and stayed
};

struct ChainStored {
  size_t done = 0;    // buffers used up, stored or not needed
  size_t stored = 0;  // of them, new blocks
  int error = 0;      // errno (positive) that ended the chain early, 0 when all are done
};

class Client {
 public:
  Client() = default;
  Client(Client&& other) noexcept : client_(std::exchange(other.client_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    if (this != &other) {
      detach();
      client_ = std::exchange(other.client_, nullptr);
    }
    return *this;
  }
  ~Client() { detach(); }

  static Outcome<Client> attach(const maru_attach_options& options = attach_options()) {
    Client client;
    if (const int result = maru_attach(&options, &client.client_); result < 0) return Failed{-result};
    return client;
  }
  void detach() {
    if (client_) maru_detach(std::exchange(client_, nullptr));
  }
  bool is_attached() const { return client_ != nullptr; }
  maru_client* c() const { return client_; }

  Outcome<void> reattach() { return done(maru_reattach(client_)); }
  uint64_t daemon_epoch() const { return maru_daemon_epoch(client_); }
  Outcome<uint64_t> tenant(std::string_view name) const {
    uint64_t value = 0;
    if (const int result = maru_tenant(client_, name.data(), name.size(), &value); result < 0) return Failed{-result};
    return value;
  }
  Outcome<maru_geometry> geometry() const {
    maru_geometry geometry{};
    geometry.size = sizeof(geometry);
    if (const int result = maru_get_geometry(client_, &geometry); result < 0) return Failed{-result};
    return geometry;
  }
  Outcome<maru_statistics> statistics() const {
    maru_statistics statistics{};
    statistics.size = sizeof(statistics);
    if (const int result = maru_get_statistics(client_, &statistics); result < 0) return Failed{-result};
    return statistics;
  }

  // Storing.
  Outcome<Buffer> alloc(uint64_t bytes) {
    maru_buffer buffer{};
    if (const int result = maru_alloc(client_, bytes, &buffer); result < 0) return Failed{-result};
    return Buffer(client_, buffer);
  }
  // With room for so much metadata behind the bytes.
  Outcome<Buffer> alloc_with_metadata(uint64_t bytes, uint32_t metadata_bytes) {
    maru_buffer buffer{};
    if (const int result = maru_alloc_with_metadata(client_, bytes, metadata_bytes, 1, &buffer); result < 0)
      return Failed{-result};
    return Buffer(client_, buffer);
  }
  // `metadata_bytes`: room for so much metadata behind the bytes of each.
  Outcome<Buffers> alloc_batch(uint64_t bytes, size_t n, uint32_t metadata_bytes = 0) {
    std::unique_ptr<maru_buffer[]> buffers(new (std::nothrow) maru_buffer[n]());
    if (!buffers) return Failed{ENOMEM};
    if (const int result = maru_alloc_with_metadata(client_, bytes, metadata_bytes, n, buffers.get()); result < 0)
      return Failed{-result};
    return Buffers(client_, std::move(buffers), n);
  }
  // Stores the remaining buffers under keys[0], keys[1], ..., which need not know of each other. Returns how many are new;
  // ret_results has 0, 1 or -errno for each. Buffers that were not stored are given back. ret_blocks is empty or has an entry
  // for each.
  Outcome<size_t> store_batch(std::span<const Key> keys, Buffers& buffers, std::span<int32_t> ret_results,
                              const maru_store_options& options = store_options(),
                              std::span<maru_block> ret_blocks = {}) {
    const size_t count = buffers.size() - buffers.done();
    if (keys.size() != count || ret_results.size() != count || (!ret_blocks.empty() && ret_blocks.size() != count))
      return Failed{EINVAL};
    const maru_buffer* const first = buffers.c() + buffers.done();
    const int result = maru_store_batch(client_, keys.data(), first, count, &options,
                                        ret_blocks.empty() ? nullptr : ret_blocks.data(), ret_results.data());
    if (result < 0) return Failed{-result};
    for (size_t i = 0; i < count; ++i)
      if (ret_results[i] < 0) maru_abort(client_, first + i);
    buffers.forget(count);
    return size_t(result);
  }
  // data[i] and bytes[i] are for keys[i]. ret_results is empty, or receives 0, 1 or -errno for each; ret_blocks likewise.
  Outcome<size_t> store_copy_batch(std::span<const Key> keys, std::span<const void* const> data,
                                   std::span<const uint64_t> bytes, std::span<int32_t> ret_results = {},
                                   const maru_store_options& options = store_options(),
                                   std::span<maru_block> ret_blocks = {}) {
    const auto fits = [&](size_t size) { return size == 0 || size == keys.size(); };
    if (data.size() != keys.size() || bytes.size() != keys.size() || !fits(ret_results.size()) ||
        !fits(ret_blocks.size()))
      return Failed{EINVAL};
    const int result = maru_store_copy_batch(client_, keys.data(), data.data(), bytes.data(), keys.size(), &options,
                                             ret_blocks.empty() ? nullptr : ret_blocks.data(),
                                             ret_results.empty() ? nullptr : ret_results.data());
    if (result < 0) return Failed{-result};
    return size_t(result);
  }
  // The buffer is used up on success and stays the caller's on an error.
  Outcome<Stored> store(const Key& key, Buffer& buffer, const maru_store_options& options = store_options()) {
    Stored stored;
    const int result = maru_store(client_, &key, &buffer.c(), &options, &stored.block);
    if (result < 0) return Failed{-result};
    buffer.forget();
    stored.is_new = result == 0;
    return stored;
  }
  // As store, for a caller that goes on using the buffer's memory: the view holds the block that was stored. When a block was
  // there already the view is empty, and the buffer is still the caller's.
  Outcome<View> store_pinned(const Key& key, Buffer& buffer, const maru_store_options& options = store_options()) {
    maru_view view;
    const int result = maru_store_pinned(client_, &key, &buffer.c(), &options, &view);
    if (result < 0) return Failed{-result};
    if (result == 1) return View();
    buffer.forget();
    return View(client_, view);
  }
  Outcome<Stored> store_copy(const Key& key, std::span<const std::byte> bytes,
                             const maru_store_options& options = store_options()) {
    Stored stored;
    const int result = maru_store_copy(client_, &key, bytes.data(), bytes.size(), &options, &stored.block);
    if (result < 0) return Failed{-result};
    stored.is_new = result == 0;
    return stored;
  }
  // Stores the remaining buffers, one block under the other, under keys[0], keys[1], ... Buffers that are not done stay in
  // `buffers`. ret_blocks is empty or has an entry for each key.
  ChainStored store_chain(std::span<const Key> keys, Buffers& buffers,
                          const maru_store_options& options = store_options(), std::span<maru_block> ret_blocks = {}) {
    ChainStored chain;
    const size_t count = buffers.size() - buffers.done();
    if (keys.size() != count || (!ret_blocks.empty() && ret_blocks.size() != count)) {
      chain.error = EINVAL;
      return chain;
    }
    const int result = maru_store_chain(client_, keys.data(), buffers.c() + buffers.done(), count, &options,
                                        ret_blocks.empty() ? nullptr : ret_blocks.data(), &chain.stored, &chain.done);
    if (result < 0)
      chain.error = -result;
    else
      chain.done = count;
    buffers.forget(chain.done);
    return chain;
  }
  // A key of a block that a request of this client evicted; ENOENT when there is no more.
  Outcome<void> next_evicted(maru_key_copy& ret_key) { return done(maru_next_evicted(client_, &ret_key)); }

  // Finding and reading.
  Outcome<bool> exists(const Key& key) {
    const int result = maru_exists(client_, &key);
    if (result < 0) return Failed{-result};
    return result > 0;
  }
  Outcome<size_t> exists_batch(std::span<const Key> keys, std::span<uint8_t> ret_present) {
    if (ret_present.size() != keys.size()) return Failed{EINVAL};
    const int result = maru_exists_batch(client_, keys.data(), keys.size(), ret_present.data());
    if (result < 0) return Failed{-result};
    return size_t(result);
  }
  // As many rows as ret_present has bytes.
  Outcome<size_t> exists_rows(const maru_key_rows& rows, std::span<uint8_t> ret_present) {
    const int result = maru_exists_rows(client_, &rows, ret_present.size(), ret_present.data());
    if (result < 0) return Failed{-result};
    return size_t(result);
  }
  Outcome<View> retrieve(const Key& key) { return view_from(maru_retrieve, &key); }
  Outcome<View> pin(const Key& key) { return view_from(maru_pin, &key); }
  Outcome<View> pin_block(maru_block block) { return view_from(maru_pin_block, block); }
  // With its payload, and no use of the block.
  Outcome<View> peek_block(maru_block block) { return view_from(maru_peek_block, block); }
  // ret_views[i] stays empty where keys[i] is absent, or cannot be read.
  Outcome<size_t> retrieve_batch(std::span<const Key> keys, std::span<View> ret_views) {
    return views_from(maru_retrieve_batch, keys, ret_views);
  }
  Outcome<size_t> pin_batch(std::span<const Key> keys, std::span<View> ret_views) {
    return views_from(maru_pin_batch, keys, ret_views);
  }
  Outcome<Match> match_prefix(std::span<const Key> keys) {
    maru_match match{};
    if (const int result = maru_match_prefix(client_, keys.data(), keys.size(), &match); result < 0)
      return Failed{-result};
    return Match(client_, match);
  }

  // Metadata of a view that resolve() gave, as View::metadata().
  Outcome<std::span<const std::byte>> metadata(const maru_view& view) const { return metadata_of(client_, view); }
  // The pool's facts about a block that is pinned, or held by a match; ret_key (may be null) receives its key.
  Outcome<maru_block_info> block_info(maru_block block, maru_key_copy* ret_key = nullptr) const {
    maru_block_info info{};
    info.size = sizeof(info);
    if (const int result = maru_get_block_info(client_, block, &info, ret_key); result < 0) return Failed{-result};
    return info;
  }

  // Deleting.
  Outcome<void> remove(const Key& key) { return done(maru_delete(client_, &key)); }
  // ret_results is empty, or receives 0 or -errno for each key.
  Outcome<size_t> remove_batch(std::span<const Key> keys, std::span<int32_t> ret_results = {}) {
    if (!ret_results.empty() && ret_results.size() != keys.size()) return Failed{EINVAL};
    const int result =
        maru_delete_batch(client_, keys.data(), keys.size(), ret_results.empty() ? nullptr : ret_results.data());
    if (result < 0) return Failed{-result};
    return size_t(result);
  }
  Outcome<uint64_t> remove_tree(const Key& key) {
    uint64_t deleted = 0;
    if (const int result = maru_delete_tree(client_, &key, &deleted); result < 0) return Failed{-result};
    return deleted;
  }

 private:
  static Outcome<void> done(int result) {
    if (result < 0) return Failed{-result};
    return {};
  }
  template <typename Find, typename What>
  Outcome<View> view_from(Find find, What what) {
    maru_view view{};
    if (const int result = find(client_, what, &view); result < 0) return Failed{-result};
    return View(client_, view);
  }
  template <typename Find>
  Outcome<size_t> views_from(Find find, std::span<const Key> keys, std::span<View> ret_views) {
    if (ret_views.size() != keys.size()) return Failed{EINVAL};
    std::unique_ptr<maru_view[]> views(new (std::nothrow) maru_view[keys.size()]());
    if (!views) return Failed{ENOMEM};
    const int result = find(client_, keys.data(), keys.size(), views.get());
    if (result < 0) return Failed{-result};
    for (size_t i = 0; i < keys.size(); ++i) ret_views[i] = views[i].block ? View(client_, views[i]) : View();
    return size_t(result);
  }

  maru_client* client_ = nullptr;
};

// -- memory errors ---------------------------------------------------------------------------------------------------

// Affects the whole process; may be called again. SIGBUS in memory of pools becomes EHWPOISON of the call that met it. With
// `views` a reader of a view gets zeros for bad memory, and View::error() tells so.
inline Outcome<void> handle_memory_errors(bool views = false) {
  if (const int result = maru_handle_memory_errors(views ? MARU_MEMORY_ERRORS_VIEWS : 0); result < 0)
    return Failed{-result};
  return {};
}

}  // namespace api_0
}  // namespace maru

#endif
