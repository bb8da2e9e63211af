// Methods of Python's without pybind11's general dispatch, which costs more than a lookup.
#pragma once

#include <new>
#include <pybind11/pybind11.h>
#include <span>

namespace maru_python {

struct Signature {
  const char* call;
  size_t required;
  size_t names_count;
  const char* names[3];
};

// Fills ret_values from what Python was called with; what was not given is None. False, with a TypeError, when that does not
// fit.
bool read_arguments(const Signature& signature, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames,
                    PyObject** ret_values);

// call(), and null, with its exception set, when that throws.
template <typename Call>
PyObject* guarded(Call&& call) {
  try {
    return call();
  } catch (pybind11::error_already_set& raised) {
    raised.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const pybind11::builtin_exception& raised) {
    raised.set_error();
  } catch (const std::exception& raised) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, raised.what());
  }
  return nullptr;
}

using Method = PyObject*(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames);

// text: the signature as Python writes it in __text_signature__, and after it the docstring.
template <Method* method>
PyMethodDef definition(const char* name, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method)), METH_FASTCALL | METH_KEYWORDS,
          text};
}

// The methods have to stay for as long as the class.
void add_methods(pybind11::handle type, std::span<PyMethodDef> methods);

// A function as PyType_Slot holds it.
template <typename F>
void* slot(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace maru_python
