#include "fast_calls.h"

#include "method.h"
#include "request_scope.h"

namespace py = pybind11;

namespace maru_python {
namespace {

PyObject* exists(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  static constexpr Signature kSignature{"exists", 1, 2, {"key", "tenant", nullptr}};
  PyObject* given[2];
  if (!read_arguments(kSignature, args, positional, kwnames, given)) return nullptr;
  return guarded([&] { return PyBool_FromLong(client_of(self).exists(given[0], given[1])); });
}

PyObject* retrieve(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  static constexpr Signature kSignature{"retrieve", 1, 3, {"key", "tenant", "traceparent"}};
  PyObject* given[3];
  if (!read_arguments(kSignature, args, positional, kwnames, given)) return nullptr;
  return guarded([&] {
    const RequestScope request(given[2]);
    return client_of(self).retrieve(given[0], given[1]).release().ptr();
  });
}

PyObject* find(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  static constexpr Signature kSignature{"_find", 3, 3, {"key", "tenant", "places"}};
  PyObject* given[3];
  if (!read_arguments(kSignature, args, positional, kwnames, given)) return nullptr;
  return guarded([&] { return client_of(self).find(given[0], given[1], given[2]).release().ptr(); });
}

PyObject* exists_batch(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  static constexpr Signature kSignature{"exists_batch", 1, 3, {"keys", "tenant", "out"}};
  PyObject* given[3];
  if (!read_arguments(kSignature, args, positional, kwnames, given)) return nullptr;
  return guarded([&] {
    return client_of(self)
        .exists_batch(given[0], given[1], py::reinterpret_borrow<py::object>(given[2]))
        .release()
        .ptr();
  });
}

PyMethodDef methods[] = {
    definition<exists>("exists", "exists($self, key, tenant=None)\n--\n\nWhether a block is there."),
    definition<retrieve>("retrieve", "retrieve($self, key, tenant=None, traceparent=None)\n--\n\nA View, or None."),
    definition<find>("_find", "_find($self, key, tenant, places)\n--\n\nA MemoryInfo, or None."),
    definition<exists_batch>("exists_batch",
                             "exists_batch($self, keys, tenant=None, out=None)\n--\n\nWhether each block is there."),
};

}  // namespace

// The method descriptor has seen to it that this is a Client; but its __init__ may not have been called.
Client& client_of(PyObject* self) {
  auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  void* const value = instance->simple_layout ? instance->simple_value_holder[0] : nullptr;
  return value != nullptr ? *static_cast<Client*>(value)
                          : py::cast<Client&>(py::handle(self));  // zeros, see ZeroedMemory
}

void define_fast_calls(py::handle client_type) { add_methods(client_type, methods); }

}  // namespace maru_python
