// Events of the pool, from the thread that follows it to the controllers. Bounded: when the queue is full, stored blocks are
// left out, which costs a tier some blocks; deletions never are.
//
// Threads: one puts, one takes.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "maru/follow.h"

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <sys/eventfd.h>
#include <vector>

namespace maru::tierd {

struct FeedItem {
  enum class Kind : uint8_t {
    kStored,
    kDeleted,  // a client or an administrator removed it, or its time was over
    kReset     // all earlier events are void
  };
  Kind kind = Kind::kStored;
  maru_block block = 0;
  std::string key, parent;  // their bytes
  uint32_t key_kind = 0, parent_kind = 0;
  uint64_t tenant = 0, parent_tenant = 0;
  std::string tenant_name;
  uint64_t length = 0, expires_ms = 0;
  uint32_t priority = 0, content_type = 0;
  uint32_t attempts = 0;   // to store it so far
  bool is_stored = false;  // in a tier
  uint8_t tiers_done = 0;  // a bit for each tier that has it, or will not take it

  maru_key maru_key_now() const { return {key.data(), uint32_t(key.size()), key_kind, tenant}; }
  maru_key maru_parent_now() const { return {parent.data(), uint32_t(parent.size()), parent_kind, parent_tenant}; }
};

class FeedQueue {
 public:
  static constexpr size_t kStoredMax = 1u << 16;

  FeedQueue() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  int descriptor() const { return event_.get(); }

  // False: it was left out.
  bool put(FeedItem item) {
    {
      const std::lock_guard lock(mutex_);
      if (item.kind == FeedItem::Kind::kStored && items_.size() >= kStoredMax) return false;
      items_.push_back(std::move(item));
    }
    eventfd_write(event_.get(), 1);
    return true;
  }
  // All of them, in order.
  std::deque<FeedItem> take() {
    eventfd_t ignored = 0;
    eventfd_read(event_.get(), &ignored);
    const std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }

 private:
  FileDescriptor event_;
  std::mutex mutex_;
  std::deque<FeedItem> items_;
};

}  // namespace maru::tierd
