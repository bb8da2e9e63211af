// Finder, the base of MaruHandler: its calls that look for a value. A frame of Python's would cost more than they do.
#pragma once

#include <pybind11/pybind11.h>

namespace maru_python {

// After Client.
void define_finder(pybind11::module_& module);

}  // namespace maru_python
