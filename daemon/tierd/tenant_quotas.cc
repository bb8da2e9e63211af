#include "daemon/tierd/tenant_quotas.h"

#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "libmaru/base/file_descriptor.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::tierd {

namespace {

using nlohmann::json;

constexpr size_t kDeletedAtOnce = 256;  // entries
constexpr uint64_t kFreedShare = 16;    // of a limit that was reached, one part is freed
constexpr const char* kKind = "quotas of tenants in tiers, of maru-tierd";

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(size_t(written));
  }
  return true;
}

// As a whole or not at all, also when the power fails.
Result<void> write_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const std::string doing = "write the quotas to " + path;
  FileDescriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));
  if (!file.is_open() || !write_all(file.get(), text) || ::fsync(file.get()) != 0 ||
      ::rename(fresh.c_str(), path.c_str()) != 0)
    return failure(errno, doing);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const FileDescriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.is_open() || ::fsync(parent.get()) != 0) return failure(errno, doing);
  return {};
}

std::string bytes_of_name(const std::string& text) {
  const auto bytes = maru::daemon::key_bytes(text);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<std::unique_ptr<TenantQuotas>> TenantQuotas::open(const std::string& path, uint64_t default_bytes) {
  std::unique_ptr<TenantQuotas> quotas(new TenantQuotas(path, default_bytes));
  if (path.empty()) return quotas;
  std::ifstream file(path);
  if (!file.is_open()) {
    if (errno == ENOENT) return quotas;
    return failure(errno, "read the quotas in " + path);
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const json found = maru::daemon::json_of(text);
  const bool is_it = found.is_object() && found.value("kind", json()) == kKind && found.contains("tenants") &&
                     found["tenants"].is_object() &&
                     std::all_of(found["tenants"].begin(), found["tenants"].end(),
                                 [](const json& bytes) { return bytes.is_number_unsigned(); });
  if (!is_it)
    return failure(EINVAL,
                   "read the quotas in " + path +
                       ": found something else, expected a file that maru-tierd has written; name another one in "
                       "[quotas] file, or move this one away");
  for (const auto& [name, bytes] : found["tenants"].items()) quotas->limits_[bytes_of_name(name)] = bytes;
  return quotas;
}

uint64_t TenantQuotas::limit_of(std::string_view scope) const {
  if (scope.empty()) return 0;
  const auto found = scope.front() == 'n' ? limits_.find(std::string(scope.substr(1))) : limits_.end();
  return found == limits_.end() ? default_bytes_ : found->second;
}

Result<void> TenantQuotas::change(std::map<std::string, uint64_t> limits) {
  if (path_.empty())
    return failure(
        EROFS, "the configuration of maru-tierd has no [quotas] with a file, in which limits could be kept; add one");
  json tenants = json::object();
  for (const auto& [name, bytes] : limits) tenants[maru::daemon::tenant_name_text(name)] = bytes;
  if (auto written = write_file(path_, maru::daemon::json_text({{"kind", kKind}, {"tenants", tenants}}, 2) + "\n");
      !written)
    return written;
  limits_ = std::move(limits);
  return {};
}

Result<void> TenantQuotas::set(const std::string& tenant, uint64_t bytes) {
  auto limits = limits_;
  limits[tenant] = bytes;
  return change(std::move(limits));
}

Result<void> TenantQuotas::remove(const std::string& tenant) {
  auto limits = limits_;
  if (limits.erase(tenant) == 0) return failure(ENOENT, "this tenant has no limit of its own");
  return change(std::move(limits));
}

TenantQuotas::Room TenantQuotas::room_for(TierSlot& slot, std::string_view scope, uint64_t bytes,
                                          const std::function<bool(const std::string&)>& is_busy) const {
  const uint64_t limit = limit_of(scope);
  if (limit == 0 || !slot.tier().counts_groups()) return {true, {}};
  if (bytes > limit) return {};
  Room room = {true, {}};
  if (slot.tier().group(scope).entry_bytes > limit - bytes) {
    const uint64_t wanted = limit - std::max(bytes, limit / kFreedShare);
    auto oldest = slot.tier().oldest(scope, kDeletedAtOnce);
    // After the list, as a tier's own thread ends deletions: one that ends in between frees too little now, and not too much.
    uint64_t used = slot.tier().group(scope).entry_bytes;
    for (auto& [key, entry_bytes] : oldest) {
      if (used <= wanted) break;
      used -= std::min(entry_bytes, used);
      if (!is_busy(key)) room.too_old.push_back(std::move(key));  // a busy one goes already, or is being replaced
    }
  }
  return room;
}

}  // namespace maru::tierd
