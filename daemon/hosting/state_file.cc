#include "daemon/hosting/state_file.h"

#include "daemon/base/path_of_file.h"
#include "daemon/server/listener.h"
#include "maru/format/limits.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr int kStateVersion = 1;

nlohmann::json identity_json(const DeviceIdentity& identity) {
  return {{"dev", identity.device}, {"inode", identity.inode}, {"seals", identity.seals}, {"bytes", identity.bytes}};
}

std::optional<DeviceIdentity> parse_identity(const nlohmann::json& json) {
  const auto number = [&](const char* key) -> std::optional<uint64_t> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) return std::nullopt;
    return found->get<uint64_t>();
  };
  if (!json.is_object()) return std::nullopt;
  const auto device = number("dev"), inode = number("inode"), seals = number("seals"), bytes = number("bytes");
  if (!device || !inode || !seals || !bytes) return std::nullopt;
  return DeviceIdentity{*device, *inode, uint32_t(*seals), *bytes};
}

std::optional<PoolRecord> parse(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto string = [&](const char* key) -> std::optional<std::string> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
  };
  const auto version = json.find("version");
  const auto device = parse_identity(json);
  const auto pool = string("pool"), uuid = string("uuid"), boot_id = string("boot_id");
  if (version == json.end() || *version != kStateVersion || !device || !pool || !uuid || !boot_id) return std::nullopt;
  const auto parsed_uuid = parse_uuid(*uuid);
  if (!parsed_uuid) return std::nullopt;
  PoolRecord record = {*pool, *parsed_uuid, *device, *boot_id};
  if (const auto pages = json.find("pages"); pages != json.end()) {
    record.pages = parse_identity(*pages);
    if (!record.pages || record.pages->bytes >= device->bytes) return std::nullopt;
  }
  const auto flag = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && *found == true;
  };
  record.dax_name = string("dax_name").value_or("");
  record.file_path = string("file_path").value_or("");
  record.dax_pages_name = string("dax_pages_name").value_or("");
  record.is_volatile = flag("volatile");
  record.is_being_cleared = flag("being_cleared");
  record.is_being_formatted = flag("being_formatted");
  return record;
}

// -- tenants ----------------------------------------------------------------------------------------------------------

std::string hex_of(const std::string& name) {
  std::string hex;
  for (const char c : name) {
    hex += "0123456789abcdef"[uint8_t(c) >> 4];
    hex += "0123456789abcdef"[uint8_t(c) & 15];
  }
  return hex;
}

std::optional<std::string> from_hex(const std::string& hex) {
  if (hex.empty() || hex.size() % 2 != 0 || hex.size() / 2 > limits::kTenantNameMax) return std::nullopt;
  std::string name;
  for (size_t i = 0; i < hex.size(); i += 2) {
    int value = 0;
    for (const char c : {hex[i], hex[i + 1]}) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + digit;
    }
    name += char(value);
  }
  return name;
}

void put_limits(const TenantLimits& limits, nlohmann::json& json) {
  if (limits.soft_bytes) json["soft"] = *limits.soft_bytes;
  if (limits.hard_bytes) json["hard"] = *limits.hard_bytes;
}

bool take_limits(const nlohmann::json& json, TenantLimits& limits) {
  const auto take = [&](const char* key, std::optional<uint64_t>& value) {
    const auto found = json.find(key);
    if (found == json.end()) return true;
    if (!found->is_number_unsigned()) return false;
    value = found->get<uint64_t>();
    return true;
  };
  return json.is_object() && take("soft", limits.soft_bytes) && take("hard", limits.hard_bytes);
}

// Names are bytes of any value, so they are written in hexadecimal digits.
std::string tenants_text(const TenantSettings& settings, const std::string& pool) {
  nlohmann::json json = {{"version", kStateVersion}, {"pool", pool}};
  json["tenants"] = nlohmann::json::object();
  for (const auto& [name, limits] : settings.tenants) {
    nlohmann::json& one = json["tenants"][hex_of(name)] = nlohmann::json::object();
    put_limits(limits, one);
  }
  json["removed"] = nlohmann::json::array();
  for (const std::string& name : settings.removed) json["removed"].push_back(hex_of(name));
  json["default"] = nlohmann::json::object();
  put_limits(settings.defaults, json["default"]);
  if (settings.listed_only) json["listed_only"] = *settings.listed_only;
  return json.dump(2) + "\n";
}

std::optional<TenantSettings> parse_tenants(const std::string& text, const std::string& pool) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto is = [&](const char* key, const nlohmann::json& value) {
    const auto found = json.find(key);
    return found != json.end() && *found == value;
  };
  if (!json.is_object() || !is("version", kStateVersion) || !is("pool", pool)) return std::nullopt;
  TenantSettings settings;
  const auto tenants = json.find("tenants"), removed = json.find("removed"), defaults = json.find("default");
  if (tenants == json.end() || !tenants->is_object() || removed == json.end() || !removed->is_array() ||
      defaults == json.end() || !take_limits(*defaults, settings.defaults))
    return std::nullopt;
  for (const auto& [hex, limits] : tenants->items()) {
    const auto name = from_hex(hex);
    if (!name || !take_limits(limits, settings.tenants[*name])) return std::nullopt;
  }
  for (const auto& hex : *removed) {
    const auto name = hex.is_string() ? from_hex(hex.get<std::string>()) : std::nullopt;
    if (!name) return std::nullopt;
    settings.removed.insert(*name);
  }
  if (const auto listed = json.find("listed_only"); listed != json.end()) {
    if (!listed->is_boolean()) return std::nullopt;
    settings.listed_only = listed->get<bool>();
  }
  return settings;
}

}  // namespace

Result<void> StateDirectory::check_owner() const {
  struct stat status = {};
  if (::geteuid() != 0 || ::stat(path_.c_str(), &status) != 0 || status.st_uid == 0) return {};
  const passwd* found = ::getpwuid(status.st_uid);
  const std::string user = found ? found->pw_name : "#" + std::to_string(status.st_uid);
  return failure(EPERM, "use the state directory " + path_ + " as root: it is user " + user +
                            "'s, whose marud could not read what root leaves there (runuser -u " + user +
                            " -- marud ... runs it as that user, --state-dir names another directory)");
}

Result<void> StateDirectory::hold() const {
  const std::lock_guard one(lock_->mutex);
  return lock_->file.is_open() ? Result<void>() : lock();
}

// Pools in files alone need no lock.
Result<void> StateDirectory::hold_still() const {
  const std::lock_guard one(lock_->mutex);
  const bool is_held = lock_->file.is_open();
  return !is_held || why_another_file(path_ + "/lock", lock_->file) == 0 ? Result<void>() : lock();
}

// With the mutex.
Result<void> StateDirectory::lock() const {
  if (auto right = check_owner(); !right) return right;
  auto directory = make_directory(path_);
  if (!directory) return tl::unexpected(directory.error());
  const std::string path = path_ + "/lock";
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.is_open()) return failure(errno, "open " + path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
    lock_->file = std::move(fd);
    return {};
  }
  if (errno == EWOULDBLOCK)
    return failure(EBUSY, "use the state directory " + path_ + " (another marud does; --state-dir names one)");
  return failure(errno, "lock " + path);
}

Result<void> StateDirectory::unlink(const std::string& path) const {
  if (auto held = hold_still(); !held) return held;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return failure(errno, "remove " + path);
  return {};
}

Result<std::optional<PoolRecord>> StateDirectory::load(const std::string& pool) const {
  const std::string path = file_of(pool);
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.is_open()) {
    if (errno == ENOENT) return std::optional<PoolRecord>();
    return failure(errno, "read " + path);
  }
  char buffer[4096];
  const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
  if (got < 0) return failure(errno, "read " + path);
  auto record = parse(std::string(buffer, size_t(got)));
  if (!record || record->pool != pool) return failure(EBADMSG, "understand " + path);
  return record;
}

Result<void> StateDirectory::save(const PoolRecord& record) const {
  uint8_t uuid[16];
  std::memcpy(uuid, record.uuid.data(), sizeof(uuid));
  nlohmann::json json = identity_json(record.device);
  json.update({{"version", kStateVersion}, {"pool", record.pool}, {"uuid", uuid_text(uuid)}});
  json["boot_id"] = record.boot_id;
  if (record.pages) json["pages"] = identity_json(*record.pages);
  if (!record.file_path.empty()) json["file_path"] = record.file_path;
  if (!record.dax_name.empty()) {
    json["dax_name"] = record.dax_name;
    if (!record.dax_pages_name.empty()) json["dax_pages_name"] = record.dax_pages_name;
    json["volatile"] = record.is_volatile;
    json["being_cleared"] = record.is_being_cleared;
    json["being_formatted"] = record.is_being_formatted;
  }
  const std::string text = json.dump(2) + "\n";
  return replace(file_of(record.pool), text);
}

Result<void> StateDirectory::replace(const std::string& path, const std::string& text) const {
  if (auto held = hold_still(); !held) return held;
  auto directory = make_directory(path_);
  if (!directory) return tl::unexpected(directory.error());
  const std::string next = path + ".next";
  FileDescriptor fd(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.is_open()) return failure(errno, "write " + next);
  const auto give_up = [&](int code, const std::string& what) {
    ::unlink(next.c_str());
    return failure(code, what);
  };
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return give_up(wrote < 0 ? errno : EIO, "write " + next);
    done += size_t(wrote);
  }
  if (::fsync(fd.get()) != 0 || ::rename(next.c_str(), path.c_str()) != 0) return give_up(errno, "replace " + path);
  return {};
}

Result<TenantSettings> StateDirectory::load_tenants(const std::string& pool) const {
  const std::string path = tenants_file_of(pool);
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.is_open()) {
    if (errno == ENOENT) return TenantSettings();
    return failure(errno, "read " + path);
  }
  constexpr size_t kBytesMax = 64u << 20;  // more than 65,536 tenants with the longest names and limits
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(fd.get(), buffer, sizeof(buffer))) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(errno, "read " + path);
    text.append(buffer, size_t(got));
    if (text.size() > kBytesMax) return failure(EBADMSG, "understand " + path + ", which has more than 64 MiB");
  }
  auto settings = parse_tenants(text, pool);
  if (!settings) return failure(EBADMSG, "understand " + path);
  return *settings;
}

Result<void> StateDirectory::save_tenants(const std::string& pool, const TenantSettings& at_run_time) const {
  return replace(tenants_file_of(pool), tenants_text(at_run_time, pool));
}

bool StateDirectory::is_draining(const std::string& pool) const {
  return ::access(draining_file_of(pool).c_str(), F_OK) == 0;
}

Result<void> StateDirectory::save_draining(const std::string& pool, bool draining) const {
  const std::string path = draining_file_of(pool);
  if (draining) return replace(path, nlohmann::json({{"version", kStateVersion}, {"pool", pool}}).dump(2) + "\n");
  return unlink(path);
}

void StateDirectory::remove(const std::string& pool) const { static_cast<void>(unlink(file_of(pool))); }

}  // namespace maru::daemon
