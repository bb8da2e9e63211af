// The files of an adapter, opened so that no path leads out of the folder (or of the root, where there is one).
#pragma once

#include "libmaru/adapters/manifest.h"
#include "libmaru/base/file_descriptor.h"

#include <functional>

namespace maru::adapters {

// A file as the kernel knows it. A file that is written anew has another.
struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0, modified_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

class AdapterFile {
 public:
  // Opens both files of a folder, and reads their headers. `root`: empty for none. Errors: of maru_adapters_load().
  int open(const std::string& root, const std::string& folder, maru_adapters_reason* reason);

  const PeftConfig& config() const { return config_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const FileIdentity& weights_identity() const { return weights_identity_; }
  // Of the config and of the header: changes with each of their bytes.
  uint64_t headers_hash() const { return headers_hash_; }

  // Reads all tensors in the order of the file, each whole, checks that each weight is a number, and calls `take` with the
  // bytes, which it may keep no longer than the call. Errors: -EBADMSG; -ESTALE the file changed meanwhile; those of
  // reading.
  int read_tensors(const std::function<void(size_t tensor, std::span<const std::byte> bytes)>& take,
                   Checksum* ret_checksum, maru_adapters_reason* reason) const;

 private:
  PeftConfig config_;
  std::vector<Tensor> tensors_;
  FileDescriptor weights_;
  FileIdentity weights_identity_;
  uint64_t headers_hash_ = 0;
  uint64_t data_offset_ = 0;
};

}  // namespace maru::adapters
