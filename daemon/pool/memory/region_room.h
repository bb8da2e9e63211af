// Which regions of a pool in a file have room, where the file system has not promised room for the whole file. A client that
// stores into a page without room gets SIGBUS. So the pages of a region become FREE only after the region got its room.
//
// Taking room lasts as long as the file system likes: a thread does it, one region at a time, and the request that needs the
// region waits for the thread. After a full file system has refused, the next attempt rests for a while.
//
// Thread safety: of the deciding thread alone, beside its own thread.
#pragma once

#include "daemon/base/aside.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

class RegionRoom {
 public:
  static constexpr uint64_t kAgainMs = 1000;

  // Region r lies at `offset` + r * `region_bytes` of `fd`, which is duplicated. `name`: of the pool's file, for people.
  static Result<std::unique_ptr<RegionRoom>> of(int fd, uint64_t offset, uint64_t region_bytes, uint32_t regions,
                                                std::string name);

  bool has(uint32_t region) const { return has_[region]; }
  uint64_t lacking_bytes() const { return lacking_ * region_bytes_; }
  // Why the last attempt got no room; empty: it got room.
  const std::string& full_because() const { return full_because_; }

  // Takes room for the region now; blocks. False: the file system is full.
  bool take(uint32_t region);
  // The same by the thread. Nothing happens while the thread is at another region, or shortly after a refusal.
  void begin(uint32_t region, uint64_t now_ms);
  bool is_busy() const { return work_.is_begun(); }
  // The region that has got room since the last call.
  std::optional<uint32_t> step(uint64_t now_ms);
  // The parts of the region that may have no room, from its beginning on.
  struct Range {
    uint64_t offset = 0, bytes = 0;
  };
  std::vector<Range> bare(uint32_t region) const;

 private:
  RegionRoom() = default;
  void took(uint32_t region, const Result<void>& taken);
  uint64_t offset_of(uint32_t region) const { return offset_ + region * region_bytes_; }

  std::shared_ptr<const FileDescriptor> fd_;  // the thread's, too
  uint64_t offset_ = 0, region_bytes_ = 0;
  std::string name_;
  std::vector<bool> has_;
  uint64_t lacking_ = 0;
  std::string full_because_;
  uint64_t again_ms_ = 0;
  Aside<Result<void>> work_;
  uint32_t working_at_ = 0;
};

}  // namespace maru::daemon
