#include "libmaru/adapters/pool_form.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>

namespace maru::adapters {
int HeldParts::hold(maru_client* client, const PartKeys& keys, uint64_t part_bytes) {
  if (keys.size() == 0) return -ENOENT;
  maru_match match = {};
  if (const int status = maru_match_prefix(client, keys.data(), keys.size(), &match); status < 0) return status;
  std::vector<maru_view> views(keys.size());
  int status = match.blocks == keys.size() ? 0 : -ENOENT;
  if (status == 0) status = maru_resolve(client, &match, keys.data(), keys.size(), views.data());
  for (size_t at = 0; status >= 0 && at < views.size(); ++at) {
    const bool is_last = at + 1 == views.size();
    if (is_last ? views[at].bytes > part_bytes : views[at].bytes != part_bytes) status = -EMSGSIZE;
  }
  if (status < 0) {
    maru_release_match(client, &match);
    return status;
  }
  client_ = client;
  match_ = match;
  parts_.reserve(views.size());
  for (const maru_view& view : views) parts_.push_back(view.data);
  first_bytes_ = views.front().bytes;
  last_bytes_ = views.back().bytes;
  return 0;
}

NewParts::~NewParts() { let_go(); }

void NewParts::let_go() {
  if (stored_ < buffers_.size()) maru_abort_batch(client_, buffers_.data() + stored_, buffers_.size() - stored_);
  if (deepest_.block != 0) maru_release(client_, &deepest_);
  buffers_.clear();
  stored_ = 0;
  deepest_ = {};
}

int NewParts::allocate(const Placement& placement, uint64_t part_bytes) {
  let_go();  // parts of an earlier attempt with another source
  const size_t count = placement.part_bytes.size();
  std::vector<maru_buffer> buffers(count);
  if (count > 1)
    if (const int status = maru_alloc_batch(client_, part_bytes, count - 1, buffers.data()); status < 0) return status;
  if (const int status = maru_alloc(client_, placement.part_bytes.back(), &buffers.back()); status < 0) {
    if (count > 1) maru_abort_batch(client_, buffers.data(), count - 1);
    return status;
  }
  buffers_ = std::move(buffers);
  // Readers of an adapter must not see the bytes of earlier blocks: each part has zeros behind its last row.
  for (size_t at = 0; at < count; ++at)
    std::memset(static_cast<std::byte*>(buffers_[at].data) + placement.part_bytes[at], 0,
                buffers_[at].bytes - placement.part_bytes[at]);
  return 0;
}

void NewParts::touch(const RowsPlace& place, uint64_t row_number, uint64_t rows) const {
  constexpr uintptr_t kOsPage = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(row(place, row_number)) / kOsPage * kOsPage;
  const auto end = reinterpret_cast<uintptr_t>(row(place, row_number)) + rows * place.slot_bytes;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);  // a wish: writing does it otherwise
}

int NewParts::store_part(const maru_key& key, size_t at) {
  maru_store_options options = {};
  options.size = sizeof(options);
  options.parent = deepest_.block;
  options.content_type = MARU_CONTENT_LORA_WEIGHT;
  maru_view view = {};
  // Twice: a block that is there already may be evicted before it is pinned.
  for (int tries = 0; tries < 2; ++tries) {
    const int status = maru_store_pinned(client_, &key, &buffers_[at], &options, &view);
    if (status < 0) return status;
    if (status == 0) {
      stored_ = at + 1;
    } else if (const int pinned = maru_pin(client_, &key, &view); pinned == 0) {
      // A dead process stored the same bytes.
      maru_abort(client_, &buffers_[at]);
      stored_ = at + 1;
    } else if (pinned != -ENOENT) {
      return pinned;
    } else {
      continue;
    }
    if (deepest_.block != 0) maru_release(client_, &deepest_);
    deepest_ = view;
    return 0;
  }
  return -EAGAIN;
}

int remove_deepest(maru_client* client, const PartKeys& keys, size_t* ret_left) {
  size_t left = keys.size();
  for (; left > 0; --left) {
    maru_view view = {};
    const int status = maru_pin(client, &keys[left - 1], &view);
    if (status == -ENOENT) continue;
    if (status < 0) return status;
    const maru_block block = view.block;
    maru_release(client, &view);
    if (const int removed = maru_delete_block(client, block, MARU_DELETE_UNPINNED); removed < 0 && removed != -ENOENT)
      return removed == -ENOTEMPTY ? -EBUSY : removed;
    --left;
    break;
  }
  *ret_left = left;
  return 0;
}

void remove_rest(maru_client* client, const PartKeys& keys, size_t left) {
  // No process can hold the form any more. A search under way may pin a part for an instant; the part goes with that pin.
  for (; left > 0; --left) (void)maru_delete(client, &keys[left - 1]);
}

}  // namespace maru::adapters
