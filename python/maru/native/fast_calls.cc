#include "fast_calls.h"

#include "client.h"

#include <new>

namespace py = pybind11;

namespace maru_python {
namespace {

struct Signature {
  const char* call;
  size_t required;
  size_t names_count;
  const char* names[3];
};

// Fills ret_values from what Python was called with; what was not given is None. False, with a TypeError, when that does not
// fit.
bool read_arguments(const Signature& signature, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames,
                    PyObject** ret_values) {
  if (size_t(positional) > signature.names_count) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments, %zd were given", signature.call,
                 signature.names_count, positional);
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

// The method descriptor has seen to it that this is a Client; but its __init__ may not have been called.
Client& client_of(PyObject* self) {
  auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  void* const value = instance->simple_layout ? instance->simple_value_holder[0] : nullptr;
  return value != nullptr ? *static_cast<Client*>(value)
                          : py::cast<Client&>(py::handle(self));  // zeros, see ZeroedMemory
}

template <typename Call>
PyObject* guarded(Call&& call) {
  try {
    return call();
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const py::builtin_exception& raised) {
    raised.set_error();
  } catch (const std::exception& raised) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, raised.what());
  }
  return nullptr;
}

PyObject* exists(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  static constexpr Signature kSignature{"exists", 1, 2, {"key", "tenant", nullptr}};
  PyObject* given[2];
  if (!read_arguments(kSignature, args, positional, kwnames, given)) return nullptr;
  return guarded([&] { return PyBool_FromLong(client_of(self).exists(given[0], given[1])); });
}

PyObject* retrieve(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  static constexpr Signature kSignature{"retrieve", 1, 2, {"key", "tenant", nullptr}};
  PyObject* given[2];
  if (!read_arguments(kSignature, args, positional, kwnames, given)) return nullptr;
  return guarded([&] { return client_of(self).retrieve(given[0], given[1]).release().ptr(); });
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

template <PyObject* (*call)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)>
PyMethodDef definition(const char* name, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL | METH_KEYWORDS, text};
}

PyMethodDef methods[] = {
    definition<exists>("exists", "exists($self, key, tenant=None)\n--\n\nWhether a block is there."),
    definition<retrieve>("retrieve", "retrieve($self, key, tenant=None)\n--\n\nA View, or None."),
    definition<find>("_find", "_find($self, key, tenant, places)\n--\n\nA MemoryInfo, or None."),
    definition<exists_batch>("exists_batch",
                             "exists_batch($self, keys, tenant=None, out=None)\n--\n\nWhether each block is there."),
};

}  // namespace

void define_fast_calls(py::handle client_type) {
  for (PyMethodDef& method : methods) {
    PyObject* const descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(client_type.ptr()), &method);
    if (descriptor == nullptr) throw py::error_already_set();
    client_type.attr(method.ml_name) = py::reinterpret_steal<py::object>(descriptor);
  }
}

}  // namespace maru_python
