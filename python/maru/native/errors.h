// From the library's -errno to the named exceptions of maru/errors.py.
#pragma once

#include <pybind11/pybind11.h>
#include <string>

namespace maru_python {

// Called once, when the module is loaded: what is raised later needs no import.
void load_errors();

// The exception for a negative result, not raised.
pybind11::object exception_of(int status, const char* call);

// Whether it says that a value is there and unreadable: UNREADABLE of maru/errors.py.
bool is_unreadable(const pybind11::error_already_set& raised);

// Raises the exception for a negative result. `call` is the name of the function of maru.h that returned it.
[[noreturn]] void raise(int status, const char* call);

// The same, with something that the caller may need as an attribute of the exception.
[[noreturn]] void raise_with(int status, const char* call, const char* name, const pybind11::object& value);

// For what is refused before the library is asked: ClosedError, ForkedError, ViewsHeldError, InvalidArgumentError.
[[noreturn]] void raise_named(const char* exception, const std::string& sentence);

// The result, when it is not negative.
inline int check(int status, const char* call) {
  if (status < 0) raise(status, call);
  return status;
}

}  // namespace maru_python
