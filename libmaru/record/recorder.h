// Writes the recording of this process (maru/format/recording.h).
//
// The file is mapped, so a process that is killed leaves all records that it has finished. A record takes its place by one
// atomic addition, and is written without a lock.
//
// Thread safety: everything. After fork() the child has a file of its own.
#pragma once

#include "libmaru/record/clock.h"
#include "maru/format/recording.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace maru::record {

class Recorder {
 public:
  // Of this process; null: MARU_RECORD is not set, or its file cannot be written, which standard error has been told once.
  static Recorder* get();

  // The file's size at most.
  Recorder(const std::string& path, uint64_t bytes_max);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  bool is_open() const { return base_ != nullptr; }
  // Room for a record of so many bytes, a multiple of 8; null: the file is full. The caller fills it, and then calls finish().
  format::Record* begin(uint32_t bytes);
  static void finish(format::Record& record, uint32_t bytes);
  uint64_t now_ns() { return clock_.now_ns(); }

 private:
  bool grow(uint64_t end);
  format::RecordingHeader& header() const { return *reinterpret_cast<format::RecordingHeader*>(base_); }

  const uint64_t bytes_max_;
  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  std::atomic<uint64_t> end_{sizeof(format::RecordingHeader)}, mapped_{0};
  std::mutex growing_;
  Clock clock_;
};

}  // namespace maru::record
