// One attachment to a pool, shared by the Client and by all that was made from it: views, buffers, matches.
//
// Closing refuses every further call at once, but the memory is given back only when nothing can touch it any more: when
// the last call that another thread is in has returned, and the last memoryview (NumPy array, tensor) is gone. Both count as
// a Use.
//
// Thread safety: everything here happens with the GIL held, which is its lock; only calls of maru.h are made without.
// Fork: the child has neither the memory nor the attachment. Every call raises ForkedError there.
#pragma once

#include "without_gil.h"

#include <cstdint>
#include <cstring>
#include <maru/maru.h>
#include <memory>
#include <new>
#include <pybind11/pybind11.h>

namespace maru_python {

// For what pybind11 makes objects of: where Python code calls __new__ and not __init__, pybind11 takes memory for one and
// constructs nothing there. It finds zeros, which are no attachment and nothing held.
class ZeroedMemory {
 public:
  static void* operator new(size_t bytes) { return std::memset(::operator new(bytes), 0, bytes); }
  static void operator delete(void* memory) { ::operator delete(memory); }
};

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

  // Raises ClosedError or ForkedError. The client is there until Python code runs, which may close it: see Use.
  maru_client* open() const {
    if (is_closed_ || forks_ != forks()) refuse();
    return client_;
  }
  // Raises ForkedError. Views go on being shown after close().
  void show() const {
    if (forks_ != forks()) refuse();
  }
  // call(client) gives something back; there is nothing to give when all went with the attachment. One that `waits` is made
  // without the GIL.
  template <typename Call>
  void give_back(bool waits, Call&& call) {
    if (client_ == nullptr) return;
    if (!waits) return void(call(client_));
    begin_use();
    {
      const WithoutGil released;
      call(client_);
    }
    end_use();
  }
  bool is_closed() const { return is_closed_; }
  // Has call() called before the memory of the pool leaves its addresses, in whichever thread that is; None: nothing. Returns
  // the address of page 0.
  uintptr_t before_unmap(pybind11::object call);

  void close();
  // The client stays at least until the end.
  void begin_use() { ++uses_; }
  void end_use();

 private:
  [[noreturn]] void refuse() const;
  void detach();
  static void end_foreign_use(void* attachment);

  maru_client* client_;
  unsigned forks_;
  bool is_closed_ = false;
  size_t uses_ = 0;
  pybind11::object before_unmap_;  // null: nothing
};

// A call that uses the client while Python code may run, or while the GIL is given up: from the conversion of its arguments to
// that of its results. Whatever closes the attachment meanwhile, the client and the memory stay until its end. Raises
// ClosedError or ForkedError. The attachment must live as long: the caller's Client or Match sees to that.
class Use {
 public:
  explicit Use(Attachment& attachment) : attachment_(attachment), client_(attachment.open()) { attachment.begin_use(); }
  ~Use() { attachment_.end_use(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  maru_client* client() const { return client_; }

 private:
  Attachment& attachment_;
  maru_client* client_;
};

}  // namespace maru_python
