#include "daemon/state_file.h"

#include "daemon/listener.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

constexpr int kStateVersion = 1;

std::optional<std::array<uint8_t, 16>> parse_uuid(const std::string& text) {
  std::array<uint8_t, 16> uuid = {};
  size_t nibbles = 0;
  for (char c : text) {
    if (c == '-') continue;
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0 || nibbles >= 32) return std::nullopt;
    uuid[nibbles / 2] = uint8_t(uuid[nibbles / 2] << 4 | value);
    ++nibbles;
  }
  return nibbles == 32 ? std::optional(uuid) : std::nullopt;
}

std::optional<PoolRecord> parse(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&](const char* key) -> std::optional<uint64_t> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) return std::nullopt;
    return found->get<uint64_t>();
  };
  const auto string = [&](const char* key) -> std::optional<std::string> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
  };
  const auto version = number("version"), device = number("dev"), inode = number("inode"), seals = number("seals"),
             bytes = number("bytes");
  const auto pool = string("pool"), uuid = string("uuid"), boot_id = string("boot_id");
  if (version != kStateVersion || !device || !inode || !seals || !bytes || !pool || !uuid || !boot_id)
    return std::nullopt;
  const auto parsed_uuid = parse_uuid(*uuid);
  if (!parsed_uuid) return std::nullopt;
  return PoolRecord{*pool, *parsed_uuid, {*device, *inode, uint32_t(*seals), *bytes}, *boot_id};
}

}  // namespace

std::string uuid_text(const uint8_t (&uuid)[16]) {
  std::string out;
  char pair[3];
  for (size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    std::snprintf(pair, sizeof(pair), "%02x", uuid[i]);
    out += pair;
  }
  return out;
}

const std::string& current_boot_id() {
  static const std::string known = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    file >> id;
    return id;
  }();
  return known;
}

Result<FileDescriptor> StateDirectory::lock() const {
  auto directory = make_directory(path_);
  if (!directory) return tl::unexpected(directory.error());
  const std::string path = path_ + "/lock";
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.is_open()) return failure(errno, "open " + path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK)
    return failure(EBUSY, "use the state directory " + path_ + " (another marud does; --state-dir names one)");
  return failure(errno, "lock " + path);
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
  auto directory = make_directory(path_);
  if (!directory) return directory;
  uint8_t uuid[16];
  std::memcpy(uuid, record.uuid.data(), sizeof(uuid));
  const nlohmann::json json = {{"version", kStateVersion},
                               {"pool", record.pool},
                               {"uuid", uuid_text(uuid)},
                               {"dev", record.device.device},
                               {"inode", record.device.inode},
                               {"seals", record.device.seals},
                               {"bytes", record.device.bytes},
                               {"boot_id", record.boot_id}};
  const std::string text = json.dump(2) + "\n";
  const std::string path = file_of(record.pool), next = path + ".next";
  FileDescriptor fd(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.is_open()) return failure(errno, "write " + next);
  if (::write(fd.get(), text.data(), text.size()) != ssize_t(text.size())) return failure(errno, "write " + next);
  if (::fsync(fd.get()) != 0 || ::rename(next.c_str(), path.c_str()) != 0) return failure(errno, "replace " + path);
  return {};
}

void StateDirectory::remove(const std::string& pool) const { ::unlink(file_of(pool).c_str()); }

}  // namespace maru::daemon
