// The lookups of Client that are called most.
#pragma once

#include "client.h"

namespace maru_python {

// Adds exists, exists_batch, retrieve and _find to the class Client.
void define_fast_calls(pybind11::handle client_type);

// Of an object of the class Client, whose __init__ may not have been called.
Client& client_of(PyObject* object);

}  // namespace maru_python
