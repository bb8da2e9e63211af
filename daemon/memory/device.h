// The memory of a pool and the descriptor that clients map it through. Only daemon/memory/ knows which kind of memory
// it is: memfd, file, DAX device.
//
// marud maps the control region and never the pages. The mapping is under a guard: any process that may write a file
// can truncate it, and a huge page may be missing at first touch; both arrive as SIGBUS. The guard then puts zeroed
// private memory in the place of the whole mapping and marks the device as lost. Code that was reading goes on with
// zeros, which is no worse than any other content a client could have written. The caller asks is_lost() after each
// call into the pool and fences the pool. Nothing is unwound, so no destructor is skipped.
#pragma once

#include "daemon/memory/fault_guard.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace maru::daemon {

inline constexpr std::string_view kMapSyncGranted = "granted";

// The identity of memory, for the state file: two descriptors with the same one are the same memory.
struct DeviceIdentity {
  uint64_t device = 0;  // st_dev
  uint64_t inode = 0;   // st_ino
  uint32_t seals = 0;   // F_GET_SEALS; 0 when it is no memfd
  uint64_t bytes = 0;
  friend bool operator==(const DeviceIdentity&, const DeviceIdentity&) = default;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string_view kind() const = 0;         // "memory", "file", "dax"
  const std::string& name() const { return name_; }  // for people: "memory (huge pages)", "/dev/shm/pool"
  // The descriptor that clients get, of everything or, when the pool is split, of the pages. It carries no lock of marud's:
  // a client that outlives marud must not keep the next marud out.
  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return identity_.bytes; }  // of both devices, when the pool is split

  // A split pool has its control region on a device, or in a memfd, of its own. So read-only clients get descriptors with which
  // they cannot write pages. They must write the control region: their pins are there.
  bool is_split() const { return control_fd_.is_open(); }
  int control_fd() const { return is_split() ? control_fd_.get() : fd_.get(); }
  int read_only_fd() const { return read_only_fd_.get(); }  // of the pages; -1 unless the pool is split
  uint64_t control_alignment() const { return control_alignment_ != 0 ? control_alignment_ : map_alignment_; }
  // Of a split pool: where page 0 lies in fd(), how many bytes there are for pages, and how many for the control region.
  uint64_t pages_offset() const { return pages_offset_; }
  uint64_t pages_room() const { return pages_room_; }
  uint64_t control_room() const { return is_split() ? control_room_ : bytes(); }
  // The pool is about to be formatted with this uuid, for one host or for several: the label beside the pages says so.
  virtual Result<void> label_pages(const uint8_t (&)[16], bool /*is_shared*/) { return {}; }

  // Whether writes of clients are durable once they left the processor's caches: kMapSyncGranted, or why not; empty
  // where marud did not ask.
  const std::string& map_sync() const { return map_sync_; }
  bool advises_huge() const { return advise_huge_; }
  // Why other programs may take the room that pages of this device still need; empty: the device has room for all pages. A
  // process that touches a page without room gets SIGBUS.
  const std::string& unreserved_because() const { return unreserved_because_; }

  uint64_t map_alignment() const { return map_alignment_; }  // mappings start and end on a multiple of this
  // Of a split pool the control region's, with the bytes of both.
  const DeviceIdentity& identity() const { return identity_; }
  // Of a split pool in memory: how the memory of its pages is known again.
  virtual const std::optional<DeviceIdentity>& pages_identity() const {
    static const std::optional<DeviceIdentity> kNone;
    return kNone;
  }

  // Takes memory for its first `bytes` bytes now, so that the control region cannot find the device full later. Changes none of
  // them. Errors: ENOSPC and the errors of fallocate, with advice.
  virtual Result<void> allocate(uint64_t) { return {}; }
  // The pool was formatted: files made for it stay when the device is closed.
  virtual void keep() {}
  // Data that the kernel has in its cache of files alone goes to the disk. Blocks for as long as that takes; any
  // thread.
  virtual Result<void> write_out() const { return {}; }
  // The same at once for these bytes of control().
  Result<void> write_out_control(const void* begin, size_t bytes) const;
  // The pool belongs to several hosts: a lock that keeps every other marud out becomes a lock against this machine's maruds.
  virtual void share() {}

  // Maps the first `bytes` bytes for marud, in place of what was mapped before: adopting maps the header first and the whole
  // control region once its size is known. Spans from control() end here.
  Result<void> map_control(uint64_t bytes);
  // Puts the control region on huge pages, as far as the kernel lets an unprivileged process ask for that (MADV_COLLAPSE,
  // Linux 6.1, which does without the settings for shared memory). A lookup in a large pool is one cache miss with them and
  // two or three without. For a pool that is being formatted: pages that are in use would have to be copied. Blocks for a
  // fifth of a second per GiB. Returns how many bytes are on huge pages now.
  uint64_t collapse_control();
  std::span<std::byte> control() const { return {control_.data(), control_bytes_}; }

  // The memory behind the control mapping went away. The pool must be fenced.
  bool is_lost() const { return guard_.has_fired(); }
  // The parts of the control mapping that memory errors took away: reads there give zeros. The pool must be fenced.
  std::vector<BadMemory> bad_control_memory() const { return guard_.bad_memory(); }

 protected:
  Device() = default;

  std::string name_;
  FileDescriptor fd_;
  DeviceIdentity identity_;
  uint64_t map_alignment_ = 4096;
  FileDescriptor control_fd_, read_only_fd_;
  uint64_t control_alignment_ = 0;  // 0: as map_alignment_
  uint64_t pages_offset_ = 0, pages_room_ = 0, control_room_ = 0;
  std::string map_sync_, unreserved_because_;
  bool advise_huge_ = false;  // ask for huge pages behind ordinary mappings

 private:
  Mapping control_;
  uint64_t control_bytes_ = 0;  // as asked for; the mapping is rounded up
  FaultGuard guard_;            // declared after the mapping: stops guarding before it is unmapped
};

}  // namespace maru::daemon
