// A pool in a file, or in two. With control_path the control region lies in a file of its own, so that read-only clients get
// the pages with a descriptor that does not let them write.
//
//   the content of the two files                  the pool
//   nothing, neither of them is there             both are created, and formatted
//   zeros                                         is formatted
//   a control region, and the pages of this pool  is adopted, of this boot or left in order
//   the same, cut off in another boot             is adopted after every block was verified, or formatted (after_power_loss)
//   a formatting that was cut off                 is formatted
//   another pool than the state file remembers    is refused
//   anything else, or one file is missing         is refused, and nothing is changed
#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/memory/file_device.h"
#include "daemon/memory/split_device.h"
#include "libmaru/shm/region/format_claim.h"
#include "maru/format/control_region.h"
#include "maru/format/data_label.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <thread>

namespace maru::daemon {
namespace {

using Kind = DeviceLabel::Kind;
using Files = std::pair<std::unique_ptr<FileDevice>, std::unique_ptr<FileDevice>>;  // control region, pages

std::string in_quotes(const std::string& path) { return "\"" + path + "\""; }

// As when another marud creates both at this moment.
bool is_locked(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  whole.l_len = off_t(format::kLaneLocks);  // without the bytes of clients' locks
  return ::fcntl(fd.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

// Whether both are there, or neither.
Result<bool> are_there(const PoolSpec& spec) {
  struct stat control = {}, pages = {};
  // The caller that opens a file tells why it cannot be looked at.
  const bool has_control = ::lstat(spec.control_path.c_str(), &control) == 0 || errno != ENOENT;
  const bool has_pages = ::lstat(spec.path.c_str(), &pages) == 0 || errno != ENOENT;
  const bool is_one = control.st_ino != 0 && control.st_ino == pages.st_ino && control.st_dev == pages.st_dev;
  if (is_one)
    return failure(EINVAL, "use " + in_quotes(spec.control_path) + " and " + in_quotes(spec.path) +
                               " for a pool: found one file of two names, expected two files; name another "
                               "control_path, or leave it out to have both in one file");
  if (has_control == has_pages) return has_control;
  const std::string& there = has_control ? spec.control_path : spec.path;
  const bool was_written = (has_control ? control : pages).st_blocks != 0;
  const std::string& missing = has_control ? spec.path : spec.control_path;
  if (is_locked(there))
    return failure(EBUSY, "use " + in_quotes(there) +
                              ": found that another marud has it, expected it free; stop that one, or "
                              "name other files");
  return failure(ENOENT, "use " + in_quotes(there) + " for a pool in two files: found it without " +
                             in_quotes(missing) + ", which has " + (has_control ? "its pages" : "its control region") +
                             ", expected both or neither; " +
                             (was_written ? "bring that one back, or remove this one, whose blocks are lost without it,"
                                          : "remove this one, to which nothing was ever written,") +
                             " and marud creates both");
}

// The unit in which both are divided is the larger of theirs, so that their sizes together are the configured one, rounded up.
Result<uint64_t> unit_of(const PoolSpec& spec) {
  const auto control = FileDevice::unit_of(spec.control_path), pages = FileDevice::unit_of(spec.path);
  if (!control) return control;
  if (!pages) return pages;
  return std::max(*control, *pages);
}

Result<void> check_size(const PoolSpec& spec, uint64_t expected, const Files& files) {
  const auto& [control, pages] = files;
  const uint64_t found = control->bytes() + pages->bytes();
  if (spec.bytes == 0 || found == expected) return {};
  return failure(EINVAL, "use " + in_quotes(spec.control_path) + " and " + in_quotes(spec.path) +
                             " for a pool: found " + std::to_string(control->bytes()) + " and " +
                             std::to_string(pages->bytes()) + " bytes, expected " + std::to_string(expected) +
                             " together, as configured; correct the size, or leave it out, or remove both files and "
                             "marud creates them");
}

std::string found_text(const DeviceLabel& label) { return label.found.empty() ? "zeros" : label.found; }

Result<void> check_whole(const FileDevice& device) {
  const DeviceLabel& label = device.label();
  if (label.kind == Kind::kDamaged)
    return failure(EBADMSG, "use " + in_quotes(device.name()) + " as a pool: found " + label.found +
                                ", expected one of version " + std::to_string(format::kVersionMajor) +
                                " that is whole; let the marud that made it serve it, or remove the file, whose blocks "
                                "are lost then, and marud creates it");
  if (label.kind != Kind::kPool || label.header.parameters.pool_bytes <= device.bytes()) return {};
  return failure(EEXIST, "use " + in_quotes(device.name()) + " as a pool: found " + label.found + ", in a file of " +
                             size_text(device.bytes()) +
                             ", expected all of it; if its pages lie in another file, name that with path = and this "
                             "one with control_path =; if it was cut off, bring the whole file back, or remove it, "
                             "and marud creates it");
}

// The rest of the pool is in the file of its pages, which is whole.
Result<void> check_control_of(const FileDevice& control, const FileDevice& pages) {
  const uint64_t expected = control.label().header.parameters.pool_bytes - pages.bytes();
  if (control.bytes() >= expected) return {};
  return failure(EEXIST, "use " + in_quotes(control.name()) + " for the control region of a pool in two files: found " +
                             control.label().found + ", with " + std::to_string(expected) +
                             " bytes in this file, of which " + std::to_string(control.bytes()) +
                             " are left, expected all of them; bring the whole file back, or remove both files and "
                             "marud creates them");
}

Result<void> check_pages_of(const FileDevice& control, const FileDevice& pages) {
  const DeviceLabel& main = control.label();
  const DeviceLabel& data = pages.label();
  if (main.kind != Kind::kPool)
    return failure(EBADMSG, "use " + in_quotes(control.name()) + " for a pool: found " + found_text(main) +
                                ", expected its control region; remove both files and marud creates them, or let the "
                                "marud that made it serve it");
  if (main.header.parameters.pool_bytes <= control.bytes())
    return failure(EEXIST, "use " + in_quotes(control.name()) +
                               " for the control region of a pool in two files: found " + main.found +
                               ", which is all in this file; name it with path = and leave control_path out, or name "
                               "two other files");
  if (data.kind == Kind::kData && data.uuid == main.uuid && data.data.data_bytes == pages.bytes())
    return check_control_of(control, pages);
  const bool is_cut = data.kind == Kind::kData && data.uuid == main.uuid;
  return failure(EEXIST, "use " + in_quotes(pages.name()) + " for the pages of a pool: found " + found_text(data) +
                             (is_cut ? " in " + std::to_string(data.data.data_bytes) + " bytes, of which " +
                                           std::to_string(pages.bytes()) + " are left"
                                     : "") +
                             ", expected those of " + main.found + ", whose control region is in " +
                             in_quotes(control.name()) +
                             "; name the file that has them, or remove both files and marud creates them");
}

// Whether the pool is to be formatted.
Result<bool> judge(const Files& files) {
  const auto& [control, pages] = files;
  const DeviceLabel& data = pages->label();
  if (control->content() == FileDevice::Content::kPool) {
    if (auto belongs = check_pages_of(*control, *pages); !belongs) return tl::unexpected(belongs.error());
    return false;
  }
  if (data.kind == Kind::kNothing) return true;
  // The claim comes before the label, so these pages were blank when the formatting began.
  if (are_claimed(data, pages->bytes(), control->label())) return true;
  const bool was_cut_off = control->label().kind == Kind::kClaimed;
  return failure(EEXIST, "use " + in_quotes(pages->name()) + " for the pages of a pool: found " + found_text(data) +
                             " beside " + in_quotes(control->name()) +
                             (was_cut_off ? ", where the formatting of another pool was cut off" : ", which is blank") +
                             ", expected a blank file; name the control region that belongs to it, or other files");
}

// The marud of another host may be creating them at this moment: it is waited for as long as for a lock.
Result<bool> wait_for_both(const PoolSpec& spec) {
  auto there = are_there(spec);
  if (!there && spec.pool.sharing.is_shared && there.error().code != EINVAL)
    log_info("pool \"{}\" waits for both of its files: {}", spec.pool.name, there.error().doing);
  for (int tries = 0; tries < 50 && spec.pool.sharing.is_shared && !there && there.error().code != EINVAL; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    there = are_there(spec);
  }
  return there;
}

// Both files, opened and locked. Created files go again unless the pool is formatted.
Result<Files> open_both(const PoolSpec& spec, uint32_t machine) {
  const auto there = wait_for_both(spec);
  if (!there) return tl::unexpected(there.error());
  const auto unit = unit_of(spec);
  if (!unit) return tl::unexpected(unit.error());
  const uint64_t bytes = (spec.bytes + *unit - 1) / *unit * *unit;
  uint64_t control_bytes = 0;
  if (!*there) {
    if (bytes == 0)
      return failure(EINVAL, "create " + in_quotes(spec.control_path) + " and " + in_quotes(spec.path) +
                                 " without a size: found neither, expected a pool there, or a size to create one; say "
                                 "size =, or name the files that have the pool");
    auto room = Pool::control_room(spec.pool, bytes, *unit, format::kDataLabelRoom);
    if (!room) return tl::unexpected(room.error());
    control_bytes = *room;
  }
  Files files;
  using Part = FileDevice::Part;
  auto control = FileDevice::open(spec.control_path, control_bytes, machine, Part::kControl);
  if (!control) return tl::unexpected(control.error());
  auto pages = FileDevice::open(spec.path, *there ? 0 : bytes - control_bytes, machine, Part::kPages);
  if (!pages) return tl::unexpected(pages.error());
  files = {std::move(*control), std::move(*pages)};
  if (auto fits = check_size(spec, bytes, files); !fits) return tl::unexpected(fits.error());
  return files;
}

// Judges a file that begins as a control region does; its adoption finds whether the control region is usable.
Result<Belief> believe(const PoolSpec& spec, FileDevice& control, uint64_t pool_bytes, bool gives_up) {
  if (control.label().kind != Kind::kPool) return Belief::kAdopt;
  if (gives_up) return Belief::kFormat;
  return judge_pool(spec, control, control.label(), pool_bytes, true);
}

}  // namespace

Result<void> HostedPool::start_file(uint64_t now_ms) {
  auto known = state_.load(name());
  if (!known)
    log_warning("pool \"{}\": which pool it was is not known any more: {}", name(), known.error().text());
  else if (*known && !(*known)->file_path.empty())
    record_ = *known;
  const auto started = open_files(now_ms, false);
  record_.reset();
  if (!started) return started;
  const std::string& path = spec_.control_path.empty() ? spec_.path : spec_.control_path;
  PoolRecord record = {name(), {}, pool_->device().identity(), current_boot_id()};
  record.file_path = path;
  std::memcpy(record.uuid.data(), pool_->header().uuid, record.uuid.size());
  // The pool's own label identifies it; without the record another pool in its place would be taken for it.
  if (auto saved = state_.save(record); !saved) log_warning("pool \"{}\": {}", name(), saved.error().text());
  return {};
}

// The pool that the record names ends here. marud may die before it saves the next pool's record, or fail to save it. The file
// then belongs to no other pool than expected.
void HostedPool::forget_pool() { state_.remove(name()); }

Result<void> HostedPool::open_files(uint64_t now_ms, bool gives_up) {
  const uint32_t machine = spec_.pool.sharing.is_shared ? machine_number(spec_.pool.sharing) : 0;
  if (!spec_.control_path.empty()) return start_two_files(machine, now_ms, gives_up);
  auto device = FileDevice::open(spec_.path, spec_.bytes, machine);
  if (!device) return tl::unexpected(device.error());
  if (auto all = check_whole(**device); !all) return all;
  if (auto reserved = reserve(**device); !reserved) return reserved;
  if ((*device)->content() == FileDevice::Content::kBlank) {
    if (spec_.numa.first_touch)
      if (auto touched = touch_all(name(), **device); !touched) return touched;
    forget_pool();
    return serve_new(Pool::format(spec_.pool, std::move(*device), now_ms), spec_.path);
  }
  if (auto same = judge_identity((*device)->label(), spec_.path); !same) return same;
  const auto belief = believe(spec_, **device, (*device)->bytes(), gives_up);
  if (!belief) return tl::unexpected(belief.error());
  return adopt_file(std::move(*device), *belief, now_ms);
}

Result<void> HostedPool::reserve(FileDevice& file) {
  return file.reserve(spec_.reserve, tell_progress(name(), "reserved", file.name()));
}

Result<void> HostedPool::serve_new(Result<std::unique_ptr<Pool>> made, const std::string& places) {
  if (!made) return tl::unexpected(made.error());
  if (record_)
    log_warning("pool \"{}\": pool {}, which was in {}, is not there any more: a new one was made", name(),
                uuid_text(record_->uuid), record_->file_path);
  log_info("pool \"{}\" is new: {} was formatted", name(), places);
  return serve(std::move(made));
}

// Refuses a file that has another pool now, such as by a copy. When the configuration names another file, it means that file.
// In a pool that several hosts share another host may have made it anew, as this host does when the file is gone.
Result<void> HostedPool::judge_identity(const DeviceLabel& label, const std::string& path) const {
  if (!record_ || label.kind != Kind::kPool || label.uuid == record_->uuid) return {};
  const std::string was = uuid_text(record_->uuid);
  if (path != record_->file_path || spec_.pool.sharing.is_shared) {
    log_warning("pool \"{}\" was pool {} in {} until now, and is {} in {}", name(), was, record_->file_path,
                uuid_text(label.uuid), path);
    return {};
  }
  return failure(EEXIST, "use " + in_quotes(path) + ": found " + label.found + ", expected the pool that it was, " +
                             was + "; bring that file back, or remove " + state_.file_of(name()) +
                             ", and what lies there now is served as pool \"" + name() + "\"");
}

Result<void> HostedPool::adopt_file(std::unique_ptr<Device> device, Belief belief, uint64_t now_ms) {
  if (belief == Belief::kAdopt) return serve(Pool::adopt(spec_.pool, std::move(device), now_ms));
  if (belief == Belief::kVerify) {
    const std::string place = device->name();
    const auto is_believed = adopt_verified(std::move(device), place, now_ms);
    if (!is_believed) return tl::unexpected(is_believed.error());
    return *is_believed ? Result<void>() : open_files(now_ms, true);
  }
  if (auto mapped = device->map_control(sizeof(format::Header)); !mapped) return mapped;
  forget_pool();
  shm::give_up_pool(device->control());
  return serve(Pool::format(spec_.pool, std::move(device), now_ms));
}

Result<void> HostedPool::start_two_files(uint32_t machine, uint64_t now_ms, bool gives_up) {
  auto files = open_both(spec_, machine);
  if (!files) return tl::unexpected(files.error());
  const auto is_new = judge(*files);
  if (!is_new) return tl::unexpected(is_new.error());
  if (*is_new) {
    // Each was found to fit alone. The control region takes its room before the pages are asked for.
    if (auto taken = files->first->allocate(files->first->bytes()); !taken) return tl::unexpected(taken.error());
    if (auto fits = files->second->expect_room(); !fits) return tl::unexpected(fits.error());
  }
  for (FileDevice* file : {files->first.get(), files->second.get()})
    if (auto reserved = reserve(*file); !reserved) return reserved;
  if (!*is_new)
    if (auto same = judge_identity(files->first->label(), spec_.control_path); !same) return same;
  auto belief = Result<Belief>(Belief::kAdopt);
  if (!*is_new) belief = believe(spec_, *files->first, files->first->bytes() + files->second->bytes(), gives_up);
  if (!belief) return tl::unexpected(belief.error());
  auto device = SplitDevice::join(std::move(files->first), std::move(files->second));
  if (!device) return tl::unexpected(device.error());
  if (!*is_new) return adopt_file(std::move(*device), *belief, now_ms);
  if (spec_.numa.first_touch)
    if (auto touched = touch_all(name(), **device); !touched) return touched;
  forget_pool();
  return serve_new(Pool::format(spec_.pool, std::move(*device), now_ms), spec_.control_path + " with " + spec_.path);
}

}  // namespace maru::daemon
