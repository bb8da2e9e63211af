// The part of the state directory that is about pools added at run time.
#include "daemon/state_file.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr std::string_view kBefore = "pool-", kBehind = ".added";

}  // namespace

std::vector<std::string> StateDirectory::added() const {
  std::vector<std::string> pools;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path_.c_str()), ::closedir);
  if (!directory) return pools;  // nothing was ever written there
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kBefore) || !name.ends_with(kBehind) || name.size() <= kBefore.size() + kBehind.size())
      continue;
    std::string pool(name.substr(kBefore.size(), name.size() - kBefore.size() - kBehind.size()));
    if (wire::is_pool_name(pool)) pools.push_back(std::move(pool));
  }
  std::sort(pools.begin(), pools.end());
  return pools;
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

Result<void> StateDirectory::forget_added(const std::string& pool) const {
  const std::string path = added_file_of(pool);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return failure(errno, "remove " + path);
  return {};
}

}  // namespace maru::daemon
