// Lines on their way to a descriptor that may take them late or never: a pipe without a reader, a stopped terminal, a hung or
// full disk. A thread of its own writes them, in their order. The threads that put lines here never wait for that descriptor.
//
// The queue is bounded. It drops and counts a line that finds no room, and all later lines until the queue is empty. One line
// then says how many are missing, at their place. Bytes that the descriptor refuses (a full disk) stay in the queue, and the
// thread tries again each second.
//
// Thread safety: any thread may call everything. No call blocks but flush(), which names its time. If the process dies here,
// the unwritten lines are lost. await_from_signal_handler() saves them where the process sees its death.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace maru::daemon {

class LogQueue {
 public:
  static constexpr size_t kBytes = 256u << 10;  // two thousand lines of usual length
  // The text, with its end of line, that says how many lines were dropped. The queue's thread asks for it.
  using TellDropped = std::function<std::string(uint64_t lines)>;

  // `fd` stays the caller's, and open for as long as this lives.
  LogQueue(int fd, TellDropped tell_dropped);
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;
  ~LogQueue();  // the thread still writes the queued lines, as long as the descriptor takes them

  // One line with its end. Where no thread can be started, this call writes the line itself.
  void put(std::string_view line);
  uint64_t dropped_lines() const;
  // Waits until everything is written, at most so long, and not at all for a descriptor that refuses it. Says whether it is.
  bool flush(std::chrono::milliseconds longest);
  // The same, with calls that are safe in a handler of a signal.
  void await_from_signal_handler(std::chrono::milliseconds longest) const;

 private:
  struct Work;
  std::shared_ptr<Work> work_;
};

}  // namespace maru::daemon
