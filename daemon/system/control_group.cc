#include "daemon/system/control_group.h"

#include "daemon/base/size_text.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <sys/vfs.h>

namespace maru::daemon {
namespace {

constexpr long kTmpfsMagic = 0x01021994;

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The value of a line "name 123"; 0 when there is none.
uint64_t line_of(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + " ");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + name.size() + 1, nullptr, 10);
}

}  // namespace

std::optional<MemoryLimit> memory_limit(const std::string& root, const std::string& process) {
  const std::string groups = "\n" + read(root + "/proc/" + process + "/cgroup");
  const size_t at = groups.find("\n0::/");
  if (at == std::string::npos) return std::nullopt;
  std::string path = groups.substr(at + 4);
  path.resize(std::min(path.find('\n'), path.size()));
  std::optional<MemoryLimit> least;
  if (path == "/") path.clear();
  // Up to the root, which has a limit inside of a container.
  for (;; path.resize(path.rfind('/'))) {
    const bool is_root = path.empty();
    const std::string folder = root + "/sys/fs/cgroup" + path;
    const std::string most = read(folder + "/memory.max");
    if (!most.empty() && most.front() >= '0' && most.front() <= '9') {
      const std::string statistics = read(folder + "/memory.stat");
      MemoryLimit limit;
      limit.group = is_root ? "/" : path;
      limit.bytes = std::strtoull(most.c_str(), nullptr, 10);
      limit.taken = line_of(statistics, "anon") + line_of(statistics, "shmem");
      limit.kills = line_of(read(folder + "/memory.events"), "oom_kill");
      if (!least || limit.room() < least->room()) least = std::move(limit);
    }
    if (is_root) break;
  }
  return least;
}

uint64_t memory_of_machine(const std::string& root) {
  return 1024 * line_of(read(root + "/proc/meminfo"), "MemTotal:");
}

bool is_charged(int fd) {
  struct statfs file_system = {};
  return ::fstatfs(fd, &file_system) == 0 && file_system.f_type == kTmpfsMagic;
}

Result<void> check_memory_limit(int fd, uint64_t bytes, const std::string& what) {
  if (!is_charged(fd)) return {};
  if (const uint64_t most = memory_of_machine(); most != 0 && bytes > most)
    return failure(ENOMEM, "take " + what + ": found a machine with " + size_text(most) + " of memory, expected " +
                               size_text(bytes) + "; make the pool smaller");
  const auto limit = memory_limit();
  if (!limit || bytes <= limit->room()) return {};
  return failure(ENOMEM, "take " + what + ": found room for " + size_text(limit->room()) + " in the control group " +
                             limit->group + ", which may have " + size_text(limit->bytes) + " (memory.max), expected " +
                             size_text(bytes) + "; raise its limit (MemoryMax= of a service) or make the pool smaller");
}

}  // namespace maru::daemon
