// The memory that marud hands to a follower: the feed, and the pool's control region and pages, all to read only.
//
// Thread safety: one thread. Nothing that is read here is believed without a check: clients write the control region.
#pragma once

#include "libmaru/base/kept_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/base/result.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/feed/ring.h"
#include "libmaru/shm/region/control_region.h"
#include "maru/format/wire.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace maru::follow {

// A block as followers are told of it.
struct FollowedBlock {
  shm::PageRef ref, parent;
  uint64_t tenant = 0, length = 0, stored_ms = 0, expires_ms = 0;
  uint32_t depth = 0, priority = 0, content_type = 0;
  uint32_t key_kind = 0, key_bytes = 0, metadata_bytes = 0;
  bool has_lost_metadata = false;
  std::unique_ptr<std::byte[]> bytes;  // of the key, and from there on of the metadata

  const std::byte* key() const { return bytes.get(); }
  const std::byte* metadata() const { return bytes.get() + key_bytes; }
};

class FollowedPool {
 public:
  // Asks marud on this socket, which stays connected while the caller follows. Errors: of the request; EPROTO, EBADMSG.
  static Result<std::unique_ptr<FollowedPool>> open(const KeptDescriptor& socket, const std::string& pool,
                                                    uint32_t timeout_ms, bool reads_metadata);

  const shm::FeedView& feed() const { return feed_; }
  uint64_t pages() const { return region_.pages(); }
  format::FeedState state() const;

  // The name of a tenant; empty: marud has not been told it.
  std::string tenant_name(uint64_t id) const;

  // Reads the block of this page, if it is the table's block and still there. False: its end was told, or will be.
  bool read_known(uint32_t page, FollowedBlock* ret_block);
  // The block that a record describes, with the metadata, if the block is there still.
  FollowedBlock block_of(const shm::FeedRecord& record);
  bool is_known(shm::PageRef ref) const {
    return feed_.table(ref.page()).load_acquire() == format::feed_mark(ref.generation());  // [pairs feed.table]
  }
  // Whether the page holds this life, READY or RETIRING.
  bool is_there(shm::PageRef ref) const;

 private:
  void describe(FollowedBlock& block, uint64_t length, uint64_t shape, uint64_t detail_kind) const;
  void take_bytes(FollowedBlock& block, const std::byte* key, uint64_t metadata_bytes);
  const std::byte* page_bytes(uint32_t page);

  Mapping feed_mapping_, control_, pages_;
  KeptDescriptor pages_fd_;
  uint64_t pages_offset_ = 0, pages_alignment_ = 0;
  bool reads_metadata_ = true;
  shm::FeedView feed_;
  shm::ControlRegion region_;
  shm::KeyBytes key_;  // scratch
};

}  // namespace maru::follow
