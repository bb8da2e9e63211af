// A pool in a file: tmpfs, hugetlbfs, a regular file, or a file on a DAX file system. The file belongs to marud: it is
// locked before the first write, must be owned by marud's user, and foreign content is refused instead of overwritten. A pool
// may have two files, the control region in one and its pages in the other (split_device.h).
#pragma once

#include "daemon/memory/device.h"
#include "daemon/memory/device_content.h"

#include <memory>
#include <string>

namespace maru::daemon {

class FileDevice final : public Device {
 public:
  enum class Content : uint8_t {
    kBlank,  // created now, or its first page is all zeros: may be formatted
    kPool,   // begins as a control region does: may be adopted; of pages: it is not blank, label() has its content
  };
  enum class Part : uint8_t { kWhole, kControl, kPages };  // of the pool, in this file

  // Opens the file, or creates it with `bytes` bytes when it is absent. An existing file must have exactly `bytes` bytes;
  // 0 accepts the size that it has. A file that is to be formatted must fit into its file system: ENOSPC.
  // `machine`: for a pool that several hosts share, a number of this machine; the file is then locked for all others only
  // until share(). 0: for one marud.
  static Result<std::unique_ptr<FileDevice>> open(const std::string& path, uint64_t bytes, uint32_t machine = 0,
                                                  Part part = Part::kWhole);
  // The unit of the size of such a file, there or not yet: its file system says so.
  static Result<uint64_t> unit_of(const std::string& path);
  // A file that was created and not kept is removed.
  ~FileDevice() override;

  std::string_view kind() const override { return "file"; }
  Content content() const { return content_; }
  const DeviceLabel& label() const { return label_; }  // as it was when it was opened
  Result<void> allocate(uint64_t bytes) override;
  // Takes room for the whole file, if that is wanted and the file system can; unreserved_because() says why the file lacks room
  // afterwards. Error ENOSPC: a file that is to be formatted. Blocks for as long as the file system likes.
  Result<void> reserve(bool is_wanted, const Progress& progress = {});
  // Whether the file system has room now for the missing part of the file; ENOSPC.
  Result<void> expect_room() const;
  void keep() override { created_path_.clear(); }
  void share() override;
  Result<void> write_out() const override;

 private:
  FileDevice() = default;

  // Holds the lock. Apart from fd(), because a lock of an open file description lives as long as any copy of it.
  FileDescriptor lock_;
  uint32_t machine_ = 0;
  Content content_ = Content::kBlank;
  DeviceLabel label_;
  std::string created_path_;  // created by open() and not kept yet
};

}  // namespace maru::daemon
