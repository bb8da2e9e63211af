// MemoryInfo: what MaruHandler.retrieve() returns. A type of CPython, as Pin and View are and for the same reason, with what
// most callers never ask for, its place, made when somebody asks.
#pragma once

#include "memory.h"

#include <memory>
#include <pybind11/pybind11.h>

namespace maru_python {

// A block that was found under `key`, a plain one: the garbage collector does not look into a MemoryInfo, to which a key of the
// caller's own class may refer back. `places` is the handler's maru.places.Retrieved.
pybind11::object new_memory_info(std::shared_ptr<Hold> hold, const maru_view& view, pybind11::object key,
                                 pybind11::handle places);

void define_memory_info(pybind11::module_& module);

}  // namespace maru_python
