#include "daemon/pool/memory/region_room.h"

#include "daemon/memory/file_room.h"
#include "daemon/pool/limits.h"
#include "daemon/system/control_group.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/statvfs.h>

namespace maru::daemon {
namespace {

// The kernel ends marud when its control group has no memory for the room. So marud leaves such room to the client that first
// touches it, and only looks whether the file system has as much at this moment.
Result<void> take_what_may_be_taken(int fd, uint64_t offset, uint64_t bytes, const std::string& name) {
  if (check_memory_limit(fd, bytes, name)) return take_room(fd, offset, bytes, name);
  struct statvfs room = {};
  if (::fstatvfs(fd, &room) == 0 && room.f_blocks != 0 && uint64_t(room.f_bfree) * room.f_frsize < bytes)
    return failure(ENOSPC, "take room in \"" + name + "\"");
  return {};
}

}  // namespace

Result<std::unique_ptr<RegionRoom>> RegionRoom::of(int fd, uint64_t offset, uint64_t region_bytes, uint32_t regions,
                                                   std::string name) {
  FileDescriptor own(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!own.is_open()) return failure(errno, "keep a descriptor of " + name);
  auto room = std::unique_ptr<RegionRoom>(new RegionRoom);
  room->fd_ = std::make_shared<const FileDescriptor>(std::move(own));
  room->offset_ = offset;
  room->region_bytes_ = region_bytes;
  room->name_ = std::move(name);
  room->has_.assign(regions, false);
  room->lacking_ = regions;
  return room;
}

void RegionRoom::took(uint32_t region, const Result<void>& taken) {
  full_because_ = taken ? "" : taken.error().text();
  if (!taken || has_[region]) return;
  has_[region] = true;
  --lacking_;
}

bool RegionRoom::take(uint32_t region) {
  if (!has_[region]) took(region, take_what_may_be_taken(fd_->get(), offset_of(region), region_bytes_, name_));
  return has_[region];
}

void RegionRoom::begin(uint32_t region, uint64_t now_ms) {
  if (is_busy() || has_[region] || rests(now_ms, again_ms_, kAgainMs)) return;
  working_at_ = region;
  const auto work = [fd = fd_, offset = offset_of(region), bytes = region_bytes_, name = name_] {
    return take_what_may_be_taken(fd->get(), offset, bytes, name);
  };
  work_.begin(work, failure(ENOMEM, "take room for a region"));
}

std::optional<uint32_t> RegionRoom::step(uint64_t now_ms) {
  const auto taken = work_.take();
  if (!taken) return std::nullopt;
  took(working_at_, *taken);
  again_ms_ = *taken ? 0 : now_ms + kAgainMs;
  return has_[working_at_] ? std::optional(working_at_) : std::nullopt;
}

std::vector<RegionRoom::Range> RegionRoom::bare(uint32_t region) const {
  const auto ranges = bare_ranges(fd_->get(), offset_of(region), region_bytes_);
  if (!ranges) return {{0, region_bytes_}};  // the file system does not say
  std::vector<Range> bare;
  for (const FileRange& range : *ranges) bare.push_back({range.offset - offset_of(region), range.bytes});
  return bare;
}

}  // namespace maru::daemon
