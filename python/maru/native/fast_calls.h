// The lookups that are called most, without the cost of pybind11's general dispatch, which is more than the lookup's own.
#pragma once

#include <pybind11/pybind11.h>

namespace maru_python {

// Adds exists, exists_batch, retrieve and _find to the class Client.
void define_fast_calls(pybind11::handle client_type);

}  // namespace maru_python
