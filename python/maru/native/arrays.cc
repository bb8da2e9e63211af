#include "arrays.h"

#include <cstring>
#include <pybind11/numpy.h>

namespace py = pybind11;

namespace maru_python {
namespace {

using NumPy = py::detail::npy_api;

// NumPy's functions. pybind11 before 2.12 looks them up while it initializes a static variable, for which other threads wait
// with the GIL in hand: no Python code may run meanwhile, so the module that it asks is imported before.
const NumPy& numpy() {
  static const NumPy* found = nullptr;
  if (found != nullptr) return *found;
#if PYBIND11_VERSION_HEX < 0x020C0000
  py::module_::import("numpy.core.multiarray");
#endif
  return *(found = &NumPy::get());
}

// A new array of n items of a type of NumPy's, not set.
py::object new_array(int type, Py_ssize_t n, void** ret_data) {
  const NumPy& api = numpy();
  // Takes the reference to the description. The strides are NumPy's to find.
  PyObject* const made = api.PyArray_NewFromDescr_(api.PyArray_Type_, api.PyArray_DescrFromType_(type), 1, &n, nullptr,
                                                   nullptr, 0, nullptr);
  if (made == nullptr) throw py::error_already_set();
  *ret_data = py::detail::array_proxy(made)->data;
  return py::reinterpret_steal<py::object>(made);
}

// Of the one NumPy that is loaded; never given back.
PyTypeObject* array_type = nullptr;

bool is_array(py::handle object) {
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (type == array_type) return true;
  if (array_type != nullptr || std::strcmp(type->tp_name, "numpy.ndarray") != 0) return false;
  array_type = numpy().PyArray_Type_;
  return type == array_type;
}

}  // namespace

std::optional<PlainArray> plain_array(py::handle object, bool is_bool) {
  if (!is_array(object)) return std::nullopt;
  const auto* const array = py::detail::array_proxy(object.ptr());
  const int number = py::detail::array_descriptor_proxy(array->descr)->type_num;
  if (number != NumPy::NPY_UBYTE_ && !(is_bool && number == NumPy::NPY_BOOL_)) return std::nullopt;
  if ((array->flags & NumPy::NPY_ARRAY_C_CONTIGUOUS_) == 0) return std::nullopt;
  return PlainArray{reinterpret_cast<uint8_t*>(array->data), array->nd, array->dimensions,
                    (array->flags & NumPy::NPY_ARRAY_WRITEABLE_) != 0};
}

// pybind11's own takes it for a mistake of the program when there is no memory.
py::list new_list(size_t n) {
  PyObject* const made = PyList_New(Py_ssize_t(n));
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::list>(made);
}

// Without the GIL a list keeps its items in a structure that Python allocates with its own size in front. Nothing else here is
// made for that either: what belongs to an attachment is counted, and lists that others hold are read, under the GIL.
#ifdef Py_GIL_DISABLED
#error "maru's binding needs the GIL: build it for a usual CPython, not for a free-threaded one (python3.13t)."
#endif

py::list new_unfilled_list(size_t n) {
  py::list made = new_list(0);
  auto* const list = reinterpret_cast<PyListObject*>(made.ptr());
  if (n > size_t(PY_SSIZE_T_MAX) / sizeof(PyObject*)) throw std::bad_alloc();
  list->ob_item = static_cast<PyObject**>(PyMem_Malloc(n * sizeof(PyObject*)));
  if (list->ob_item == nullptr) throw std::bad_alloc();
  list->allocated = Py_ssize_t(n);
  Py_SET_SIZE(list, Py_ssize_t(n));
  return made;
}

bool has_numpy() {
  try {
    numpy();
    return true;
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError)) throw;
    return false;
  }
}

py::object new_truths(Py_ssize_t n, uint8_t** ret_data) {
  void* data = nullptr;
  py::object made = new_array(NumPy::NPY_BOOL_, n, &data);
  *ret_data = static_cast<uint8_t*>(data);
  return made;
}

py::object new_numbers(Py_ssize_t n, uint64_t** ret_data) {
  void* data = nullptr;
  py::object made = new_array(NumPy::NPY_UINT64_, n, &data);
  *ret_data = static_cast<uint64_t*>(data);
  return made;
}

}  // namespace maru_python
