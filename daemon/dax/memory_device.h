// A pool in ordinary memory: a memfd that nobody can shrink or grow. It lives as long as somebody holds a descriptor of it
// or maps it, so it outlives marud when clients are attached or a service manager stores the descriptor.
#pragma once

#include "daemon/dax/device.h"

#include <memory>
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
};

class MemoryDevice final : public Device {
 public:
  // `bytes` is rounded up to a multiple of the OS page, or of the huge page when huge pages are granted.
  // Errors also for NUMA nodes that the machine does not have.
  static Result<std::unique_ptr<Device>> create(const std::string& pool, uint64_t bytes, HugePages huge_pages,
                                                const NumaPlacement& placement);

  // A memfd that somebody else held for us. Refuses whatever is not sealed memory of exactly this identity. Never blocks on
  // a hostile descriptor: the seals are asked for first, and only memory of the kernel's own has any.
  static Result<std::unique_ptr<Device>> adopt(FileDescriptor fd, const DeviceIdentity& expected);

  std::string_view kind() const override { return "memory"; }

 private:
  MemoryDevice() = default;
};

}  // namespace maru::daemon
