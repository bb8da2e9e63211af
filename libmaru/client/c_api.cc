// The C interface of maru.h over Client: arguments are checked here, errors become -errno, and no exception leaves.

#include "libmaru/client/client.h"
#include "libmaru/client/handle.h"
#include "libmaru/client/probes.h"
#include "libmaru/client/sized.h"
#include "maru/follow.h"
#include "maru/maru.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <vector>

using maru::client::Client;
using maru::client::counted_at;
using maru::client::kBlocksAreResult;
using maru::client::kOneBlock;
using maru::client::Options;
using maru::client::probed_alloc;
using maru::client::probed_erase;
using maru::client::probed_exists;
using maru::client::probed_match;
using maru::client::probed_retrieve;
using maru::client::probed_store;
using maru::client::read_options;
using maru::client::write_sized;
using maru::shm::Digest;
using maru::shm::PageRef;
using maru::shm::PlainDigest;

namespace {

// Runs an operation of a client: refuses a child of fork(), and turns running out of memory into an error.
template <typename F>
int with_any(maru_client* client, F&& operation) {
  if (client == nullptr) return -EINVAL;
  if (client->client->is_child()) return -ECHILD;
  try {
    return operation(*client->client);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

// Also refuses new work for a pool whose memory marud wants back. A call may fail because the pool went away under it: page
// words are replaced, or no marud answers. Such a call fails with the same word.
template <typename F>
int with(maru_client* client, F&& operation) {
  return with_any(client, [&](Client& c) {
    if (c.is_leaving()) return -ESHUTDOWN;
    const int result = operation(c);
    return result < 0 && c.is_leaving() ? -ESHUTDOWN : result;
  });
}

template <typename F>
int with_digest(maru_client* client, const maru_key* key, F&& operation) {
  return with(client, [&](Client& c) {
    if (key == nullptr) return -EINVAL;
    Digest digest;
    return c.digest(*key, digest) ? int(operation(c, digest)) : -EINVAL;
  });
}

template <typename F>
int with_digests(maru_client* client, const maru_key* keys, size_t n, F&& operation) {
  return with(client, [&](Client& c) {
    if (n == 0) return int(operation(c, std::span<Digest>()));
    const std::span<Digest> digests = c.digests(keys, n);
    return digests.empty() ? -EINVAL : int(operation(c, digests));
  });
}

int store_one(Client& c, const maru_key* key, const maru_buffer* buffer, const maru_store_options& options,
              maru_block* ret_block) {
  if (key == nullptr || buffer == nullptr) return -EINVAL;
  maru_block parent = 0;
  if (const int status = c.parent_of(options, &parent); status != 0) return status;
  return c.store(*key, *buffer, options, parent, options.metadata, ret_block);
}

// Options of a batch, and the parent that they name.
template <typename F>
int with_common_options(Client& c, const maru_store_options* given, F&& operation) {
  if (c.is_read_only()) return -EROFS;
  maru_store_options options;
  if (const int status = read_options(given, &options); status != 0) return status;
  maru_block parent = 0;
  if (const int status = c.parent_of(options, &parent); status != 0) return status;
  return operation(Client::CommonOptions{options, parent});
}

int find_batch(maru_client* client, const maru_key* keys, size_t n, bool payload, maru_view* ret_views) {
  // On any error: a caller that releases these views again must end no pin of an earlier call.
  if (ret_views && n <= maru::limits::kBatchKeysMax) std::fill_n(ret_views, n, maru_view{});
  return with_digests(client, keys, n, [&](Client& c, std::span<Digest> digests) {
    return ret_views || n == 0 ? c.retrieve_batch(digests, payload, ret_views) : -EINVAL;
  });
}

}  // namespace

extern "C" {

const char* maru_version(void) { return "0.1.0"; }

int maru_attach(const maru_attach_options* given, maru_client** ret_client) {
  if (ret_client == nullptr) return -EINVAL;
  try {
    maru_attach_options options;
    if (const int status = read_options(given, &options); status != 0) return status;
    if ((options.flags & ~uint32_t{MARU_ATTACH_FIRST_FIT | MARU_ATTACH_NO_SESSION_THREAD | MARU_ATTACH_READ_ONLY}) !=
            0 ||
        options.thread_cache_pages > 4096 || options.reserved0 != 0)
      return -EINVAL;
    Options wanted;
    wanted.socket_path = options.socket_path ? options.socket_path : maru::wire::default_socket_path();
    if (options.pool) wanted.pool = options.pool;
    if (!maru::wire::is_pool_name(wanted.pool)) return -EINVAL;
    if (options.timeout_ms) wanted.timeout_ms = options.timeout_ms;
    if (options.thread_cache_pages) wanted.thread_cache_pages = options.thread_cache_pages;
    wanted.first_fit = (options.flags & MARU_ATTACH_FIRST_FIT) != 0;
    wanted.session_thread = (options.flags & MARU_ATTACH_NO_SESSION_THREAD) == 0;
    wanted.read_only = (options.flags & MARU_ATTACH_READ_ONLY) != 0;
    auto client = Client::attach(wanted);
    if (!client) return -client.error().code;
    if (const maru::client::TracingWish wish = maru::client::tracing_wish_of_environment(); !wish.socket_path.empty())
      (void)(*client)->trace(wish);  // a client that cannot be traced works all the same
    *ret_client = new maru_client{std::move(*client)};
    return 0;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

void maru_detach(maru_client* client) {
  if (client && client->client->is_child()) Client::abandon(std::move(client->client));
  delete client;
}

int maru_reattach(maru_client* client) {
  return with(client, [](Client& c) {
    const auto result = c.connection().reattach();
    return result ? 0 : -result.error().code;
  });
}

int maru_before_unmap(maru_client* client, void (*call)(void*), void* argument, void** ret_pages) {
  return with_any(client, [&](Client& c) { return c.before_unmap(call, argument, ret_pages); });
}

uint64_t maru_daemon_epoch(const maru_client* client) {
  if (client == nullptr || client->client->is_child()) return 0;
  const Client& c = *client->client;
  return c.region().host(c.attached().host).epoch.load_acquire();
}

int maru_tenant(const maru_client* client, const void* name, size_t size, uint64_t* ret_tenant) {
  if (client == nullptr || name == nullptr || ret_tenant == nullptr || size == 0 || size > maru::limits::kTenantNameMax)
    return -EINVAL;
  *ret_tenant = maru::shm::tenant_id(client->client->region().secret(), {static_cast<const std::byte*>(name), size});
  return 0;
}

int maru_get_geometry(const maru_client* client, maru_geometry* ret_geometry) {
  if (client == nullptr || ret_geometry == nullptr) return -EINVAL;
  const Client& c = *client->client;
  const auto& p = c.region().parameters();
  maru_geometry g{};
  g.pool_bytes = p.pool_bytes;
  g.control_bytes = c.region().layout().control_bytes;
  g.page_bytes = p.page_bytes;
  g.pages = p.pages;
  g.region_pages = p.region_pages;
  g.lanes = p.lanes;
  g.lane = c.attached().lane;
  g.pins_max = p.pins_max;
  g.key_bytes_max = maru::limits::kKeyBytesMax;
  std::memcpy(g.uuid, c.attached().uuid, sizeof(g.uuid));
  g.checksums = c.region().has_checksums();
  g.metadata_bytes_max = c.region().has_metadata() ? maru::limits::kMetadataBytesMax : 0;
  g.user_regions_max = c.attached().user_regions_max;
  g.user_bytes_max = c.attached().user_bytes_max;
  return write_sized(g, ret_geometry);
}

int maru_get_statistics(const maru_client* client, maru_statistics* ret_statistics) {
  if (ret_statistics == nullptr) return -EINVAL;
  return with_any(const_cast<maru_client*>(client), [&](const Client& c) {
    maru_statistics s{};
    c.statistics(&s);
    return write_sized(s, ret_statistics);
  });
}

// -- storing ----------------------------------------------------------------------------------------------------------

int maru_alloc_with_metadata(maru_client* client, uint64_t bytes, uint32_t metadata_bytes, size_t n,
                             maru_buffer* ret_buffers) {
  return probed_alloc(client, n, n * bytes, kBlocksAreResult, [&] {
    return with(client, [&](Client& c) {
      if (ret_buffers == nullptr) return -EINVAL;
      if (const int status = c.check_metadata_bytes(metadata_bytes); status != 0) return status;
      return c.alloc(bytes, metadata_bytes, n, ret_buffers);
    });
  });
}

int maru_alloc_batch(maru_client* client, uint64_t bytes, size_t n, maru_buffer* ret_buffers) {
  return maru_alloc_with_metadata(client, bytes, 0, n, ret_buffers);
}

int maru_alloc(maru_client* client, uint64_t bytes, maru_buffer* ret_buffer) {
  return maru_alloc_batch(client, bytes, 1, ret_buffer);
}

int maru_abort_batch(maru_client* client, const maru_buffer* buffers, size_t n) {
  return with_any(client, [&](Client& c) {
    if (buffers == nullptr && n != 0) return -EINVAL;
    int status = 0;
    for (size_t i = 0; i < n; ++i)
      if (const int one = c.abort(buffers[i]); one != 0) status = one;
    return status;
  });
}

int maru_abort(maru_client* client, const maru_buffer* buffer) { return maru_abort_batch(client, buffer, 1); }

int maru_store(maru_client* client, const maru_key* key, const maru_buffer* buffer, const maru_store_options* given,
               maru_block* ret_block) {
  return probed_store(client, 1, buffer ? buffer->bytes : 0, kOneBlock, [&] {
    return with(client, [&](Client& c) {
      maru_store_options options;
      if (const int status = read_options(given, &options); status != 0) return status;
      return store_one(c, key, buffer, options, ret_block);
    });
  });
}

int maru_store_pinned(maru_client* client, const maru_key* key, const maru_buffer* buffer,
                      const maru_store_options* given, maru_view* ret_view) {
  return probed_store(client, 1, buffer ? buffer->bytes : 0, kOneBlock, [&] {
    return with(client, [&](Client& c) {
      if (key == nullptr || buffer == nullptr || ret_view == nullptr) return -EINVAL;
      maru_store_options options;
      if (const int status = read_options(given, &options); status != 0) return status;
      maru_block parent = 0;
      if (const int status = c.parent_of(options, &parent); status != 0) return status;
      return c.store_pinned(*key, *buffer, options, parent, ret_view);
    });
  });
}

int maru_store_copy(maru_client* client, const maru_key* key, const void* data, uint64_t bytes,
                    const maru_store_options* given, maru_block* ret_block) {
  return probed_store(client, 1, bytes, kOneBlock, [&] {
    return with(client, [&](Client& c) {
      if (key == nullptr || data == nullptr || bytes == 0) return -EINVAL;
      maru_store_options options;
      if (const int status = read_options(given, &options); status != 0) return status;
      if (c.is_read_only()) return -EROFS;
      Digest digest;
      if (!c.digest(*key, digest) || !Client::are_valid(options)) return -EINVAL;
      if (const int status = c.check_metadata(options.metadata); status != 0) return status;
      if (c.is_stored(digest, ret_block)) return 1;
      // Before anything is evicted and copied for nothing. (The parent may still go meanwhile.)
      maru_block parent = 0;
      if (const int status = c.parent_of(options, &parent); status != 0) return status;
      if (parent != 0 && !c.is_there(PageRef::from_bits(parent))) return -ENOLINK;
      Client::set_tenant(key->tenant);
      maru_buffer buffer;
      const uint64_t metadata_bytes = options.metadata ? options.metadata->bytes : 0;
      if (const int status = c.alloc(bytes, metadata_bytes, 1, &buffer); status != 0) return status;
      int status = c.fill(buffer, data);
      if (status == 0) status = c.store(*key, buffer, options, parent, options.metadata, ret_block);
      if (status < 0) c.abort(buffer);
      return status;
    });
  });
}

int maru_store_batch(maru_client* client, const maru_key* keys, const maru_buffer* buffers, size_t n,
                     const maru_store_options* given, maru_block* ret_blocks, int32_t* ret_results) {
  return probed_store(client, n, 0, kBlocksAreResult, [&] {
    return with_digests(client, keys, n, [&](Client& c, std::span<Digest> digests) {
      if ((buffers == nullptr || ret_results == nullptr) && n != 0) return -EINVAL;
      return with_common_options(c, given, [&](const Client::CommonOptions& common) {
        return c.store_batch(keys, digests, buffers, common, ret_blocks, ret_results);
      });
    });
  });
}

int maru_store_copy_batch(maru_client* client, const maru_key* keys, const void* const* data, const uint64_t* bytes,
                          size_t n, const maru_store_options* given, maru_block* ret_blocks, int32_t* ret_results) {
  return probed_store(client, n, 0, kBlocksAreResult, [&] {
    return with_digests(client, keys, n, [&](Client& c, std::span<Digest> digests) {
      if ((data == nullptr || bytes == nullptr) && n != 0) return -EINVAL;
      for (size_t i = 0; i < n; ++i)
        if (data[i] == nullptr || bytes[i] == 0) return -EINVAL;
      return with_common_options(c, given, [&](const Client::CommonOptions& common) {
        return c.store_copy_batch(keys, digests, data, bytes, common, ret_blocks, ret_results);
      });
    });
  });
}

int maru_store_chain(maru_client* client, const maru_key* keys, const maru_buffer* buffers, size_t n,
                     const maru_store_options* given, maru_block* ret_blocks, size_t* ret_stored, size_t* ret_done) {
  size_t stored = 0, done = 0;
  return probed_store(client, n, 0, counted_at(&done), [&] {
    const int result = with(client, [&](Client& c) {
      if ((keys == nullptr || buffers == nullptr) && n != 0) return -EINVAL;
      maru_store_options options;
      if (const int status = read_options(given, &options); status != 0) return status;
      maru_block parent = 0;
      if (const int status = c.parent_of(options, &parent); status != 0) return status;
      for (size_t i = 0; i < n; ++i) {
        const maru_metadata* metadata = options.metadata ? options.metadata + i : nullptr;
        const int status = c.store(keys[i], buffers[i], options, parent, metadata, &parent);
        if (status < 0) return status;
        stored += status == 0;
        done = i + 1;
        if (ret_blocks) ret_blocks[i] = parent;
      }
      return 0;
    });
    if (ret_done) *ret_done = done;
    if (ret_stored) *ret_stored = stored;
    return result;
  });
}

int maru_next_evicted(maru_client* client, maru_key_copy* ret_key) {
  return with_any(client, [&](Client& c) { return ret_key ? c.next_evicted(ret_key) : -EINVAL; });
}

// -- finding ----------------------------------------------------------------------------------------------------------

int maru_exists(maru_client* client, const maru_key* key) {
  return probed_exists(client, 1, 0, kBlocksAreResult, [&] {
    return with_digest(client, key, [](Client& c, const Digest& digest) { return c.exists(digest); });
  });
}

int maru_exists_batch(maru_client* client, const maru_key* keys, size_t n, uint8_t* ret_present) {
  return probed_exists(client, n, 0, kBlocksAreResult,
                       [&] { return with(client, [&](Client& c) { return c.exists_batch(keys, n, ret_present); }); });
}

int maru_exists_rows(maru_client* client, const maru_key_rows* rows, size_t n, uint8_t* ret_present) {
  return probed_exists(client, n, 0, kBlocksAreResult, [&] {
    return with(client, [&](Client& c) {
      if (n == 0) return 0;
      return rows != nullptr ? c.exists_rows(*rows, n, ret_present) : -EINVAL;
    });
  });
}

int maru_which(maru_client* client, const maru_key* keys, size_t n, maru_range* ret_ranges, size_t ranges_max,
               size_t* ret_present) {
  uint64_t count = 0;
  const auto which = [&](Client& c) {
    if (ret_ranges == nullptr && ranges_max != 0) return -EINVAL;
    std::vector<uint8_t> present(n <= maru::limits::kBatchKeysMax ? n : 0);
    if (const int found = c.exists_batch(keys, n, present.data()); found < 0) return found;
    size_t ranges = 0;
    for (size_t i = 0; i < n; ++i) {
      if (present[i] == 0) continue;
      ++count;
      if (i == 0 || present[i - 1] == 0) {
        if (ranges < ranges_max) ret_ranges[ranges] = {i, i};
        ++ranges;
      }
      if (ranges <= ranges_max) ret_ranges[ranges - 1].end = i + 1;
    }
    if (ret_present) *ret_present = count;
    return int(ranges);
  };
  return probed_exists(client, n, 0, counted_at(&count), [&] { return with(client, which); });
}

int maru_retrieve(maru_client* client, const maru_key* key, maru_view* ret_view) {
  return probed_retrieve(client, 1, 0, kOneBlock, [&] {
    return with_digest(client, key, [&](Client& c, const Digest& digest) {
      return ret_view ? c.retrieve(digest, true, ret_view) : -EINVAL;
    });
  });
}

int maru_retrieve_batch(maru_client* client, const maru_key* keys, size_t n, maru_view* ret_views) {
  return probed_retrieve(client, n, 0, kBlocksAreResult, [&] { return find_batch(client, keys, n, true, ret_views); });
}

int maru_pin(maru_client* client, const maru_key* key, maru_view* ret_view) {
  return with_digest(client, key, [&](Client& c, const Digest& digest) {
    return ret_view ? c.retrieve(digest, false, ret_view) : -EINVAL;
  });
}

int maru_pin_batch(maru_client* client, const maru_key* keys, size_t n, maru_view* ret_views) {
  return find_batch(client, keys, n, false, ret_views);
}

int maru_pin_block(maru_client* client, maru_block block, maru_view* ret_view) {
  return with(client, [&](Client& c) { return ret_view ? c.pin_block(PageRef::from_bits(block), ret_view) : -EINVAL; });
}

int maru_peek_block(maru_client* client, maru_block block, maru_view* ret_view) {
  return with(client,
              [&](Client& c) { return ret_view ? c.peek_block(PageRef::from_bits(block), ret_view) : -EINVAL; });
}

int maru_view_metadata(maru_client* client, const maru_view* view, maru_metadata* ret_metadata) {
  return with_any(client,
                  [&](Client& c) { return view && ret_metadata ? c.view_metadata(*view, ret_metadata) : -EINVAL; });
}

int maru_get_block_info(maru_client* client, maru_block block, maru_block_info* ret_info, maru_key_copy* ret_key) {
  if (ret_info == nullptr) return -EINVAL;
  return with_any(client, [&](Client& c) {
    maru_block_info info{};
    if (ret_info->size < sizeof(size_t) || ret_info->size > 4096) return -EINVAL;
    const int status = c.block_info(PageRef::from_bits(block), &info, ret_key);
    return status != 0 ? status : write_sized(info, ret_info);
  });
}

int maru_release(maru_client* client, const maru_view* view) {
  return with_any(client, [&](Client& c) { return view ? c.release(*view) : -EINVAL; });
}

int maru_unpin(maru_client* client, const maru_view* view) { return maru_release(client, view); }

int maru_release_batch(maru_client* client, const maru_view* views, size_t n) {
  return with_any(client, [&](Client& c) {
    if (views == nullptr && n != 0) return -EINVAL;
    int status = 0;
    for (size_t i = 0; i < n; ++i)
      if (const int one = c.release(views[i]); one != 0) status = one;
    return status;
  });
}

int maru_match_prefix(maru_client* client, const maru_key* keys, size_t n, maru_match* ret_match) {
  return probed_match(client, n, 0, ret_match ? counted_at(&ret_match->blocks) : kBlocksAreResult,
                      [&] { return with(client, [&](Client& c) { return c.match_prefix(keys, n, ret_match); }); });
}

int maru_resolve(maru_client* client, const maru_match* match, const maru_key* keys, size_t n, maru_view* ret_views) {
  return with_digests(client, keys, n, [&](Client& c, std::span<Digest> digests) {
    return match && (ret_views || n == 0) ? c.resolve(*match, digests, ret_views) : -EINVAL;
  });
}

int maru_release_match(maru_client* client, maru_match* match) {
  return with_any(client, [&](Client& c) { return match ? c.release_match(*match) : -EINVAL; });
}

// -- counting ---------------------------------------------------------------------------------------------------------

int maru_count_blocks(maru_client* client, maru_block_counts* ret_counts) {
  return with(client, [&](Client& c) {
    if (ret_counts == nullptr || ret_counts->size < sizeof(size_t) || ret_counts->size > 4096) return -EINVAL;
    maru_block_counts counts{};
    c.count_blocks(&counts);
    return write_sized(counts, ret_counts);
  });
}

// -- memory errors ----------------------------------------------------------------------------------------------------

int maru_handle_memory_errors(uint32_t flags) {
  return (flags & ~uint32_t{MARU_MEMORY_ERRORS_VIEWS}) != 0 ? -EINVAL : maru::client::handle_memory_errors(flags);
}

int maru_view_error(maru_client* client, const maru_view* view) {
  return with_any(client, [&](Client& c) { return view ? c.view_error(*view) : -EINVAL; });
}

// -- deleting ---------------------------------------------------------------------------------------------------------

int maru_delete(maru_client* client, const maru_key* key) {
  return probed_erase(client, 1, 0, kOneBlock, [&] {
    return with_digest(client, key, [](Client& c, const Digest& digest) { return c.remove(digest); });
  });
}

int maru_delete_batch(maru_client* client, const maru_key* keys, size_t n, int32_t* ret_results) {
  return probed_erase(client, n, 0, kBlocksAreResult, [&] {
    return with_digests(client, keys, n, [&](Client& c, std::span<Digest> digests) {
      if (c.is_read_only()) return -EROFS;
      int deleted = 0;
      for (size_t i = 0; i < digests.size(); ++i) {
        const int status = c.remove(digests[i]);
        deleted += status == 0;
        if (ret_results) ret_results[i] = status;
      }
      return deleted;
    });
  });
}

int maru_delete_block(maru_client* client, maru_block block, uint32_t flags) {
  return with(client, [&](Client& c) {
    if ((flags & ~uint32_t{MARU_DELETE_UNPINNED}) != 0) return -EINVAL;
    return c.remove_block(PageRef::from_bits(block), (flags & MARU_DELETE_UNPINNED) != 0);
  });
}

int maru_delete_tree(maru_client* client, const maru_key* key, uint64_t* ret_deleted) {
  return with_digest(client, key, [&](Client& c, const Digest& digest) {
    uint64_t deleted = 0;
    const int status = c.remove_tree(digest, &deleted);
    if (ret_deleted && (status == 0 || status == -EBUSY)) *ret_deleted = deleted;
    return status;
  });
}

int maru_report_copies(maru_client* client, const maru_block* blocks, size_t n) {
  return with(client, [&](Client& c) {
    if ((blocks == nullptr && n != 0) || n > maru::limits::kBatchKeysMax) return -EINVAL;
    return c.report_copies({blocks, n});
  });
}

}  // extern "C"
