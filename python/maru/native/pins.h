// Pin and View: blocks that are held, as Python sees them. They, and what a memoryview of a block refers to (Pages), are types
// of CPython rather than of pybind11: each lookup makes and drops one of each, and pybind11's register of all its objects would
// cost several times what the lookup does.
#pragma once

#include "memory.h"

#include <memory>
#include <pybind11/pybind11.h>

namespace maru_python {

// New objects for a block that is held, by its own pin or by a match.
pybind11::object new_pin(std::shared_ptr<Hold> hold, const maru_view& view);
pybind11::object new_view(std::shared_ptr<Hold> hold, const maru_view& view);

// The same as the method release() of a Pin or View; raises TypeError for anything else.
void release_pin(pybind11::handle pin);
// The same for each of a sequence; nothing is released when it raises. Those that nothing else holds, and that are of this
// attachment, end in one call of the library.
void release_pins(Attachment& attachment, pybind11::handle pins);

void define_pins(pybind11::module_& module);

}  // namespace maru_python
