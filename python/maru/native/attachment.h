// One attachment to a pool, shared by the Client and by all that was made from it: views, buffers, matches.
//
// Closing refuses every further call at once, but the memory is given back only when nothing can touch it any more: when
// the last call that another thread is in has returned, and the last memoryview (NumPy array, tensor) is gone. Both count as
// a Use.
//
// Thread safety: everything here happens with the GIL held, which is its lock; only calls of maru.h are made without.
// Fork: the child has neither the memory nor the attachment. Every call raises ForkedError there.
#pragma once

#include <maru/maru.h>
#include <memory>
#include <pybind11/pybind11.h>

namespace maru_python {

// How often this process is the child of a fork since the module was loaded; tells a child without a system call.
unsigned forks();
void watch_forks();

class Attachment {
 public:
  // Takes the client over.
  explicit Attachment(maru_client* client) : client_(client), forks_(forks()) {}
  ~Attachment() { detach(); }
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  // For a call. Raises ClosedError or ForkedError.
  maru_client* open() const {
    if (is_closed_ || forks_ != forks()) refuse();
    return client_;
  }
  // For giving something back; null when all has been given back with the attachment.
  maru_client* attached() const { return client_; }
  bool is_closed() const { return is_closed_; }

  void close();
  void begin_use() { ++uses_; }
  void end_use();

 private:
  [[noreturn]] void refuse() const;
  void detach();

  maru_client* client_;
  unsigned forks_;
  bool is_closed_ = false;
  size_t uses_ = 0;
};

// Calls that may block, or take long, run inside one of these: without the GIL, and with the memory kept.
class Unlocked {
 public:
  explicit Unlocked(std::shared_ptr<Attachment> attachment) : use_(std::move(attachment)) {}

 private:
  struct Use {
    explicit Use(std::shared_ptr<Attachment> used) : attachment(std::move(used)) { attachment->begin_use(); }
    ~Use() { attachment->end_use(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    std::shared_ptr<Attachment> attachment;
  };
  // In this order: the GIL is back before the use ends.
  Use use_;
  pybind11::gil_scoped_release released_;
};

}  // namespace maru_python
