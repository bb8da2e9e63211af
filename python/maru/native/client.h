// maru.Client: the calls of maru.h on one attachment.
//
// Lookups of one key (exists, retrieve, pin) keep the GIL: they take less time than giving it up does, and whoever gives it
// up waits for as long as the next thread likes to keep it. In a pool with checksums retrieve reads the whole block, and
// releases it. So do calls that may ask marud, wait for another thread, copy, delete (a block gives back page after page), or
// take many keys, or long ones, which are hashed.
#pragma once

#include "attachment.h"
#include "held.h"
#include "keys.h"

#include <list>
#include <memory>
#include <optional>
#include <pybind11/pybind11.h>
#include <string>
#include <utility>
#include <vector>

namespace maru_python {

class Client : public ZeroedMemory {
 public:
  struct StoreOptions {
    pybind11::object parent;  // None, a block, or a key
    uint64_t ttl_ms;
    uint32_t priority;
    uint32_t content_type;
    pybind11::object tenant;
    pybind11::object
        metadata;  // of one block a buffer; of several a sequence with one for each, empty or None for none
  };

  Client(const std::optional<std::string>& socket_path, const std::optional<std::string>& pool, uint32_t timeout_ms,
         uint32_t thread_cache_pages, bool first_fit, bool session_thread, bool read_only);

  void close() {
    if (attachment_ != nullptr) attachment_->close();
  }
  bool is_closed() const { return attachment_ == nullptr || attachment_->is_closed(); }
  maru_client* handle() const { return attachment().open(); }
  void reattach();
  // A maru.follow.Follower of this client's pool, which needs no client.
  pybind11::object follow(const pybind11::kwargs& options) const;
  // As Attachment::before_unmap.
  uintptr_t before_unmap(pybind11::object call) const { return attachment().before_unmap(std::move(call)); }
  uint64_t daemon_epoch() const { return maru_daemon_epoch(attachment().open()); }
  uint64_t tenant(pybind11::handle name) const;
  pybind11::object geometry() const;
  pybind11::object block_info(maru_block block) const;
  pybind11::object statistics() const;
  pybind11::tuple count_blocks() const;
  void remove_block(maru_block block, bool unpinned) const;
  pybind11::list evicted();

  bool exists(pybind11::handle key, pybind11::handle tenant, KeyForm form = KeyForm::kClient) const;
  pybind11::object exists_batch(pybind11::handle keys, pybind11::handle tenant, pybind11::object out,
                                KeyForm form = KeyForm::kClient) const;
  pybind11::object retrieve(pybind11::handle key, pybind11::handle tenant) const;
  pybind11::list retrieve_batch(pybind11::handle keys, pybind11::handle tenant) const;
  // As retrieve and retrieve_batch, for MaruHandler: MemoryInfos.
  pybind11::object find(pybind11::handle key, pybind11::handle tenant, pybind11::handle places) const;
  pybind11::list find_batch(pybind11::handle keys, pybind11::handle tenant, pybind11::handle places) const;
  pybind11::object pin(pybind11::handle key, pybind11::handle tenant) const;
  pybind11::list pin_batch(pybind11::handle keys, pybind11::handle tenant) const;
  void unpin_batch(pybind11::handle pins) const;
  pybind11::object pin_block(maru_block block) const;
  pybind11::object match_prefix(pybind11::handle keys, pybind11::handle tenant) const;

  pybind11::object alloc(uint64_t bytes, uint32_t metadata_bytes);
  pybind11::list alloc_batch(uint64_t bytes, size_t n, uint32_t metadata_bytes);
  pybind11::object store(pybind11::handle key, Buffer& buffer, const StoreOptions& options, bool keep_views);
  pybind11::object store_copy(pybind11::handle key, pybind11::handle data, const StoreOptions& options);
  pybind11::object store_batch(pybind11::handle keys, pybind11::handle buffers, const StoreOptions& options,
                               bool keep_views);
  pybind11::object store_copy_batch(pybind11::handle keys, pybind11::handle data, const StoreOptions& options);
  pybind11::object store_chain(pybind11::handle keys, pybind11::handle buffers, const StoreOptions& options,
                               bool keep_views);

  bool remove(pybind11::handle key, pybind11::handle tenant);
  pybind11::object remove_batch(pybind11::handle keys, pybind11::handle tenant);
  uint64_t remove_tree(pybind11::handle key, pybind11::handle tenant);

  // A Spans of this client's pool: spans.h.
  pybind11::object open_spans(pybind11::handle space, pybind11::handle window, pybind11::handle tenant,
                              pybind11::handle occupants) const;

 private:
  // Raises ClosedError when __init__ was not called.
  Attachment& attachment() const {
    if (attachment_ == nullptr) refuse();
    return *attachment_;
  }
  [[noreturn]] static void refuse();
  template <typename Make>
  pybind11::object retrieve_as(pybind11::handle key, pybind11::handle tenant, KeyForm form, Make&& make) const;
  template <typename Make, typename Fail>
  pybind11::list found_as(const std::vector<maru_view>& views, maru_client* client, Make&& make, Fail&& fail) const;
  template <typename Make, typename Fail>
  pybind11::list retrieve_batch_as(pybind11::handle keys, pybind11::handle tenant, KeyForm form, Make&& make,
                                   Fail&& fail) const;

  std::list<maru_key_copy>
      evicted_;  // asked for from the library, and not returned, for want of memory; the GIL guards it
  std::optional<std::string> socket_path_, pool_;  // as given
  std::shared_ptr<Attachment> attachment_;
  bool verifies_ = false;  // the pool has checksums
};

void define_client(pybind11::module_& module);

}  // namespace maru_python
