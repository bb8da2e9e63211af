#include "arguments.h"

#include "errors.h"

#include <cstring>
#include <string>

namespace py = pybind11;

namespace maru_python {
namespace {

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

bool is_truth_of_numpy(py::handle value) {
  const char* const name = Py_TYPE(value.ptr())->tp_name;
  return std::strcmp(name, "numpy.bool_") == 0 || std::strcmp(name, "numpy.bool") == 0;  // before NumPy 2, and since
}

}  // namespace

bool is_truth(py::handle value) { return PyBool_Check(value.ptr()) || is_truth_of_numpy(value); }

bool flag_of(py::handle value, const char* name) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (!is_truth_of_numpy(value))
    raise_named("InvalidArgumentError", std::string(name) + " is True or False, not " + type_name(value) + ".");
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth == 1;
}

Buffer& buffer_of(py::handle value) {
  if (!py::isinstance<Buffer>(value))
    raise_named("InvalidArgumentError",
                "A buffer of alloc or alloc_batch is wanted, not " + type_name(value) + ": store_copy takes bytes.");
  return value.cast<Buffer&>();
}

}  // namespace maru_python
