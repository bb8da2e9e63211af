#include "method.h"

namespace py = pybind11;

namespace maru_python {

bool read_arguments(const Signature& signature, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames,
                    PyObject** ret_values) {
  if (size_t(positional) > signature.names_count) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu argument%s, %zd were given", signature.call,
                 signature.names_count, signature.names_count == 1 ? "" : "s", positional);
    return false;
  }
  for (size_t i = 0; i < signature.names_count; ++i) ret_values[i] = i < size_t(positional) ? args[i] : nullptr;
  const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* const name = PyTuple_GET_ITEM(kwnames, k);
    size_t i = 0;
    while (i < signature.names_count && PyUnicode_CompareWithASCIIString(name, signature.names[i]) != 0) ++i;
    if (i == signature.names_count || ret_values[i] != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() got %s argument '%U'", signature.call,
                   i == signature.names_count ? "an unknown" : "twice the", name);
      return false;
    }
    ret_values[i] = args[positional + k];
  }
  for (size_t i = 0; i < signature.names_count; ++i) {
    if (ret_values[i] != nullptr) continue;
    if (i < signature.required) {
      PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'", signature.call, signature.names[i]);
      return false;
    }
    ret_values[i] = Py_None;
  }
  return true;
}

void add_methods(py::handle type, std::span<PyMethodDef> methods) {
  for (PyMethodDef& method : methods) {
    PyObject* const descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method);
    if (descriptor == nullptr) throw py::error_already_set();
    type.attr(method.ml_name) = py::reinterpret_steal<py::object>(descriptor);
  }
}

}  // namespace maru_python
