// Arguments that pybind11 would refuse in words of its own, as a TypeError that names no remedy.
#pragma once

#include "held.h"

#include <pybind11/pybind11.h>

namespace maru_python {

// A bool, also NumPy's; `name` is the argument's. Everything else is refused: a text is true, whatever it says.
bool flag_of(pybind11::handle value, const char* name);

// True or False, also NumPy's.
bool is_truth(pybind11::handle value);

// Everything but a Buffer is refused.
Buffer& buffer_of(pybind11::handle value);

}  // namespace maru_python
