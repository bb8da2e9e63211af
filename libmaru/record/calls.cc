// The recorded calls of libmaru, in front of libmaru's own: a program that is started with this library in LD_PRELOAD calls
// these. Each does the same as in libmaru, and then writes a record.
//
// libmaru may call itself; only the outermost call of a thread is recorded.
#include "libmaru/record/recorder.h"
#include "maru/follow.h"
#include "maru/maru.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <optional>
#include <sys/syscall.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace maru::record {
namespace {

using format::Record;
using format::Recorded;
using format::RecordedKey;

constexpr size_t kKeysMax = 1u << 20;  // of one record, as of one call
constexpr size_t kStreamedKeys = 128;  // of one call, from which on they go past the cache

thread_local int depth = 0;
thread_local uint32_t thread_number = 0;

template <typename Function>
Function* next(const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) std::abort();  // libmaru is not loaded, so no program can have called
  return reinterpret_cast<Function*>(found);
}

[[gnu::noinline]] RecordedKey digest_of_other(const void* data, uint32_t size, uint32_t kind, uint64_t tenant) {
  if (data == nullptr) return {};
  if (kind == MARU_KEY_DIGEST256 && size == 2 * sizeof(RecordedKey)) {
    RecordedKey halves[2];
    std::memcpy(halves, data, sizeof(halves));
    return {halves[0].low ^ halves[1].low, halves[0].high ^ halves[1].high ^ tenant};
  }
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, tenant ^ (uint64_t(kind) << 56));
  return {hash.low64, hash.high64};
}

inline RecordedKey digest(const void* data, uint32_t size, uint32_t kind, uint64_t tenant) {
  if (kind != MARU_KEY_DIGEST128 || size != sizeof(RecordedKey) || data == nullptr)
    return digest_of_other(data, size, kind, tenant);
  RecordedKey key;  // it is as good as random
  std::memcpy(&key, data, sizeof(key));
  key.high ^= tenant;
  return key;
}

inline RecordedKey digest(const maru_key& key) { return digest(key.data, key.size, key.kind, key.tenant); }

// The facts of a call. Keys are read when the record is written.
struct Told {
  Recorded operation;
  const maru_client* client;
  std::optional<int> result = {};  // where it differs from the call's
  const maru_key* keys = nullptr;
  const maru_key_rows* rows = nullptr;  // in the place of keys
  size_t n = 0;                         // keys
  uint64_t payload_bytes = 0, block = 0;
  const uint64_t* sizes = nullptr;  // of each; null: equal
  const maru_store_options* options = nullptr;
};

// Many keys go to memory past the cache, in a third of the time: the process does not read them again. They may arrive after
// the record's magic, as a reader comes when the process has ended.
template <bool kStreams>
inline void put(RecordedKey* place, RecordedKey key) {
#if defined(__x86_64__)
  if constexpr (kStreams) {
    ::_mm_stream_si64(reinterpret_cast<long long*>(&place->low), static_cast<long long>(key.low));
    ::_mm_stream_si64(reinterpret_cast<long long*>(&place->high), static_cast<long long>(key.high));
    return;
  }
#endif
  *place = key;
}

template <bool kStreams>
void put_digests(RecordedKey* places, const Told& told, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (told.keys != nullptr) {
      put<kStreams>(places + i, digest(told.keys[i]));
    } else {
      const maru_key_rows& rows = *told.rows;
      const auto* data = static_cast<const char*>(rows.data) + i * rows.stride;
      put<kStreams>(places + i, digest(data, rows.sizes ? rows.sizes[i] : rows.size, rows.kind, rows.tenant));
    }
  }
}

uint16_t number_of(const maru_client* client) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(client) >> 4;
  return uint16_t(bits ^ bits >> 16 ^ bits >> 32);
}

void write(Recorder& recorder, const Told& told, int result, uint64_t at_ns) {
  const size_t n = std::min(told.keys || told.rows ? told.n : 0, kKeysMax);
  const maru_key* parent = told.options != nullptr ? told.options->parent_key : nullptr;
  const uint32_t bytes =
      uint32_t(sizeof(Record) + (n + (parent ? 1 : 0)) * sizeof(RecordedKey) + (told.sizes ? n * 8 : 0));
  Record* record = recorder.begin(bytes);
  if (record == nullptr) return;
  if (thread_number == 0) thread_number = uint32_t(::syscall(SYS_gettid));
  record->operation = told.operation;
  record->flags = uint8_t((parent ? Record::kParentKey : 0) | (told.sizes ? Record::kSizes : 0));
  record->client = number_of(told.client);
  record->thread = thread_number;
  record->result = result;
  record->keys = uint32_t(n);
  record->at_ns = at_ns;
  record->took_ns = std::max(at_ns, recorder.now_ns()) - at_ns;
  record->payload_bytes = told.payload_bytes;
  record->block = told.block;
  record->parent = told.options != nullptr ? told.options->parent : 0;
  auto* keys = reinterpret_cast<RecordedKey*>(record + 1);
  if (n >= kStreamedKeys)
    put_digests<true>(keys, told, n);
  else
    put_digests<false>(keys, told, n);
  if (parent != nullptr) keys[n] = digest(*parent);
  if (told.sizes != nullptr) std::memcpy(keys + n + (parent ? 1 : 0), told.sizes, n * 8);
  Recorder::finish(*record, bytes);
}

// Calls libmaru, and records the result in the form that `tell` gives it.
template <typename Call, typename Tell>
int recorded(const Call& call, const Tell& tell) {
  Recorder* recorder = depth == 0 ? Recorder::get() : nullptr;
  if (recorder == nullptr) return call();
  const uint64_t begun = recorder->now_ns();
  ++depth;
  const int result = call();
  --depth;
  Told told = tell(result);
  write(*recorder, told, told.result.value_or(result), begun);
  return result;
}

// The result for one key, as a call for several keys would count it.
int found(int result) { return result == 0 ? 1 : result == -ENOENT ? 0 : result; }

uint64_t sum(const maru_buffer* buffers, size_t n) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < n; ++i) bytes += buffers[i].bytes;
  return bytes;
}

}  // namespace
}  // namespace maru::record

using namespace maru::record;

#define NEXT(name) static auto* const libmaru = next<decltype(name)>(#name)

extern "C" {

int maru_attach(const maru_attach_options* options, maru_client** ret_client) {
  NEXT(maru_attach);
  return recorded([&] { return libmaru(options, ret_client); },
                  [&](int result) { return Told{Recorded::kAttach, result == 0 ? *ret_client : nullptr}; });
}

void maru_detach(maru_client* client) {
  NEXT(maru_detach);
  recorded(
      [&] {
        libmaru(client);
        return 0;
      },
      [&](int) { return Told{Recorded::kDetach, client}; });
}

int maru_exists(maru_client* client, const maru_key* key) {
  NEXT(maru_exists);
  return recorded([&] { return libmaru(client, key); },
                  [&](int) { return Told{Recorded::kExists, client, {}, key, nullptr, 1}; });
}

int maru_exists_batch(maru_client* client, const maru_key* keys, size_t n, uint8_t* ret_present) {
  NEXT(maru_exists_batch);
  return recorded([&] { return libmaru(client, keys, n, ret_present); },
                  [&](int) { return Told{Recorded::kExists, client, {}, keys, nullptr, n}; });
}

int maru_exists_rows(maru_client* client, const maru_key_rows* rows, size_t n, uint8_t* ret_present) {
  NEXT(maru_exists_rows);
  return recorded([&] { return libmaru(client, rows, n, ret_present); },
                  [&](int) { return Told{Recorded::kExists, client, {}, nullptr, rows, n}; });
}

int maru_which(maru_client* client, const maru_key* keys, size_t n, maru_range* ret_ranges, size_t ranges_max,
               size_t* ret_present) {
  NEXT(maru_which);
  size_t present = 0;
  const int ranges =
      recorded([&] { return libmaru(client, keys, n, ret_ranges, ranges_max, &present); },
               [&](int result) {
                 return Told{Recorded::kExists, client, result < 0 ? result : int(present), keys, nullptr, n};
               });
  if (ret_present != nullptr && ranges >= 0) *ret_present = present;
  return ranges;
}

int maru_match_prefix(maru_client* client, const maru_key* keys, size_t n, maru_match* ret_match) {
  NEXT(maru_match_prefix);
  return recorded([&] { return libmaru(client, keys, n, ret_match); },
                  [&](int result) {
                    Told told{Recorded::kMatch, client, {}, keys, nullptr, n};
                    if (result == 0) {
                      told.result = int(ret_match->blocks);
                      told.block = ret_match->deepest;
                    }
                    return told;
                  });
}

int maru_retrieve(maru_client* client, const maru_key* key, maru_view* ret_view) {
  NEXT(maru_retrieve);
  return recorded([&] { return libmaru(client, key, ret_view); },
                  [&](int result) { return Told{Recorded::kRetrieve, client, found(result), key, nullptr, 1}; });
}

int maru_retrieve_batch(maru_client* client, const maru_key* keys, size_t n, maru_view* ret_views) {
  NEXT(maru_retrieve_batch);
  return recorded([&] { return libmaru(client, keys, n, ret_views); },
                  [&](int) { return Told{Recorded::kRetrieve, client, {}, keys, nullptr, n}; });
}

int maru_pin(maru_client* client, const maru_key* key, maru_view* ret_view) {
  NEXT(maru_pin);
  return recorded([&] { return libmaru(client, key, ret_view); },
                  [&](int result) { return Told{Recorded::kPin, client, found(result), key, nullptr, 1}; });
}

int maru_pin_batch(maru_client* client, const maru_key* keys, size_t n, maru_view* ret_views) {
  NEXT(maru_pin_batch);
  return recorded([&] { return libmaru(client, keys, n, ret_views); },
                  [&](int) { return Told{Recorded::kPin, client, {}, keys, nullptr, n}; });
}

int maru_release(maru_client* client, const maru_view* view) {
  NEXT(maru_release);
  return recorded([&] { return libmaru(client, view); }, [&](int) { return Told{Recorded::kRelease, client}; });
}

int maru_unpin(maru_client* client, const maru_view* view) {
  NEXT(maru_unpin);
  return recorded([&] { return libmaru(client, view); }, [&](int) { return Told{Recorded::kRelease, client}; });
}

int maru_release_batch(maru_client* client, const maru_view* views, size_t n) {
  NEXT(maru_release_batch);
  return recorded([&] { return libmaru(client, views, n); }, [&](int) { return Told{Recorded::kRelease, client}; });
}

int maru_release_match(maru_client* client, maru_match* match) {
  NEXT(maru_release_match);
  return recorded([&] { return libmaru(client, match); }, [&](int) { return Told{Recorded::kRelease, client}; });
}

int maru_alloc(maru_client* client, uint64_t bytes, maru_buffer* ret_buffer) {
  NEXT(maru_alloc);
  return recorded([&] { return libmaru(client, bytes, ret_buffer); },
                  [&](int) { return Told{Recorded::kAlloc, client, {}, nullptr, nullptr, 0, bytes}; });
}

int maru_alloc_batch(maru_client* client, uint64_t bytes, size_t n, maru_buffer* ret_buffers) {
  NEXT(maru_alloc_batch);
  return recorded([&] { return libmaru(client, bytes, n, ret_buffers); },
                  [&](int) { return Told{Recorded::kAlloc, client, {}, nullptr, nullptr, 0, n * bytes}; });
}

int maru_alloc_with_metadata(maru_client* client, uint64_t bytes, uint32_t metadata_bytes, size_t n,
                             maru_buffer* ret_buffers) {
  NEXT(maru_alloc_with_metadata);
  return recorded([&] { return libmaru(client, bytes, metadata_bytes, n, ret_buffers); },
                  [&](int) { return Told{Recorded::kAlloc, client, {}, nullptr, nullptr, 0, n * bytes}; });
}

int maru_abort(maru_client* client, const maru_buffer* buffer) {
  NEXT(maru_abort);
  return recorded([&] { return libmaru(client, buffer); }, [&](int) { return Told{Recorded::kAbort, client}; });
}

int maru_abort_batch(maru_client* client, const maru_buffer* buffers, size_t n) {
  NEXT(maru_abort_batch);
  return recorded([&] { return libmaru(client, buffers, n); }, [&](int) { return Told{Recorded::kAbort, client}; });
}

int maru_store(maru_client* client, const maru_key* key, const maru_buffer* buffer, const maru_store_options* options,
               maru_block* ret_block) {
  NEXT(maru_store);
  const uint64_t bytes = buffer != nullptr ? buffer->bytes : 0;
  maru_block block = 0;
  const int result = recorded(
      [&] { return libmaru(client, key, buffer, options, &block); },
      [&](int) { return Told{Recorded::kStore, client, {}, key, nullptr, 1, bytes, block, nullptr, options}; });
  if (ret_block != nullptr && result >= 0) *ret_block = block;
  return result;
}

int maru_store_pinned(maru_client* client, const maru_key* key, const maru_buffer* buffer,
                      const maru_store_options* options, maru_view* ret_view) {
  NEXT(maru_store_pinned);
  const uint64_t bytes = buffer != nullptr ? buffer->bytes : 0;
  return recorded([&] { return libmaru(client, key, buffer, options, ret_view); },
                  [&](int result) {
                    return Told{Recorded::kStore, client, {}, key, nullptr, 1, bytes, result >= 0 ? ret_view->block : 0,
                                nullptr,          options};
                  });
}

int maru_store_copy(maru_client* client, const maru_key* key, const void* data, uint64_t bytes,
                    const maru_store_options* options, maru_block* ret_block) {
  NEXT(maru_store_copy);
  maru_block block = 0;
  const int result = recorded(
      [&] { return libmaru(client, key, data, bytes, options, &block); },
      [&](int) { return Told{Recorded::kStore, client, {}, key, nullptr, 1, bytes, block, nullptr, options}; });
  if (ret_block != nullptr && result >= 0) *ret_block = block;
  return result;
}

int maru_store_batch(maru_client* client, const maru_key* keys, const maru_buffer* buffers, size_t n,
                     const maru_store_options* options, maru_block* ret_blocks, int32_t* ret_results) {
  NEXT(maru_store_batch);
  const uint64_t bytes = buffers != nullptr ? sum(buffers, n) : 0;  // a buffer that was stored is used up
  return recorded(
      [&] { return libmaru(client, keys, buffers, n, options, ret_blocks, ret_results); },
      [&](int) { return Told{Recorded::kStore, client, {}, keys, nullptr, n, bytes, 0, nullptr, options}; });
}

int maru_store_copy_batch(maru_client* client, const maru_key* keys, const void* const* data, const uint64_t* bytes,
                          size_t n, const maru_store_options* options, maru_block* ret_blocks, int32_t* ret_results) {
  NEXT(maru_store_copy_batch);
  return recorded([&] { return libmaru(client, keys, data, bytes, n, options, ret_blocks, ret_results); },
                  [&](int) {
                    uint64_t all = 0;
                    for (size_t i = 0; bytes != nullptr && i < n; ++i) all += bytes[i];
                    return Told{Recorded::kStore, client, {}, keys, nullptr, n, all, 0, bytes, options};
                  });
}

int maru_store_chain(maru_client* client, const maru_key* keys, const maru_buffer* buffers, size_t n,
                     const maru_store_options* options, maru_block* ret_blocks, size_t* ret_stored, size_t* ret_done) {
  NEXT(maru_store_chain);
  const uint64_t bytes = buffers != nullptr ? sum(buffers, n) : 0;
  size_t done = 0;
  const int result =
      recorded([&] { return libmaru(client, keys, buffers, n, options, ret_blocks, ret_stored, &done); },
               [&](int status) {
                 Told told{Recorded::kStoreChain, client, {}, keys, nullptr, n, bytes, 0, nullptr, options};
                 if (status >= 0 || done > 0) told.result = int(done);
                 if (ret_blocks != nullptr && done > 0) told.block = ret_blocks[done - 1];
                 return told;
               });
  if (ret_done != nullptr) *ret_done = done;
  return result;
}

int maru_delete(maru_client* client, const maru_key* key) {
  NEXT(maru_delete);
  return recorded([&] { return libmaru(client, key); },
                  [&](int) { return Told{Recorded::kDelete, client, {}, key, nullptr, 1}; });
}

int maru_delete_batch(maru_client* client, const maru_key* keys, size_t n, int32_t* ret_results) {
  NEXT(maru_delete_batch);
  return recorded([&] { return libmaru(client, keys, n, ret_results); },
                  [&](int) { return Told{Recorded::kDelete, client, {}, keys, nullptr, n}; });
}

int maru_delete_tree(maru_client* client, const maru_key* key, uint64_t* ret_deleted) {
  NEXT(maru_delete_tree);
  return recorded([&] { return libmaru(client, key, ret_deleted); },
                  [&](int) { return Told{Recorded::kDeleteTree, client, {}, key, nullptr, 1}; });
}

}  // extern "C"
