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

// Who maps it writable is decided by the descriptor that marud gave: nobody but its owner may open it anew for writing.
Result<FileDescriptor> make_memory(const std::string& label, uint64_t bytes, bool huge) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | kMemfdHuge2Mib : 0);
  FileDescriptor fd(::memfd_create(label.c_str(), flags));
  if (!fd.is_open() || ::fchmod(fd.get(), 0600) != 0 || ::ftruncate(fd.get(), off_t(bytes)) != 0 ||
      (huge && !reserve_huge_pages(fd.get(), bytes)))
    return failure(errno, "take " + std::to_string(bytes) + " bytes of memory");
  return fd;
}

// Inode numbers come round again: somebody else's memory may have got the number of ours.
Result<void> check_owner(const FileDescriptor& fd) {
  struct stat status = {};
  if (::fstat(fd.get(), &status) == 0 && status.st_uid == ::geteuid()) return {};
  return failure(EPERM, "accept memory that another user made: found user " + std::to_string(status.st_uid) +
                            ", expected marud's own, " + std::to_string(::geteuid()));
}

Result<FileDescriptor> open_again(int fd, int mode, const std::string& why) {
  FileDescriptor again(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), mode | O_CLOEXEC));
  if (!again.is_open()) return failure(errno, "open the memory of the pages again " + why);
  return again;
}

}  // namespace

Result<void> MemoryDevice::take(const std::string& label, uint64_t bytes, bool huge, const Division& division) {
  const uint64_t multiple = huge ? kHugePageBytes : uint64_t(::sysconf(_SC_PAGESIZE));
  bytes = round_up(bytes, multiple);
  auto control_room = division(bytes, multiple);
  if (!control_room) return tl::unexpected(control_room.error());
  auto control = make_memory(label, *control_room, huge);
  if (!control) return tl::unexpected(control.error());
  auto pages = make_memory(label + ":pages", bytes - *control_room, huge);
  if (!pages) return tl::unexpected(pages.error());
  control_fd_ = std::move(*control);
  fd_ = std::move(*pages);
  control_room_ = *control_room;
  pages_room_ = bytes - *control_room;
  map_alignment_ = multiple;
  name_ = huge ? "memory (huge pages)" : "memory";
  return {};
}

// What is known of the memory once its descriptors are there.
Result<void> MemoryDevice::identify_both() {
  auto control = identify(control_fd(), name_);
  if (!control) return tl::unexpected(control.error());
  identity_ = *control;
  if (!is_split()) return {};
  auto pages = identify(fd(), name_);
  if (!pages) return tl::unexpected(pages.error());
  pages_identity_ = *pages;
  identity_.bytes += pages->bytes;
  auto read_only = open_again(fd(), O_RDONLY, "to read only");
  if (!read_only) return tl::unexpected(read_only.error());
  read_only_fd_ = std::move(*read_only);
  return {};
}

Result<std::unique_ptr<Device>> MemoryDevice::create(const std::string& pool, uint64_t bytes, HugePages huge_pages,
                                                     const NumaPlacement& placement, const Division& division) {
  auto device = std::unique_ptr<MemoryDevice>(new MemoryDevice);
  const std::string label = "marud:" + pool;
  if (huge_pages != HugePages::kNever) {
    auto taken = device->take(label, bytes, true, division);
    if (!taken && huge_pages == HugePages::kRequire)
      return failure(taken.error().code, "take " + std::to_string(round_up(bytes, kHugePageBytes) / kHugePageBytes) +
                                             " huge pages of 2 MiB for pool \"" + pool +
                                             "\" (see /proc/sys/vm/nr_hugepages): " + taken.error().doing);
  }
  if (!device->fd_.is_open())
    if (auto taken = device->take(label, bytes, false, division); !taken)
      return failure(taken.error().code, "create memory for pool \"" + pool + "\": " + taken.error().doing);
  device->advise_huge_ = device->map_alignment_ != kHugePageBytes && huge_pages == HugePages::kTry;
  for (const auto& [fd, room] :
       {std::pair(device->control_fd(), device->control_room_), std::pair(device->fd(), device->pages_room_)}) {
    if (!placement.nodes.empty())
      if (auto placed = place(fd, room, placement); !placed) return tl::unexpected(placed.error());
    if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return failure(errno, "seal the memory of pool \"" + pool + "\"");
  }
  if (auto identified = device->identify_both(); !identified) return tl::unexpected(identified.error());
  return std::unique_ptr<Device>(std::move(device));
}
Result<std::unique_ptr<Device>> MemoryDevice::adopt(HeldMemory held, const DeviceIdentity& expected,
                                                    const std::optional<DeviceIdentity>& expected_pages) {
  if (held.pages.is_open() != expected_pages.has_value())
    return failure(ESTALE,
                   std::string("accept memory that is not the pool's: found ") +
                       (held.pages.is_open() ? "two descriptors, expected one" : "one descriptor, expected two"));
  // What a client handed back may be anything: nothing is done with it before it is known to be the pool's.
  const auto check = [](int fd, const DeviceIdentity& wanted) -> Result<void> {
    auto identity = identify(fd, "the memory that was handed back");
    if (!identity) return tl::unexpected(identity.error());
    if ((identity->seals & kSeals) != kSeals) return failure(EPERM, "accept memory that is not sealed");
    if (*identity != wanted) return failure(ESTALE, "accept memory that is not the pool's");
    return {};
  };
  DeviceIdentity wanted = expected;
  if (expected_pages) wanted.bytes -= expected_pages->bytes;
  if (auto is_ours = check(held.main.get(), wanted); !is_ours) return tl::unexpected(is_ours.error());
  if (expected_pages)
    if (auto is_ours = check(held.pages.get(), *expected_pages); !is_ours) return tl::unexpected(is_ours.error());
  if (expected_pages)
    for (const FileDescriptor* piece : {&held.main, &held.pages})
      if (auto made = check_owner(*piece); !made) return tl::unexpected(made.error());
  const int mode = ::fcntl(held.main.get(), F_GETFL);
  if (mode < 0 || (mode & O_ACCMODE) != O_RDWR) return failure(EBADF, "accept memory that cannot be written");
  struct statfs file_system = {};
  if (::fstatfs(held.main.get(), &file_system) != 0) return failure(errno, "inspect the memory that was handed back");
  auto device = std::unique_ptr<MemoryDevice>(new MemoryDevice);
  const bool huge = file_system.f_type == kHugetlbfsMagic;
  device->map_alignment_ = huge ? uint64_t(file_system.f_bsize) : uint64_t(::sysconf(_SC_PAGESIZE));
  device->advise_huge_ = !huge;
  device->name_ = huge ? "memory (huge pages)" : "memory";
  if (!expected_pages) {
    device->fd_ = std::move(held.main);
  } else {
    // A client that only reads hands back what it has; the owner of the memory may open it anew. Only then: the service
    // manager would take another description of the same file for one more to keep.
    const int pages_mode = ::fcntl(held.pages.get(), F_GETFL);
    if (pages_mode < 0 || (pages_mode & O_ACCMODE) != O_RDWR) {
      auto writable = open_again(held.pages.get(), O_RDWR, "to write");
      if (!writable) return tl::unexpected(writable.error());
      held.pages = std::move(*writable);
    }
    device->control_fd_ = std::move(held.main);
    device->fd_ = std::move(held.pages);
    device->control_room_ = wanted.bytes;
    device->pages_room_ = expected_pages->bytes;
  }
  if (auto identified = device->identify_both(); !identified) return tl::unexpected(identified.error());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace maru::daemon
