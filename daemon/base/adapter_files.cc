#include "daemon/base/adapter_files.h"

#include <cerrno>
#include <charconv>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

using nlohmann::json;

// Any user may fill the folder with names.
constexpr int kNamesMax = 1 << 16;
constexpr size_t kFilesMax = 256;

// The user in PREFIX UID "." UUID SUFFIX; nothing: another name.
std::optional<uint32_t> user_in(std::string_view name, const std::string& end) {
  const std::string_view prefix = format::kAdapterRegisterPrefix;
  if (!name.starts_with(prefix) || !name.ends_with(end) || name.size() <= prefix.size() + end.size()) return {};
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - end.size());
  uint32_t uid = 0;
  const auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), uid);
  return error == std::errc() && last == digits.data() + digits.size() ? std::optional(uid) : std::nullopt;
}

}  // namespace

std::vector<UserAdapterFile> adapter_files_of(const std::string& pool_uuid, const char* suffix,
                                              const std::string& folder) {
  std::string end = ".";
  for (const char digit : pool_uuid)
    if (digit != '-') end += digit;
  end += suffix;
  std::vector<UserAdapterFile> files;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  const dirent* entry = nullptr;
  for (int names = 0; open && names < kNamesMax && files.size() < kFilesMax && (entry = ::readdir(open.get()));
       ++names) {
    const std::optional<uint32_t> uid = user_in(entry->d_name, end);
    if (!uid) continue;
    struct stat status = {};
    if (::fstatat(::dirfd(open.get()), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != *uid)
      continue;
    FileDescriptor file(::openat(::dirfd(open.get()), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    // Another file may have this name by now.
    if (file.is_open() && (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != *uid))
      continue;
    files.push_back({*uid, folder + "/" + entry->d_name, std::move(file)});
  }
  return files;
}

json adapter_users_of(const std::string& pool_uuid, const std::string& folder) {
  using namespace format;
  json users = json::array();
  for (const UserAdapterFile& found : adapter_files_of(pool_uuid, kAdapterTotalsSuffix, folder)) {
    AdapterTotals totals;
    if (!found.file.is_open() || ::pread(found.file.get(), &totals, sizeof(totals), 0) != ssize_t(sizeof(totals)))
      continue;
    if (totals.magic.load_acquire() != kAdapterTotalsMagic || totals.version != kAdapterTotalsVersion) continue;
    json user = {{"uid", found.uid}};
    const auto value = [&](AdapterTotal which) { return totals.values[which].load_relaxed(); };  // this process's copy
    for (uint32_t i = 0; i < kAdapterTotalCount; ++i) user[kAdapterTotalNames[i]] = value(AdapterTotal(i));
    const double hot = double(value(kAdapterAcquiresHot)), warm = double(value(kAdapterAcquiresWarm));
    const double all = hot + warm + double(value(kAdapterAcquiresCold));
    if (all > 0) user["hot_ratio"] = hot / all, user["warm_ratio"] = warm / all;
    users.push_back(std::move(user));
  }
  return users;
}

}  // namespace maru::daemon
