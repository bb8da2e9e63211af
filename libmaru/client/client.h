// A client: one attachment to one pool, and everything of it that is private to the process. libmaru/shm has the operations on
// blocks; here keys become digests, pages become addresses, and marud is asked for memory.
//
// Thread safety: any number of threads, except for the destructor.
#pragma once

#include "libmaru/client/connection.h"
#include "libmaru/client/memory_errors.h"
#include "libmaru/client/page_source.h"
#include "libmaru/client/payload.h"
#include "libmaru/client/tracing.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/blocks/prefix.h"
#include "libmaru/shm/blocks/touch.h"
#include "maru/maru.h"

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace maru::client {

// maru_view.pin
inline constexpr uint64_t kNoPin = 0;
constexpr uint64_t pin_of(uint32_t slot) { return uint64_t(slot) + 1; }

struct Options {
  std::string socket_path;
  std::string pool = "default";
  uint32_t timeout_ms = 5000;
  uint32_t thread_cache_pages = 16;
  bool first_fit = false;
  bool session_thread = true;
  bool read_only = false;
};

// A word that the kernel empties in a child of fork(): how a child knows that it is one, without a system call.
class ForkGuard {
 public:
  static Result<ForkGuard> create();
  bool is_child() const {
    return reinterpret_cast<const AtomicU64*>(page_.data())->load_relaxed() == 0;
  }  // own process

 private:
  Mapping page_;
};

class Client {
 public:
  static Result<std::unique_ptr<Client>> attach(const Options& options);
  ~Client();
  // In a child of fork(), instead of the destructor. The parent's session, lane and pages are not the child's, and the session
  // thread does not exist here. The child did not inherit the mappings, so other memory may lie at their addresses. The
  // parent's threads may have been in the middle of any change: the descriptors are closed, and the memory stays.
  static void abandon(std::unique_ptr<Client> client);

  bool is_child() const { return fork_guard_.is_child(); }
  bool is_read_only() const { return read_only_; }
  // marud wants the pool's memory back, or has it: nothing new is begun. leave.cc.
  bool is_leaving() const { return leaving_.load(std::memory_order_seq_cst); }
  // As maru_before_unmap(); `ret_pages` may be null.
  int before_unmap(void (*call)(void*), void* argument, void** ret_pages);
  const shm::ControlRegion& region() const { return region_; }
  const wire::AttachReply& attached() const { return attached_; }
  Connection& connection() { return connection_; }
  // Null: calls are not traced. It lies beside the word that tells a child of fork(), which each call reads.
  Tracing* tracing() const { return tracing_.load(std::memory_order_acquire); }
  // Whether maru-eventd has the spans; tracing.cc. Errors: of Tracing::make.
  Result<bool> trace(const TracingWish& wish);
  void stop_tracing() { tracing_.store(nullptr, std::memory_order_release); }

  // False: not a key (size or kind is wrong). Inline for the ready-made digests that engines use, and without a copy in memory:
  // the next steps wait for these two words.
  bool digest(const maru_key& key, shm::Digest& ret_digest) const {
    shm::PlainDigest plain;
    if (!plain_digest(key, plain)) return false;
    const shm::Digest d = shm::permute(region_.secret(), plain);
    ret_digest.lo = d.lo;
    ret_digest.hi = d.hi;
    return true;
  }
  bool plain_digest(const maru_key& key, shm::PlainDigest& ret_plain) const {
    if (key.kind != MARU_KEY_DIGEST128 || key.size != 16 || key.data == nullptr) [[unlikely]] {
      shm::PlainDigest other;  // only its address leaves: a loop keeps the caller's in registers
      if (!other_plain(key, other)) return false;
      ret_plain = other;
      return true;
    }
    uint64_t words[2];
    std::memcpy(words, key.data, sizeof(words));
    const shm::PlainDigest plain = shm::plain_of_128(region_.secret(), words[0], words[1], key.tenant);
    ret_plain.lo = plain.lo;
    ret_plain.hi = plain.hi;
    return true;
  }
  // take(i, plain) for the keys from first to end, in their order; false, and no more are taken, if one is not a key.
  template <typename Take>
  bool for_each_plain(const maru_key* keys, size_t first, size_t end, Take&& take) const {
    for (size_t i = first; i < end;) {
      if (keys[i].kind == MARU_KEY_BYTES) {
        shm::PlainDigest texts[shm::kSipLanes];
        const size_t made = plain_texts(keys + i, std::min(end - i, shm::kSipLanes), texts);
        if (made == 0) return false;
        for (size_t k = 0; k < made; ++k) take(i++, texts[k]);
      } else {
        shm::PlainDigest plain;
        if (!plain_digest(keys[i], plain)) return false;
        take(i++, plain);
      }
    }
    return true;
  }
  // The digests of a batch, in memory of the calling thread that the next call overwrites. Empty if one is not a key.
  std::span<shm::Digest> digests(const maru_key* keys, size_t n) const;

  // With room for so much metadata behind each.
  int alloc(uint64_t bytes, uint64_t metadata_bytes, size_t n, maru_buffer* ret_buffers);
  int abort(const maru_buffer& buffer);
  bool is_of_here(const maru_buffer& buffer) const;
  // Copies the payload into a buffer; -EHWPOISON, and the buffer is lost, when its memory is bad; -ENOSPC when its file
  // system is full.
  int fill(const maru_buffer& buffer, const void* data);
  bool is_cut_off() const;  // the file ends before the last page
  int view_error(const maru_view& view) const;
  // `metadata`: this block's, may be null; the options may have metadata of another block of the call.
  int store(const maru_key& key, const maru_buffer& buffer, const maru_store_options& options, maru_block parent,
            const maru_metadata* metadata, maru_block* ret_block);
  // The same; a block that was stored stays pinned, and a buffer that was not stays reserved.
  int store_pinned(const maru_key& key, const maru_buffer& buffer, const maru_store_options& options, maru_block parent,
                   maru_view* ret_view);
  // Stores many blocks at once, whose keys have these digests. ret_results gets 0, 1 or -errno for each. Returns how many are
  // new.
  struct CommonOptions {
    const maru_store_options& options;
    maru_block parent;

    // Of the block with this number in the batch.
    const maru_metadata* metadata(size_t i) const { return options.metadata ? options.metadata + i : nullptr; }
    uint64_t metadata_bytes(size_t i) const { return options.metadata ? options.metadata[i].bytes : 0; }
  };
  int store_batch(const maru_key* keys, std::span<const shm::Digest> digests, const maru_buffer* buffers,
                  const CommonOptions& common, maru_block* ret_blocks, int32_t* ret_results);
  int store_copy_batch(const maru_key* keys, std::span<const shm::Digest> digests, const void* const* data,
                       const uint64_t* bytes, const CommonOptions& common, maru_block* ret_blocks,
                       int32_t* ret_results);
  // Sets the tenant of this thread's next stores: the next request for memory tells marud. store() sets it, too.
  static void set_tenant(uint64_t tenant);
  // Whether a block is under this key already; then as a store that loses to it.
  bool is_stored(const shm::Digest& digest, maru_block* ret_block);
  // Whether a block of this pool may have such metadata (null: none). 0, -EINVAL, -E2BIG or -EOPNOTSUPP. client_metadata.cc.
  int check_metadata(const maru_metadata* metadata) const;
  int check_metadata_bytes(uint64_t bytes) const;
  int view_metadata(const maru_view& view, maru_metadata* ret_metadata) const;
  // Of a block, held or not; ret_key may be null.
  int block_info(shm::PageRef ref, maru_block_info* ret_info, maru_key_copy* ret_key) const;
  // Whether options are valid for any pool.
  static bool are_valid(const maru_store_options& options);
  // Whether the block is visible now: a hint.
  bool is_there(shm::PageRef ref) const;
  // The parent that the options name, or a page of no pool where no block has its key. 0, or -EINVAL.
  int parent_of(const maru_store_options& options, maru_block* ret_parent);

  bool exists(const shm::Digest& digest);
  int exists_batch(const maru_key* keys, size_t n, uint8_t* ret_present);
  int exists_rows(const maru_key_rows& rows, size_t n, uint8_t* ret_present);
  int retrieve(const shm::Digest& digest, bool payload, maru_view* ret_view);
  int retrieve_batch(std::span<const shm::Digest> digests, bool payload, maru_view* ret_views);
  int pin_block(shm::PageRef ref, maru_view* ret_view);
  int peek_block(shm::PageRef ref, maru_view* ret_view);
  int release(const maru_view& view);
  int match_prefix(const maru_key* keys, size_t n, maru_match* ret_match);
  int resolve(const maru_match& match, std::span<const shm::Digest> digests, maru_view* ret_views);
  int release_match(maru_match& match);
  int remove(const shm::Digest& digest);
  // This life of a block; with `unpinned` only where no lane pins it.
  int remove_block(shm::PageRef ref, bool unpinned);
  int remove_tree(const shm::Digest& digest, uint64_t* ret_deleted);
  int report_copies(std::span<const maru_block> blocks);
  int next_evicted(maru_key_copy* ret_key);
  void statistics(maru_statistics* ret_statistics) const;
  void count_blocks(maru_block_counts* ret_counts) const;

 private:
  explicit Client(Connection::Target target) : connection_(std::move(target)) {}
  Result<void> open(const Options& options);
  // Hashes the first key, which is of kind MARU_KEY_BYTES, and the keys after it that can be hashed beside it. Returns how
  // many, at most kSipLanes; 0 if the first is not a key.
  size_t plain_texts(const maru_key* keys, size_t n, shm::PlainDigest (&ret_plain)[shm::kSipLanes]) const;
  bool other_plain(const maru_key& key, shm::PlainDigest& ret_plain) const;
  bool digest_rows(const maru_key_rows& rows, size_t first, size_t end, shm::Digest* digests) const;
  // hash(digests, first, end) makes the digests of these keys, at most ExistsBatch::kGroup; false if an entry is not a key.
  template <typename Hash>
  int exists_all(size_t n, uint8_t* ret_present, Hash&& hash);
  bool unpin(uint32_t slot, shm::PageRef ref);
  int take_good_pages(size_t n, uint32_t run_pages, shm::PageRef* ret_heads, size_t* ret_taken = nullptr);
  int rent(uint64_t runs, uint32_t run_pages, PageSource::Rented* ret_rented);
  int ask_for_credit(uint64_t tenant, uint64_t bytes);
  enum class Duplicate : uint8_t { kGiveBack, kKeep };
  // marud's refusal or silence within one call: no further block of the call asks for the same again.
  struct Unanswered {
    int status = 0;
    uint64_t tenant = 0, bytes = 0;  // of the request
    bool is_silence() const;         // no answer came
    bool holds_for(uint64_t of_tenant, uint64_t of_bytes) const {
      return status != 0 && (is_silence() || (tenant == of_tenant && bytes <= of_bytes));
    }
  };
  // One block that is to be stored.
  struct Store {
    const maru_key& key;
    const shm::Digest& digest;
    const maru_buffer& buffer;
    const maru_store_options& options;
    maru_block parent;
    const maru_metadata* metadata;  // may be null
  };
  int publish(const Store& what, Duplicate duplicate, Unanswered* unanswered, maru_block* ret_block);
  // Puts the metadata behind the payload, and its length and checksum into `block`.
  int write_metadata(const Store& what, shm::NewBlock& block);
  int ask_for_room(const shm::Digest& digest, shm::PageRef parent);
  int pin_ref(shm::PageRef ref, uint32_t* ret_slot);
  struct CopyBatch;
  void take_for(CopyBatch& batch, Unanswered& unanswered);
  int read_rent_reply(std::span<const std::byte> payload, PageSource::Rented* ret_rented, RentSpan* span = nullptr);
  // Whether the marud of this epoch knows this version: an older marud ends the connection at an unknown message.
  bool marud_knows(uint64_t minor_version) const;
  uint64_t tick(uint64_t unix_ms) const;
  void touch(uint32_t page, uint64_t unix_ms);
  void touch_stored(uint32_t page, uint64_t unix_ms);  // this tells marud of the block
  uint64_t recent_use(uint32_t page, uint64_t now_tick) const;
  void count(format::LaneCounter which, uint64_t by = 1);
  void finish(shm::PageRef ref);
  // The checksum of payload; false when its memory is bad.
  bool checksum(const void* data, uint64_t bytes, uint64_t* ret_checksum);
  // Writes payload back into memory that is durable; false when it is bad.
  bool flush(const void* data, uint64_t bytes);
  int upkeep();
  void begin_leaving();
  void leave();
  void end_foreign_use();
  int verify(const maru_view& view, shm::PageRef ref, const shm::Digest& d);
  // d: the key that was looked for; null: the payload is not wanted.
  int view_of(shm::PageRef ref, uint32_t slot, const shm::Digest* d, maru_view* ret_view);

  Connection connection_;
  wire::AttachReply attached_{};
  KeptDescriptor device_;
  KeptDescriptor control_device_;  // when the control region is not on the device of the pages
  bool read_only_ = false;
  Mapping control_;
  shm::ControlRegion region_;
  alignas(64) ForkGuard fork_guard_;        // with the next one in one line, which each call reads
  std::atomic<Tracing*> tracing_{nullptr};  // kept_tracing_, or null
  std::unique_ptr<Tracing> kept_tracing_;   // once made, until the end
  std::mutex tracing_mutex_;
  std::unique_ptr<AtomicU32[]> pin_counts_;
  shm::PinTable pins_;
  mutable shm::LaneContext lane_;
  shm::LaneView lane_view_;
  std::unique_ptr<Payload> payload_;
  std::unique_ptr<PageSource> pages_;
  std::unique_ptr<BadPages> bad_pages_;
  std::atomic<bool> leaving_{false};
  std::mutex unmap_mutex_;  // of the next three; held during the call
  void (*unmap_call_)(void*) = nullptr;
  void* unmap_argument_ = nullptr;
  bool is_unmapping_ = false;
  bool left_ = false;  // the session thread's, as the members below
  uint32_t tell_pause_ms_ = 0;
  wire::Deadline tell_again_{0};        // when it is over, marud is told of bad pages
  std::atomic<uint32_t> page_told_{0};  // the last page that marud was told of; its answer may come late, in any thread

  AtomicU64 counting_thread_{0};  // the thread that counts with plain stores; a later thread may have its identity

  // When a page was last touched, by a hash of the page: a block touched twice in a tick leaves one entry in the ring.
  static constexpr uint32_t kRecentTouches = 4096;
  std::unique_ptr<AtomicU64[]> recent_touches_;

  mutable std::mutex evicted_mutex_;
  std::deque<std::vector<std::byte>> evicted_;  // EvictedKey records
  uint64_t evicted_total_ = 0;
  uint64_t evicted_lost_ = 0;
};

}  // namespace maru::client
