// The files of an adapter, opened so that no path leads out of the folder (or of the root, where there is one).
#pragma once

#include "libmaru/adapters/manifest.h"
#include "libmaru/base/file_descriptor.h"

#include <functional>
#include <memory>

namespace maru::adapters {

// A file as the kernel knows it. A file that is written anew has another.
struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0, modified_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

// Receives the rows of tensors as they are read. Used by one thread; the rows of a tensor come in their order.
class TensorSink {
 public:
  virtual ~TensorSink() = default;
  // The memory for the rows from `first` on. Lowers *rows to the number that the memory has room for, at least 1.
  virtual std::byte* place(size_t tensor, uint64_t first, uint64_t* rows) = 0;
  // The rows are there, and each weight is a number.
  virtual void take(size_t tensor, uint64_t first, uint64_t rows) = 0;
};

// Lets the rows be read and checked, and keeps none.
class CheckingSink : public TensorSink {
 public:
  explicit CheckingSink(const std::vector<Tensor>& tensors) : tensors_(tensors) {}
  std::byte* place(size_t tensor, uint64_t, uint64_t* rows) override {
    const uint64_t bytes = *rows * (tensors_[tensor].bytes / tensors_[tensor].rows);
    if (memory_.size() < bytes) memory_.resize(bytes);
    return memory_.data();
  }
  void take(size_t, uint64_t, uint64_t) override {}

 private:
  const std::vector<Tensor>& tensors_;
  std::vector<std::byte> memory_;
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

  // Reads all tensors, each piece once, and checks that each weight is a number. Reads large files with several threads, each
  // with a sink of its own from `make_sink`. Errors: -EBADMSG; -ESTALE the file changed meanwhile; the errors of reading.
  int read_tensors(const std::function<std::unique_ptr<TensorSink>()>& make_sink, Checksum* ret_checksum,
                   maru_adapters_reason* reason) const;

 private:
  int read_tensor(size_t number, TensorSink& sink, Checksum* ret_checksum, maru_adapters_reason* reason) const;

  PeftConfig config_;
  std::vector<Tensor> tensors_;
  FileDescriptor weights_;
  FileIdentity weights_identity_;
  uint64_t headers_hash_ = 0;
  uint64_t data_offset_ = 0;
};

}  // namespace maru::adapters
