// Gives the GIL up for as long as this lives.
//
// A daemon thread that asks for the GIL while the interpreter ends is ended by Python: it unwinds the thread's stack. That must
// not go through our frames, whose destructors would use Python without the GIL (and through no destructor at all, or the C++
// library ends the process). Such a thread stays here, until the process is gone. Newer versions of Python keep it themselves.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace maru_python {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) ::pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace maru_python
