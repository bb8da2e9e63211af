// Gives the GIL up for as long as this lives.
//
// A daemon thread that asks for the GIL while the interpreter ends stays there, until the process is gone: newer versions of
// Python keep it, and forced_unwinding.cc does where Python unwinds its stack.
#pragma once

#include <pybind11/pybind11.h>

namespace maru_python {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace maru_python
