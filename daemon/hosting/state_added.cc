// The part of the state directory that lists pools by its files: pools that were added at run time, and pools that devices are
// known to hold.
#include "daemon/hosting/state_file.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

namespace maru::daemon {
namespace {

// The pools with a file whose name ends so.
std::vector<std::string> pools_with(const std::string& path, std::string_view behind) {
  constexpr std::string_view kBefore = "pool-";
  std::vector<std::string> pools;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (!directory) return pools;  // nothing was ever written there
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kBefore) || !name.ends_with(behind) || name.size() <= kBefore.size() + behind.size())
      continue;
    std::string pool(name.substr(kBefore.size(), name.size() - kBefore.size() - behind.size()));
    if (wire::is_pool_name(pool)) pools.push_back(std::move(pool));
  }
  std::sort(pools.begin(), pools.end());
  return pools;
}

}  // namespace

std::vector<std::string> StateDirectory::added() const { return pools_with(path_, ".added"); }

std::vector<PoolRecord> StateDirectory::others_on_dax(const std::string& pool) const {
  std::vector<PoolRecord> others;
  for (const std::string& name : pools_with(path_, ".state")) {
    if (name == pool) continue;
    auto record = load(name);
    if (record && *record && !(*record)->dax_name.empty()) others.push_back(std::move(**record));
  }
  return others;
}

bool StateDirectory::is_added(const std::string& pool) const {
  return wire::is_pool_name(pool) && ::access(added_file_of(pool).c_str(), F_OK) == 0;
}

Result<std::string> StateDirectory::load_added(const std::string& pool) const {
  const std::string path = added_file_of(pool);
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.is_open()) return failure(errno, "read " + path);
  constexpr size_t kBytesMax = 64u << 10;  // no message has room for more
  std::string text(kBytesMax + 1, 0);
  size_t size = 0;
  for (ssize_t got; size < text.size() && (got = ::read(fd.get(), text.data() + size, text.size() - size)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(errno, "read " + path);
    size += size_t(got);
  }
  if (size > kBytesMax) return failure(EBADMSG, "understand " + path + ", which has more than 64 KiB");
  text.resize(size);
  return text;
}

Result<void> StateDirectory::save_added(const std::string& pool, const std::string& toml) const {
  return replace(added_file_of(pool), toml);
}

Result<void> StateDirectory::forget_added(const std::string& pool) const { return unlink(added_file_of(pool)); }

}  // namespace maru::daemon
