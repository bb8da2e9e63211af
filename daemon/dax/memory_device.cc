#include "daemon/dax/memory_device.h"

#include <cerrno>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <vector>

namespace maru::daemon {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr long kHugetlbfsMagic = 0x958458f6;
constexpr uint64_t kHugePageBytes = 2ull << 20;
// MFD_HUGE_2MB, which glibc does not name: the logarithm of the size in the bits from MFD_HUGE_SHIFT on.
constexpr unsigned kMemfdHuge2Mib = 21u << 26;

uint64_t round_up(uint64_t bytes, uint64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// Mapping a hugetlb file reserves its pages, and the reservation stays with the file: this is where the machine says
// whether it has them, instead of a SIGBUS in some client later.
bool reserve_huge_pages(int fd, uint64_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return false;
  ::munmap(address, bytes);
  return true;
}

#ifndef MPOL_PREFERRED_MANY
#define MPOL_PREFERRED_MANY 5  // Linux 5.15
#endif

std::string nodes_text(const std::vector<int>& nodes) {
  std::string text;
  for (int node : nodes) text += (text.empty() ? "" : ", ") + std::to_string(node);
  return (nodes.size() == 1 ? "NUMA node " : "NUMA nodes ") + text;
}

int mode_of(const NumaPlacement& placement) {
  switch (placement.policy) {
    case NumaPlacement::Policy::kBind: return MPOL_BIND;
    case NumaPlacement::Policy::kInterleave: return MPOL_INTERLEAVE;
    case NumaPlacement::Policy::kPreferred: break;
  }
  return placement.nodes.size() == 1 ? MPOL_PREFERRED : MPOL_PREFERRED_MANY;
}

// The policy of shared memory belongs to the file, so that it holds in every process that maps it.
Result<void> place(int fd, uint64_t bytes, const NumaPlacement& placement) {
  const std::string doing = "place the pool on " + nodes_text(placement.nodes);
  if (::numa_available() < 0)
    return failure(ENOSYS, doing + ": found a kernel without NUMA policies, expected one; leave numa_nodes out");
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (int node : placement.nodes) {
    if (node > ::numa_max_node() || !numa_bitmask_isbitset(numa_all_nodes_ptr, unsigned(node)))
      return failure(ENODEV, doing + ": found no memory on node " + std::to_string(node) + ", expected one of the " +
                                 std::to_string(::numa_num_configured_nodes()) + " nodes of this machine");
    if (mask.size() <= size_t(node / kWordBits)) mask.resize(size_t(node / kWordBits) + 1);
    mask[size_t(node / kWordBits)] |= 1ul << (node % kWordBits);
  }
  void* address = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED) return failure(errno, "map the pool to " + doing);
  const long bound = ::mbind(address, bytes, mode_of(placement), mask.data(), mask.size() * kWordBits + 1, 0);
  const int code = errno;
  ::munmap(address, bytes);
  if (bound != 0) return failure(code, doing);
  return {};
}

Result<DeviceIdentity> identify(int fd, const std::string& name) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return failure(errno, "read the seals of " + name);
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return failure(errno, "inspect " + name);
  return DeviceIdentity{status.st_dev, status.st_ino, uint32_t(seals), uint64_t(status.st_size)};
}

}  // namespace

Result<std::unique_ptr<Device>> MemoryDevice::create(const std::string& pool, uint64_t bytes, HugePages huge_pages,
                                                     const NumaPlacement& placement) {
  auto device = std::unique_ptr<MemoryDevice>(new MemoryDevice);
  const std::string label = "marud:" + pool;
  if (huge_pages != HugePages::kNever) {
    const uint64_t rounded = round_up(bytes, kHugePageBytes);
    FileDescriptor fd(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | kMemfdHuge2Mib));
    int code = errno;
    if (fd.is_open() && ::ftruncate(fd.get(), off_t(rounded)) == 0 && reserve_huge_pages(fd.get(), rounded)) {
      device->fd_ = std::move(fd);
      device->name_ = "memory (huge pages)";
      device->map_alignment_ = kHugePageBytes;
      bytes = rounded;
    } else if (huge_pages == HugePages::kRequire) {
      if (fd.is_open()) code = errno;
      return failure(code, "take " + std::to_string(rounded / kHugePageBytes) + " huge pages of 2 MiB for pool \"" +
                               pool + "\" (see /proc/sys/vm/nr_hugepages)");
    }
  }
  if (!device->fd_.is_open()) {
    bytes = round_up(bytes, uint64_t(::sysconf(_SC_PAGESIZE)));
    device->fd_.reset(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!device->fd_.is_open()) return failure(errno, "create memory for pool \"" + pool + "\"");
    if (::ftruncate(device->fd_.get(), off_t(bytes)) != 0)
      return failure(errno, "size the memory of pool \"" + pool + "\" to " + std::to_string(bytes) + " bytes");
    device->name_ = "memory";
    device->map_alignment_ = uint64_t(::sysconf(_SC_PAGESIZE));
    device->advise_huge_ = huge_pages == HugePages::kTry;
  }
  if (!placement.nodes.empty()) {
    auto placed = place(device->fd_.get(), bytes, placement);
    if (!placed) return tl::unexpected(placed.error());
  }
  if (::fcntl(device->fd_.get(), F_ADD_SEALS, kSeals) != 0)
    return failure(errno, "seal the memory of pool \"" + pool + "\"");
  auto identity = identify(device->fd_.get(), device->name_);
  if (!identity) return tl::unexpected(identity.error());
  device->identity_ = *identity;
  return std::unique_ptr<Device>(std::move(device));
}

Result<std::unique_ptr<Device>> MemoryDevice::adopt(FileDescriptor fd, const DeviceIdentity& expected) {
  auto identity = identify(fd.get(), "the memory that was handed back");
  if (!identity) return tl::unexpected(identity.error());
  if ((identity->seals & kSeals) != kSeals) return failure(EPERM, "accept memory that is not sealed");
  if (*identity != expected) return failure(ESTALE, "accept memory that is not the pool's");
  const int mode = ::fcntl(fd.get(), F_GETFL);
  if (mode < 0 || (mode & O_ACCMODE) != O_RDWR) return failure(EBADF, "accept memory that cannot be written");
  struct statfs file_system = {};
  if (::fstatfs(fd.get(), &file_system) != 0) return failure(errno, "inspect the memory that was handed back");
  auto device = std::unique_ptr<MemoryDevice>(new MemoryDevice);
  const bool huge = file_system.f_type == kHugetlbfsMagic;
  device->map_alignment_ = huge ? uint64_t(file_system.f_bsize) : uint64_t(::sysconf(_SC_PAGESIZE));
  device->advise_huge_ = !huge;
  device->name_ = huge ? "memory (huge pages)" : "memory";
  device->fd_ = std::move(fd);
  device->identity_ = *identity;
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace maru::daemon
