#include "errors.h"

namespace py = pybind11;

namespace maru_python {
namespace {

[[noreturn]] void throw_exception(const py::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw py::error_already_set();
}

// Imported once, with this module, and never given back: when the interpreter ends nothing can be imported any more.
py::handle errors() {
  static PyObject* const module = py::module_::import("maru.errors").release().ptr();
  return module;
}

}  // namespace

void load_errors() { errors(); }

py::object exception_of(int status, const char* call) { return errors().attr("error_for")(-status, call); }

bool is_unreadable(const py::error_already_set& raised) { return raised.matches(errors().attr("UNREADABLE")); }

void raise(int status, const char* call) { throw_exception(exception_of(status, call)); }

void raise_with(int status, const char* call, const char* name, const py::object& value) {
  const py::object exception = exception_of(status, call);
  exception.attr(name) = value;
  throw_exception(exception);
}

void raise_named(const char* exception, const std::string& sentence) {
  throw_exception(errors().attr(exception)(sentence));
}

}  // namespace maru_python
