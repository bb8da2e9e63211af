// Stores of many keys in one call: as client_store.cc does for one key, with the misses of later keys overlapped, and with one
// request to marud for all pages that are missing.
//
// Each block is published by itself. So other processes see, and a death leaves, the same as if the calls came one after the
// other. There is one difference: the pages of all copies are RESERVED before the first is published. The registry tells equal
// keys apart, as if two clients stored them: the first wins.
#include "libmaru/client/call.h"
#include "libmaru/client/client.h"
#include "libmaru/client/thread_state.h"

#include <algorithm>
#include <cerrno>

namespace maru::client {
namespace {

using shm::Digest;
using shm::PageRef;

// How many keys before its own turn the lines of a key are fetched: enough for memory to answer, few enough that they are all
// still there.
constexpr size_t kAhead = 8;

}  // namespace

bool Client::Unanswered::is_silence() const { return status == -ENOTCONN || status == -ETIMEDOUT || status == -ESTALE; }

int Client::store_batch(const maru_key* keys, std::span<const Digest> digests, const maru_buffer* buffers,
                        const CommonOptions& common, maru_block* ret_blocks, int32_t* ret_results) {
  const size_t n = digests.size();
  const auto fetch = [&](size_t i) {
    if (i < n) shm::prefetch_publish(region_, PageRef::from_bits(buffers[i].block), digests[i]);
  };
  for (size_t i = 0; i < kAhead; ++i) fetch(i);
  Unanswered unanswered;
  int stored = 0;
  for (size_t i = 0; i < n; ++i) {
    fetch(i + kAhead);
    maru_block block = 0;
    int status = is_leaving() ? -ESHUTDOWN : 0;
    if (status == 0)
      status = publish({keys[i], digests[i], buffers[i], common.options, common.parent, common.metadata(i)},
                       Duplicate::kGiveBack, &unanswered, &block);
    stored += status == 0;
    ret_results[i] = status;
    if (ret_blocks) ret_blocks[i] = block;
  }
  return stored;
}

// The blocks of a batch that are not there yet. All memory is the calling thread's.
struct Client::CopyBatch {
  const maru_key* keys;
  const uint64_t* bytes;
  const CommonOptions& common;
  std::span<uint32_t> missing;  // indices in the batch, in their order
  std::span<uint32_t> by_size;  // the same, sorted by size: equal numbers of pages lie side by side
  std::span<PageRef> taken;     // room for as many pages
  std::span<PageRef> pages;     // for each block of the batch: its pages, or none
  int32_t* results;
};

// Takes the pages, and asks once for all blocks with equal numbers of pages and equal tenants. If marud cannot give all, the
// first keys get pages, and the others have their result.
void Client::take_for(CopyBatch& batch, Unanswered& unanswered) {
  const auto run_pages = [&](uint32_t i) {
    const uint64_t needed = shm::bytes_with_metadata(batch.bytes[i], batch.common.metadata_bytes(i));
    return needed / region_.page_bytes() + (needed % region_.page_bytes() != 0);
  };
  const auto is_before = [&](uint32_t a, uint32_t b) {
    const uint64_t pages_a = run_pages(a), pages_b = run_pages(b);
    if (pages_a != pages_b) return pages_a < pages_b;
    const uint64_t tenant_a = batch.keys[a].tenant, tenant_b = batch.keys[b].tenant;
    return tenant_a != tenant_b ? tenant_a < tenant_b : a < b;
  };
  std::copy(batch.missing.begin(), batch.missing.end(), batch.by_size.begin());
  if (!std::is_sorted(batch.by_size.begin(), batch.by_size.end(), is_before))  // mostly all are alike
    std::sort(batch.by_size.begin(), batch.by_size.end(), is_before);
  for (size_t from = 0, to = 0; from < batch.by_size.size(); from = to) {
    const uint32_t first = batch.by_size[from];
    const auto is_alike = [&](uint32_t i) {
      return run_pages(i) == run_pages(first) && batch.keys[i].tenant == batch.keys[first].tenant;
    };
    while (to < batch.by_size.size() && is_alike(batch.by_size[to])) ++to;
    size_t taken = 0;
    int status = 0;
    if (run_pages(first) > region_.region_pages()) {
      status = -EFBIG;
    } else if (unanswered.is_silence()) {
      status = unanswered.status;
    } else {
      set_tenant(batch.keys[first].tenant);
      status = take_good_pages(to - from, uint32_t(run_pages(first)), batch.taken.data(), &taken);
      if (status != 0) unanswered.status = status;
    }
    if (!unanswered.is_silence()) unanswered = {};
    for (size_t k = from; k < to; ++k) {
      if (k - from < taken)
        batch.pages[batch.by_size[k]] = batch.taken[k - from];
      else
        batch.results[batch.by_size[k]] = status;
    }
  }
}

int Client::store_copy_batch(const maru_key* keys, std::span<const Digest> digests, const void* const* data,
                             const uint64_t* bytes, const CommonOptions& common, maru_block* ret_blocks,
                             int32_t* ret_results) {
  const size_t n = digests.size();
  // All of it before anything is taken: there may be no memory.
  const std::span<uint32_t> indices = scratch<uint32_t>(2 * n);
  const std::span<PageRef> refs = scratch<PageRef>(2 * n);
  int32_t* const results = ret_results ? ret_results : scratch<int32_t>(n).data();

  const auto fetch = [&](size_t i) {
    if (i < n) shm::prefetch_publish(region_, PageRef::none(), digests[i]);
  };
  for (size_t i = 0; i < kAhead; ++i) fetch(i);
  size_t missing = 0;
  for (size_t i = 0; i < n; ++i) {
    fetch(i + kAhead);
    maru_block block = 0;
    results[i] = check_metadata(common.metadata(i));
    if (results[i] == 0) results[i] = is_stored(digests[i], &block) ? 1 : 0;
    if (results[i] == 0) indices[missing++] = uint32_t(i);
    if (ret_blocks) ret_blocks[i] = block;
  }
  CopyBatch batch{
      keys,         bytes,  common, indices.first(missing), indices.subspan(n, missing), refs.first(missing),
      refs.last(n), results};
  // Before anything is evicted and copied for nothing. (The parent may still go meanwhile.)
  Unanswered unanswered;
  if (common.parent == 0 || is_there(PageRef::from_bits(common.parent)))
    take_for(batch, unanswered);
  else
    for (const uint32_t i : batch.missing) results[i] = -ENOLINK;

  int stored = 0;
  for (const uint32_t i : batch.missing) {
    if (results[i] != 0) continue;
    const PageRef own = batch.pages[i];
    std::byte* const memory = payload_->writable(own.page());
    const maru_buffer buffer{memory, bytes[i], own.bits};
    if (is_leaving())
      results[i] = -ESHUTDOWN;
    else if (memory == nullptr)
      results[i] = -ENOMEM;
    if (results[i] == 0) {
      shm::prefetch_publish(region_, own, digests[i]);  // while the bytes are copied
      payload_->back_with_huge_pages(own.page(), region_.run_pages(own.page()));
      results[i] = fill(buffer, data[i]);
    }
    if (results[i] == 0) {
      maru_block block = 0;
      results[i] = publish({keys[i], digests[i], buffer, common.options, common.parent, common.metadata(i)},
                           Duplicate::kGiveBack, &unanswered, &block);
      if (ret_blocks) ret_blocks[i] = block;
      stored += results[i] == 0;
    }
    if (results[i] < 0) abort(buffer);
  }
  return stored;
}

}  // namespace maru::client
