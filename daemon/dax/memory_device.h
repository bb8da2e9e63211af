// A pool in ordinary memory: a memfd that nobody can shrink or grow. It lives as long as somebody holds a descriptor of it
// or maps it, so it outlives marud when clients are attached or a service manager stores the descriptor.
#pragma once

#include "daemon/dax/device.h"

#include <memory>
#include <optional>
#include <string>

namespace maru::daemon {

enum class HugePages : uint8_t { kNever, kTry, kRequire };

class MemoryDevice final : public Device {
 public:
  // `bytes` is rounded up to a multiple of the OS page, or of the huge page when huge pages are granted.
  // `numa_node`: where the memory shall lie; none: wherever it is first touched.
  static Result<std::unique_ptr<Device>> create(const std::string& pool, uint64_t bytes, HugePages huge_pages,
                                                std::optional<int> numa_node);

  // A memfd that somebody else held for us. Refuses whatever is not sealed memory of exactly this identity. Never blocks on
  // a hostile descriptor: the seals are asked for first, and only memory of the kernel's own has any.
  static Result<std::unique_ptr<Device>> adopt(FileDescriptor fd, const DeviceIdentity& expected);

  std::string_view kind() const override { return "memory"; }

 private:
  MemoryDevice() = default;
};

}  // namespace maru::daemon
