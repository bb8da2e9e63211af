#include "daemon/memory/memory_device.h"

#include "daemon/base/size_text.h"
#include "daemon/memory/numa_nodes.h"
#include "libmaru/base/mapping.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
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

// Mapping a hugetlb file reserves its pages, and the reservation stays with the file. So the machine says here whether it has
// them, instead of a SIGBUS in some client later.
bool reserve_huge_pages(int fd, uint64_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return false;
  ::munmap(address, bytes);
  return true;
}

#ifndef MPOL_PREFERRED_MANY
#define MPOL_PREFERRED_MANY 5  // Linux 5.15
#endif

using NodeMask = std::vector<unsigned long>;
constexpr int kWordBits = 8 * sizeof(unsigned long);

int mode_of(const NumaPlacement& placement) {
  switch (placement.policy) {
    case NumaPlacement::Policy::kBind: return MPOL_BIND;
    case NumaPlacement::Policy::kInterleave: return MPOL_INTERLEAVE;
    case NumaPlacement::Policy::kPreferred: break;
  }
  return placement.nodes.size() == 1 ? MPOL_PREFERRED : MPOL_PREFERRED_MANY;
}

std::string place_text(const NumaPlacement& placement) { return "place the pool on " + placement.text(); }

Result<NodeMask> mask_of(const NumaPlacement& placement) {
  NodeMask mask;
  if (placement.nodes.empty()) return mask;
  const std::string doing = place_text(placement);
  if (::numa_available() < 0)
    return failure(ENOSYS, doing + ": found a kernel without NUMA policies, expected one; leave numa_nodes out");
  const std::set<int> there = nodes_with_memory();
  for (int node : placement.nodes) {
    if (!there.contains(node)) return failure(ENODEV, doing + ": " + no_memory_text(node, there));
    if (mask.size() <= size_t(node / kWordBits)) mask.resize(size_t(node / kWordBits) + 1);
    mask[size_t(node / kWordBits)] |= 1ul << (node % kWordBits);
  }
  return mask;
}

Result<Mapping> map_placed(int fd, uint64_t bytes, int protection, const NumaPlacement& placement,
                           const NodeMask& mask) {
  void* address = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED) return failure(errno, "map the pool to " + place_text(placement));
  Mapping mapping(static_cast<std::byte*>(address), bytes);
  leave_out_of_dumps(address, bytes);
  if (::mbind(address, bytes, mode_of(placement), mask.data(), mask.size() * kWordBits + 1, 0) != 0) {
    if (errno == EINVAL && mode_of(placement) == MPOL_PREFERRED_MANY)
      return failure(ENOTSUP, place_text(placement) +
                                  ": found a kernel that can prefer one node alone, expected Linux 5.15 or newer; name "
                                  "one node, or say numa_policy = \"bind\" or \"interleave\"");
    return failure(errno, place_text(placement));
  }
  return mapping;
}

// The policy of ordinary shared memory belongs to the file, so that it holds in every process that maps it.
Result<void> place(int fd, uint64_t bytes, const NumaPlacement& placement, const NodeMask& mask) {
  auto placed = map_placed(fd, bytes, PROT_NONE, placement, mask);
  if (!placed) return tl::unexpected(placed.error());
  return {};
}

// With turns of the nodes, the kernel takes a page of another node in place of a page that a node does not have.
bool are_in_turns(const Mapping& mapping, const NumaPlacement& placement) {
  const uint64_t count = mapping.size() / kHugePageBytes;
  std::vector<void*> pages(count);
  std::vector<int> nodes(count, -1);
  for (uint64_t i = 0; i < count; ++i) pages[i] = mapping.data() + i * kHugePageBytes;
  if (::move_pages(0, count, pages.data(), nullptr, nodes.data(), 0) != 0) return true;  // a kernel that does not say
  if (std::ranges::any_of(nodes, [](int node) { return node < 0; })) return true;
  return std::ranges::all_of(placement.nodes, [&](int node) {
    return uint64_t(std::ranges::count(nodes, node)) >= count / placement.nodes.size();
  });
}

// Takes every huge page of the file, by the policy of this mapping. ENOMEM: the nodes have too few.
Result<void> take_placed(int fd, uint64_t bytes, const NumaPlacement& placement, const NodeMask& mask,
                         const Progress& progress) {
  constexpr uint64_t kWindowBytes = 1ull << 30, kPartBytes = 64ull << 20;
  auto mapping = map_placed(fd, bytes, PROT_READ | PROT_WRITE, placement, mask);
  if (!mapping) return tl::unexpected(mapping.error());
  std::atomic<int> code{0};
  for (uint64_t begin = 0; begin < bytes; begin += kWindowBytes) {
    if (progress && !progress(begin, bytes)) return failure(ECANCELED, place_text(placement));
    const uint64_t end = std::min(bytes, begin + kWindowBytes);
    in_parallel((end - begin + kPartBytes - 1) / kPartBytes, 1, [&](uint64_t part) {
      const uint64_t at = begin + part * kPartBytes;
      if (code.load() == 0 && ::madvise(mapping->data() + at, std::min(kPartBytes, end - at), MADV_POPULATE_WRITE) != 0)
        code.store(errno);
    });
    const int found = code.load();
    if (found == EINVAL)  // the range is a whole mapping, so it is the advice that this kernel does not know
      return failure(ENOTSUP,
                     "take huge pages on " + placement.text() +
                         ": found a kernel that cannot take them ahead (MADV_POPULATE_WRITE), expected Linux 5.14 "
                         "or newer; say huge_pages = \"never\", or leave the nodes out");
    // EFAULT stands for the SIGBUS of a process that would touch a missing page.
    if (found != 0)
      return failure(found == EFAULT ? ENOMEM : found,
                     "take " + size_text(bytes) + " in huge pages on " + placement.text());
  }
  if (progress) progress(bytes, bytes);
  if (placement.policy == NumaPlacement::Policy::kInterleave && !are_in_turns(*mapping, placement))
    return failure(ENOMEM, "take " + size_text(bytes) + " in huge pages in turns on " + placement.text());
  return {};
}

std::optional<uint64_t> number_in(const std::string& file) {
  std::ifstream stream(file);
  uint64_t value = 0;
  return stream >> value ? std::optional(value) : std::nullopt;
}

const char* const kHugePagesFolder = "/hugepages/hugepages-2048kB/";

// "8 free on NUMA node 1", or of all nodes: "12 free, 4 of them promised to others".
std::string free_huge_pages(const NumaPlacement& placement) {
  const auto text = [](std::optional<uint64_t> number) {
    return number ? std::to_string(*number) : "an unknown number";
  };
  if (placement.nodes.empty()) {
    const std::string folder = std::string("/sys/kernel/mm") + kHugePagesFolder;
    const auto promised = number_in(folder + "resv_hugepages");
    return text(number_in(folder + "free_hugepages")) + " free" +
           (promised.value_or(0) != 0 ? ", " + text(promised) + " of them promised to others" : "");
  }
  std::string all;
  for (int node : placement.nodes)
    all +=
        (all.empty() ? "" : ", ") +
        text(number_in("/sys/devices/system/node/node" + std::to_string(node) + kHugePagesFolder + "free_hugepages")) +
        " free on NUMA node " + std::to_string(node);
  return all;
}

bool has_huge_pages() {
  const std::string folder = std::string("/sys/kernel/mm") + kHugePagesFolder;
  return number_in(folder + "nr_hugepages").value_or(0) != 0 ||
         number_in(folder + "nr_overcommit_hugepages").value_or(0) != 0;
}

Result<DeviceIdentity> identify(int fd, const std::string& name) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return failure(errno, "read the seals of " + name);
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return failure(errno, "inspect " + name);
  return DeviceIdentity{status.st_dev, status.st_ino, uint32_t(seals), uint64_t(status.st_size)};
}

// The descriptor that marud gives decides whether a process maps it writable: only its owner may open it anew for writing.
Result<FileDescriptor> make_memory(const std::string& label, uint64_t bytes, bool huge) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | kMemfdHuge2Mib : 0);
  FileDescriptor fd(::memfd_create(label.c_str(), flags));
  if (!fd.is_open() || ::fchmod(fd.get(), 0600) != 0 || ::ftruncate(fd.get(), off_t(bytes)) != 0)
    return failure(errno, "take " + std::to_string(bytes) + " bytes of memory");
  return fd;
}

// Inode numbers come round again: another user's memory may have got the number of ours.
Result<void> check_owner(const FileDescriptor& fd) {
  struct stat status = {};
  if (::fstat(fd.get(), &status) == 0 && status.st_uid == ::geteuid()) return {};
  return failure(EPERM, "accept memory that another user made: found user " + std::to_string(status.st_uid) +
                            ", expected marud's own, " + std::to_string(::geteuid()));
}

Result<FileDescriptor> open_again(int fd, int mode, const std::string& why) {
  FileDescriptor again(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), mode | O_CLOEXEC));
  if (!again.is_open()) return failure(errno, "open the memory of the pool again " + why);
  return again;
}

}  // namespace

std::string NumaPlacement::text() const {
  std::string text;
  for (int node : nodes) text += (text.empty() ? "" : ", ") + std::to_string(node);
  return (nodes.size() == 1 ? "NUMA node " : "NUMA nodes ") + text;
}

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

// All or nothing: with an error there is no memory any more.
Result<void> MemoryDevice::take_huge(const std::string& label, uint64_t bytes, const NumaPlacement& placement,
                                     const NodeMask& nodes, const Division& division, const Progress& progress) {
  auto taken = take(label, bytes, true, division);
  const auto hold = [&](int fd, uint64_t room, const Progress& told) -> Result<void> {
    if (!placement.nodes.empty()) return take_placed(fd, room, placement, nodes, told);
    if (reserve_huge_pages(fd, room)) return {};
    return failure(errno, "take " + size_text(room) + " in huge pages");
  };
  if (taken) taken = hold(control_fd(), control_room_, {});
  if (taken) taken = hold(fd(), pages_room_, progress);
  is_taken_ = taken && !placement.nodes.empty();
  if (taken) return {};
  control_fd_.reset();
  fd_.reset();
  return taken;
}

// Reads the identity of the memory once its descriptors are there.
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

Result<std::unique_ptr<MemoryDevice>> MemoryDevice::create(const std::string& pool, uint64_t bytes,
                                                           HugePages huge_pages, const NumaPlacement& placement,
                                                           const Division& division, const Progress& progress) {
  auto device = std::unique_ptr<MemoryDevice>(new MemoryDevice);
  const std::string label = "marud:" + pool;
  const auto nodes = mask_of(placement);
  if (!nodes) return tl::unexpected(nodes.error());
  if (huge_pages != HugePages::kNever) {
    auto taken = device->take_huge(label, bytes, placement, *nodes, division, progress);
    if (!taken && taken.error().code == ECANCELED) return tl::unexpected(taken.error());
    // More huge pages would not help.
    const bool is_old_kernel = !taken && taken.error().code == ENOTSUP;
    if (is_old_kernel && huge_pages == HugePages::kRequire)
      return failure(ENOTSUP, "pool \"" + pool + "\": " + taken.error().doing);
    const auto why = [&] {  // now that those which were taken are free again
      const std::string wanted = std::to_string(round_up(bytes, kHugePageBytes) / kHugePageBytes);
      return "take " + wanted + " huge pages of 2 MiB for pool \"" + pool + "\": found " + free_huge_pages(placement) +
             ", expected " + wanted +
             (placement.nodes.size() > 1 && placement.policy == NumaPlacement::Policy::kInterleave ? " in equal parts"
                                                                                                   : "");
    };
    if (!taken && huge_pages == HugePages::kRequire)
      return failure(taken.error().code, why() + " (" + taken.error().doing + "); have the machine set more aside (" +
                                             (placement.nodes.empty() ? "/proc/sys/vm/nr_hugepages"
                                                                      : "/sys/devices/system/node/node" +
                                                                            std::to_string(placement.nodes.front()) +
                                                                            kHugePagesFolder + "nr_hugepages") +
                                             "), or say huge_pages = \"try\"");
    if (is_old_kernel)
      device->without_huge_pages_ = taken.error().doing;
    else if (!taken && has_huge_pages())
      device->without_huge_pages_ = why() + ": " + std::strerror(taken.error().code);
  }
  if (!device->fd_.is_open())
    if (auto taken = device->take(label, bytes, false, division); !taken)
      return failure(taken.error().code, "create memory for pool \"" + pool + "\": " + taken.error().doing);
  device->advise_huge_ = device->map_alignment_ != kHugePageBytes && huge_pages == HugePages::kTry;
  for (const auto& [fd, room] :
       {std::pair(device->control_fd(), device->control_room_), std::pair(device->fd(), device->pages_room_)}) {
    if (!placement.nodes.empty() && !device->is_taken_)
      if (auto placed = place(fd, room, placement, *nodes); !placed) return tl::unexpected(placed.error());
    if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return failure(errno, "seal the memory of pool \"" + pool + "\"");
  }
  if (auto identified = device->identify_both(); !identified) return tl::unexpected(identified.error());
  return device;
}

Result<std::unique_ptr<Device>> MemoryDevice::adopt(HeldMemory held, const DeviceIdentity& expected,
                                                    const std::optional<DeviceIdentity>& expected_pages) {
  if (held.pages.is_open() != expected_pages.has_value())
    return failure(ESTALE,
                   std::string("accept memory that is not the pool's: found ") +
                       (held.pages.is_open() ? "two descriptors, expected one" : "one descriptor, expected two"));
  // A client may hand back any file: nothing is done with it before it is known to be the pool's.
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
  if (held.is_of_client) {
    auto own = open_again(held.main.get(), O_RDWR, "for marud alone");
    if (!own) return tl::unexpected(own.error());
    held.main = std::move(*own);
  }
  auto device = std::unique_ptr<MemoryDevice>(new MemoryDevice);
  const bool huge = file_system.f_type == kHugetlbfsMagic;
  device->map_alignment_ = huge ? uint64_t(file_system.f_bsize) : uint64_t(::sysconf(_SC_PAGESIZE));
  device->advise_huge_ = !huge;
  device->name_ = huge ? "memory (huge pages)" : "memory";
  if (!expected_pages) {
    device->fd_ = std::move(held.main);
  } else {
    // A read-only client hands back its own descriptor; the owner of the memory may open it anew. Only then: the service
    // manager would keep another description of the same file as one more.
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
