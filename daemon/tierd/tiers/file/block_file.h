// The file, or the device, in which a log lies: found or made, locked, and proven to be a log before a byte of it is changed.
#pragma once

#include "daemon/tierd/tiers/file/log_format.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <string>

namespace maru::tierd {

enum class DirectWish : uint8_t { kIfPossible, kYes, kNo };

struct BlockFileWish {
  std::string path;             // a file, a directory in which "maru-tier.log" is used, or a block device
  uint64_t capacity_bytes = 0;  // never more than this
  uint64_t region_bytes = 64u << 20;
  DirectWish direct = DirectWish::kIfPossible;
  bool force = false;  // other data may be overwritten
};

class BlockFile {
 public:
  // An error names the finding, the expectation and the remedy.
  static Result<BlockFile> open(const BlockFileWish& wish);

  int descriptor() const { return file_.get(); }
  const std::string& path() const { return path_; }
  const LogId& id() const { return id_; }
  uint64_t region_bytes() const { return region_bytes_; }
  uint64_t regions() const { return regions_; }
  uint64_t region_offset(uint64_t index) const { return kLogFirstRegion + index * region_bytes_; }
  bool is_direct() const { return direct_trouble_.empty(); }
  // Why I/O goes through the page cache; empty: it does not.
  const std::string& direct_trouble() const { return direct_trouble_; }
  bool was_made_now() const { return was_made_now_; }
  // That the file system has given out. The capacity, of a device.
  uint64_t physical_bytes() const;

  // All of it or an error, for the work at the start and beside requests. Memory, length and offset are multiples of a block.
  Result<void> read(void* data, uint64_t bytes, uint64_t offset) const;
  Result<void> write(const void* data, uint64_t bytes, uint64_t offset) const;

 private:
  Result<void> recognise(const BlockFileWish& wish, uint64_t bytes);
  void try_direct(const BlockFileWish& wish);

  FileDescriptor file_;
  std::string path_, direct_trouble_;
  LogId id_ = {};
  uint64_t region_bytes_ = 0, regions_ = 0;
  bool is_device_ = false, was_made_now_ = false;
};

}  // namespace maru::tierd
