// Opening a space, and the calls of maru/spans.h that store: chunks with their bytes, second names, and forgetting.
//
// Storing is one step of the pool: after it the chunk or its name is there whole. A process that dies before this step leaves
// reserved pages, and marud takes them back. A process that dies between a chain and its name leaves a chain without a second
// name. The next process that stores the same chunk gives it one.
#include "libmaru/blend/chunk_names.h"

#include <cerrno>
#include <memory>
#include <new>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::blend {
namespace {

// The base of a space is the keyed hash of this name, by maru_tenant(). Tenants' names do not begin with zero.
struct SecretName {
  char label[16] = {'\0', 'm', 'a', 'r', 'u', ' ', 's', 'p', 'a', 'n', 's', ' ', '1'};
  Fingerprint space;
};
static_assert(sizeof(SecretName) <= 64, "maru_tenant() takes so many bytes");

Fingerprint fingerprint_of(const maru_spans_options& options) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(options.space, options.space_bytes, options.window);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Fingerprint fingerprint;
  static_assert(sizeof(canonical.digest) == std::tuple_size_v<Fingerprint>);
  std::memcpy(fingerprint.data(), canonical.digest, sizeof(canonical.digest));
  return fingerprint;
}

bool are_valid(const maru_spans_options& options) {
  return options.size == sizeof(options) && options.space != nullptr && options.space_bytes != 0 &&
         options.space_bytes <= MARU_SPAN_SPACE_BYTES_MAX && options.window != 0 &&
         options.window <= MARU_SPAN_WINDOW_MAX && options.occupants <= MARU_SPAN_OCCUPANTS_MAX &&
         options.reserved0 == 0 && options.reserved[0] == 0 && options.reserved[1] == 0;
}

bool is_valid(const maru_span_chunk& chunk) {
  return chunk.size == sizeof(chunk) && chunk.tokens != nullptr && chunk.note_bytes <= MARU_SPAN_NOTE_BYTES_MAX &&
         (chunk.note_bytes == 0 || chunk.note != nullptr) && chunk.reserved[0] == 0 && chunk.reserved[1] == 0;
}

// The metadata of a chunk, on the stack where it is of a usual size.
class RecordBytes {
 public:
  RecordBytes(const ChunkNames& names, const maru_span_chunk& chunk, uint32_t chain_blocks)
      : bytes_(record_bytes(names.window(), chunk.note_bytes)) {
    if (bytes_ > sizeof(few_)) many_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    write_record(names.header(chunk.position, chain_blocks, chunk.note_bytes), chunk.tokens, chunk.note, data());
  }
  maru_metadata metadata() { return {data(), bytes_, 0}; }

 private:
  std::byte* data() { return many_ ? many_.get() : few_; }
  std::byte few_[4096];
  std::unique_ptr<std::byte[]> many_;
  uint32_t bytes_;
};

enum class Resident { kSame, kOtherPosition, kOtherTokens, kGone };

// Compares the block under a key with a chunk; *ret_block is the block.
Resident look(const maru_spans& spans, const maru_key& key, const maru_span_chunk& chunk, maru_block* ret_block) {
  maru_view view = {};
  if (maru_pin(spans.client, &key, &view) != 0) return Resident::kGone;
  const auto record = spans.names.record(spans.client, view, chunk.tokens);
  maru_unpin(spans.client, &view);
  *ret_block = view.block;
  if (!record) return Resident::kOtherTokens;
  return record->header.position == chunk.position ? Resident::kSame : Resident::kOtherPosition;
}

// Stores under the first key of these tokens that is not taken. store(key, options, &block) is a store of maru.h: 0 it was
// stored, 1 a block was there. 0: it was stored. 1: the tokens are there already.
template <typename Store>
int store_under_name(const maru_spans& spans, const maru_span_chunk& chunk, maru_block parent, uint32_t chain_blocks,
                     const Store& store, maru_block* ret_block) {
  const ChunkNames& names = spans.names;
  RecordBytes record(names, chunk, chain_blocks);
  const maru_metadata metadata = record.metadata();
  maru_store_options options = {};
  options.size = sizeof(options);
  options.parent = parent;
  options.ttl_ms = chunk.ttl_ms;
  options.priority = chunk.priority;
  options.metadata = &metadata;

  constexpr uint32_t kTries = 4;  // for blocks that go between two looks
  NameBytes name = names.name(chunk.tokens, 0);
  maru_block resident = 0, same_tokens = 0;
  for (uint32_t occupant = 0, tries = 0; occupant < names.occupants();) {
    name.space = names.space_word(occupant);
    const maru_key key = names.key(name);
    const int status = store(key, options, ret_block);
    if (status <= 0) return status;
    switch (look(spans, key, chunk, &resident)) {
      case Resident::kSame: *ret_block = resident; return 1;
      case Resident::kOtherPosition: same_tokens = same_tokens != 0 ? same_tokens : resident; break;
      case Resident::kOtherTokens: break;
      case Resident::kGone:
        if (++tries < kTries) continue;
        return -EAGAIN;
    }
    ++occupant;
  }
  if (same_tokens == 0) return -EEXIST;
  *ret_block = same_tokens;
  return 1;
}

// For store_under_name: a store that leaves the buffer the caller's where a block is there already.
auto store_of(maru_client* client, const maru_buffer& buffer) {
  return [client, &buffer](const maru_key& key, const maru_store_options& options, maru_block* ret_block) {
    maru_view view = {};
    const int status = maru_store_pinned(client, &key, &buffer, &options, &view);
    if (status != 0) return status;
    *ret_block = view.block;
    maru_release(client, &view);
    return 0;
  };
}

int store_span(const maru_spans& spans, const maru_span_chunk& chunk, const maru_buffer& buffer,
               maru_block* ret_block) {
  maru_block block = 0;
  const int status = store_under_name(spans, chunk, 0, 0, store_of(spans.client, buffer), &block);
  if (status < 0) return status;
  if (status == 1) maru_abort(spans.client, &buffer);
  if (ret_block != nullptr) *ret_block = block;
  return status;
}

// Takes no memory where the tokens are there already.
int store_span_copy(const maru_spans& spans, const maru_span_chunk& chunk, const void* data, uint64_t bytes,
                    maru_block* ret_block) {
  maru_block block = 0;
  const auto store = [&](const maru_key& key, const maru_store_options& options, maru_block* ret_stored) {
    return maru_store_copy(spans.client, &key, data, bytes, &options, ret_stored);
  };
  const int status = store_under_name(spans, chunk, 0, 0, store, &block);
  if (status >= 0 && ret_block != nullptr) *ret_block = block;
  return status;
}

// A page for a name. A store that meets a block gives it back, and the next try takes another.
class NameBuffer {
 public:
  NameBuffer(maru_client* client, uint32_t metadata_bytes) : client_(client), metadata_bytes_(metadata_bytes) {}
  ~NameBuffer() {
    if (is_held_) maru_abort(client_, &buffer_);
  }
  NameBuffer(const NameBuffer&) = delete;
  NameBuffer& operator=(const NameBuffer&) = delete;

  // Unless it is there already.
  int alloc() {
    if (is_held_) return 0;
    const int status = maru_alloc_with_metadata(client_, 1, metadata_bytes_, 1, &buffer_);
    if (status != 0) return status;
    is_held_ = true;
    auto* const bytes = static_cast<uint8_t*>(buffer_.data);
    bytes[0] = 0;
    for (size_t at = kLineBytes; at < kLineBytes + metadata_bytes_; at += kLineBytes) __builtin_prefetch(bytes + at, 1);
    return 0;
  }
  int store(const maru_key& key, const maru_store_options& options, maru_block* ret_block) {
    const int status = maru_store(client_, &key, &buffer_, &options, ret_block);
    is_held_ = status < 0;
    return status;
  }

 private:
  static constexpr size_t kLineBytes = 64;
  maru_client* client_;
  uint32_t metadata_bytes_;
  maru_buffer buffer_ = {};
  bool is_held_ = false;
};

int name_span(const maru_spans& spans, const maru_span_chunk& chunk, maru_block deepest, uint32_t blocks,
              maru_block* ret_block) {
  maru_block_info info = {};
  info.size = sizeof(info);
  int status = maru_get_block_info(spans.client, deepest, &info, nullptr);
  if (status != 0) return status == -ENOENT ? -ENOLINK : status;
  if (info.tenant != spans.names.tenant() || info.depth + 1 < blocks) return -EINVAL;

  // Before the hash is computed: the lines of the record are on their way meanwhile.
  NameBuffer buffer(spans.client, record_bytes(spans.names.window(), chunk.note_bytes));
  if ((status = buffer.alloc()) != 0) return status;
  const auto store = [&](const maru_key& key, const maru_store_options& options, maru_block* ret_stored) {
    const int allocated = buffer.alloc();
    return allocated != 0 ? allocated : buffer.store(key, options, ret_stored);
  };
  maru_block block = 0;
  status = store_under_name(spans, chunk, deepest, blocks, store, &block);
  if (status >= 0 && ret_block != nullptr) *ret_block = block;
  return status;
}

int forget_span(const maru_spans& spans, const uint32_t* tokens) {
  int deleted = 0;
  for (uint32_t occupant = 0; occupant < spans.names.occupants(); ++occupant) {
    const NameBytes name = spans.names.name(tokens, occupant);
    const maru_key key = spans.names.key(name);
    maru_view view = {};
    const int found = maru_pin(spans.client, &key, &view);
    if (found == -ENOENT) continue;
    if (found != 0) return found;
    const bool is_it = spans.names.record(spans.client, view, tokens).has_value();
    maru_unpin(spans.client, &view);
    if (!is_it) continue;
    const int status = maru_delete_block(spans.client, view.block, 0);  // and no block that was stored later
    if (status == 0) ++deleted;
    if (status < 0 && status != -ENOENT) return status;
  }
  return deleted;
}

int open_spans(maru_client* client, const maru_spans_options& options, maru_spans** ret_spans) {
  maru_geometry geometry = {};
  geometry.size = sizeof(geometry);
  if (const int status = maru_get_geometry(client, &geometry); status != 0) return status;
  if (geometry.metadata_bytes_max < record_bytes(options.window, MARU_SPAN_NOTE_BYTES_MAX)) return -EOPNOTSUPP;
  SecretName secret_name;
  secret_name.space = fingerprint_of(options);
  uint64_t secret = 0;
  if (const int status = maru_tenant(client, &secret_name, sizeof(secret_name), &secret); status != 0) return status;
  *ret_spans = new maru_spans{client, ChunkNames(options, secret_name.space, secret)};
  return 0;
}

}  // namespace
}  // namespace maru::blend

using namespace maru::blend;

int maru_open_spans(maru_client* client, const maru_spans_options* options, maru_spans** ret_spans) try {
  if (client == nullptr || options == nullptr || ret_spans == nullptr || !are_valid(*options)) return -EINVAL;
  return open_spans(client, *options, ret_spans);
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

void maru_close_spans(maru_spans* spans) { delete spans; }

int maru_alloc_spans(maru_spans* spans, uint64_t bytes, size_t n, maru_buffer* ret_buffers) {
  if (spans == nullptr) return -EINVAL;
  return maru_alloc_with_metadata(spans->client, bytes, record_bytes(spans->names.window(), MARU_SPAN_NOTE_BYTES_MAX),
                                  n, ret_buffers);
}

int maru_store_span(maru_spans* spans, const maru_span_chunk* chunk, const maru_buffer* buffer,
                    maru_block* ret_block) try {
  if (spans == nullptr || chunk == nullptr || buffer == nullptr || !is_valid(*chunk)) return -EINVAL;
  return store_span(*spans, *chunk, *buffer, ret_block);
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

int maru_store_span_copy(maru_spans* spans, const maru_span_chunk* chunk, const void* data, uint64_t bytes,
                         maru_block* ret_block) try {
  if (spans == nullptr || chunk == nullptr || data == nullptr || !is_valid(*chunk)) return -EINVAL;
  return store_span_copy(*spans, *chunk, data, bytes, ret_block);
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

int maru_name_span(maru_spans* spans, const maru_span_chunk* chunk, maru_block deepest, uint32_t blocks,
                   maru_block* ret_block) try {
  if (spans == nullptr || chunk == nullptr || !is_valid(*chunk) || deepest == 0) return -EINVAL;
  if (blocks == 0 || blocks > MARU_SPAN_BLOCKS_MAX) return -EINVAL;
  return name_span(*spans, *chunk, deepest, blocks, ret_block);
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

int maru_forget_span(maru_spans* spans, const uint32_t* tokens) {
  if (spans == nullptr || tokens == nullptr) return -EINVAL;
  return forget_span(*spans, tokens);
}
