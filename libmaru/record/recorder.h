// Writes the recording of this process (maru/format/recording.h).
//
// The file is mapped, so a process that is killed leaves all records that it has finished. A record takes its place by one
// atomic addition, and is written without a lock. The kernel takes longer to make a page of the file than records take to fill
// it. So a thread of the recorder makes pages ahead of them, and a call waits for pages only after a long burst.
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
#include <thread>

namespace maru::record {

class Recorder {
 public:
  // Of this process; null: MARU_RECORD is not set, or its file cannot be written, which standard error has been told once.
  static Recorder* get();

  // The file's size at most.
  Recorder(const std::string& path, uint64_t bytes_max);
  ~Recorder();  // the mapping and the file's size stay
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  bool is_open() const { return base_ != nullptr; }
  // Room for a record of so many bytes, a multiple of 8; null: the file is full. The caller fills it, and then calls finish().
  format::Record* begin(uint32_t bytes);
  static void finish(format::Record& record, uint32_t bytes);
  uint64_t now_ns() { return clock_.now_ns(); }
  // Writes the file's end into its header. Records of calls that end later may be missing. Once.
  void end();

 private:
  bool grow(uint64_t end);
  void ask_ahead();
  void make_ahead();
  format::RecordingHeader& header() const { return *reinterpret_cast<format::RecordingHeader*>(base_); }

  const uint64_t bytes_max_;
  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  std::atomic<uint64_t> end_{sizeof(format::RecordingHeader)}, mapped_{0};
  std::mutex growing_;
  std::atomic<bool> is_asked_{false};  // for more pages ahead; stays true where there is no more to be had
  std::atomic<bool> is_ending_{false};
  std::thread ahead_;
  Clock clock_;
};

}  // namespace maru::record
