// A pool in ordinary memory: two memfds that no process can shrink or grow. The control region is in one and the pages in the
// other, so that read-only clients get a descriptor with which they cannot write pages. They live as long as any process holds
// a descriptor of them or maps them. So they outlive marud when clients are attached or a service manager stores the
// descriptors. A pool of an older marud is in one memfd, and is adopted as it is.
//
// Ordinary memory has its NUMA policy in the file, and each process that touches a page follows it. Huge pages have
// none there: the kernel follows the policy of the mapping through which a page is touched first, and clients know
// nothing of it. So huge pages on named nodes are all taken when the memory is made, through a mapping that has the
// policy.
#pragma once

#include "daemon/memory/device.h"
#include "daemon/memory/device_content.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

enum class HugePages : uint8_t { kNever, kTry, kRequire };

// On which NUMA nodes memory shall lie. Without nodes: wherever it is first touched.
struct NumaPlacement {
  enum class Policy : uint8_t {
    kBind,        // on these nodes and no others
    kInterleave,  // page by page in turns
    kPreferred,   // on these while they have room
  };
  std::vector<int> nodes;
  Policy policy = Policy::kBind;
  bool first_touch = false;  // all of it is touched before the pool serves, by several threads

  std::string text() const;  // "NUMA nodes 0, 1"
};

// The memory of a pool that another process held while there was no marud.
struct HeldMemory {
  FileDescriptor main;   // the control region; of a pool in one memfd everything
  FileDescriptor pages;  // not of a pool in one memfd
  // The open file description of a client's control region has the lock of its lane (daemon/pool/lanes/lane_locks.h). This lock
  // must end with the client, so marud opens the memory anew for itself.
  bool is_of_client = false;
};

class MemoryDevice final : public Device {
 public:
  // The share of the control region in so many bytes, in whole units: pages of the OS, or huge pages.
  using Division = std::function<Result<uint64_t>(uint64_t bytes, uint64_t unit)>;
  // `bytes` is rounded up to a multiple of the OS page, or of the huge page when huge pages are granted. Huge pages on named
  // nodes are taken at once, by several threads, which blocks for about a tenth of a second per GiB. `progress` hears of it and
  // may end it. Errors: ENODEV a NUMA node that the machine does not have, ENOMEM fewer huge pages than required, with their
  // number and place, ECANCELED.
  static Result<std::unique_ptr<MemoryDevice>> create(const std::string& pool, uint64_t bytes, HugePages huge_pages,
                                                      const NumaPlacement& placement, const Division& division,
                                                      const Progress& progress = {});

  // Memfds that another process held for us; the pages perhaps to read only. Refuses everything but sealed memory of
  // exactly this identity. Never blocks on a hostile descriptor: the seals are asked for first, and only memory of the
  // kernel's own has any. `expected`: with the bytes of both; `expected_pages`: none of a pool in one memfd.
  static Result<std::unique_ptr<Device>> adopt(HeldMemory held, const DeviceIdentity& expected,
                                               const std::optional<DeviceIdentity>& expected_pages);

  std::string_view kind() const override { return "memory"; }
  const std::optional<DeviceIdentity>& pages_identity() const override { return pages_identity_; }

  bool is_taken() const { return is_taken_; }  // by create(): no page is left to be touched first
  // For a pool with huge pages if possible: why it has none, on a machine that has any at all. Else empty.
  const std::string& without_huge_pages() const { return without_huge_pages_; }

 private:
  MemoryDevice() = default;
  Result<void> take(const std::string& label, uint64_t bytes, bool huge, const Division& division);
  Result<void> take_huge(const std::string& label, uint64_t bytes, const NumaPlacement& placement,
                         const std::vector<unsigned long>& nodes, const Division& division, const Progress& progress);
  Result<void> identify_both();

  std::optional<DeviceIdentity> pages_identity_;
  bool is_taken_ = false;
  std::string without_huge_pages_;
};

}  // namespace maru::daemon
