#include "handler_keys.h"

#include "arguments.h"
#include "records.h"

#include <string>
#include <string_view>

namespace py = pybind11;

namespace maru_python {
namespace {

constexpr std::string_view kEmpty =
    "\xff\xfe"
    "empty";
constexpr std::string_view kInteger =
    "\xff\xfe"
    "int";
constexpr size_t kBytesMax = 4096;  // of a key

py::object key_of_small(long long value) {
  std::string bytes(kInteger);
  do {
    bytes.push_back(static_cast<char>(value & 0xff));
    value >>= 8;
    // The highest bit that is written says the sign.
  } while (value != (static_cast<signed char>(bytes.back()) < 0 ? -1 : 0));
  return py::bytes(bytes);
}

// Of an integer that has more than 64 bits. Calls the methods of int itself: a derived class may have others.
py::object key_of_large(py::handle value, bool is_negative) {
  const auto integer = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyLong_Type));
  const py::object magnitude = is_negative ? integer.attr("__invert__")(value) : integer.attr("__pos__")(value);
  const size_t bytes = magnitude.attr("bit_length")().cast<size_t>() / 8 + 1;  // with room for the sign
  std::string key(kInteger);
  key += integer.attr("to_bytes")(value, bytes, "little", py::arg("signed") = true).cast<std::string>();
  if (key.size() <= kBytesMax) return py::bytes(key);
  const py::object hash = py::module_::import("hashlib").attr("blake2b")(py::bytes(key), py::arg("digest_size") = 32);
  const py::bytes digest = hash.attr("digest")();
  return digest_of(static_cast<std::string>(digest).data(), 32);
}

// Null when this is no integer. An array of NumPy passes for one until it is asked which.
py::object integer_of(py::handle key) {
  PyObject* const o = key.ptr();
  if (is_truth(key)) return {};
  if (PyLong_Check(o)) return py::reinterpret_borrow<py::object>(key);
  if (!PyIndex_Check(o) || py::hasattr(py::type::of(key), "__len__")) return {};
  auto whole = py::reinterpret_steal<py::object>(PyNumber_Index(o));
  if (!whole) throw py::error_already_set();
  return whole;
}

}  // namespace

py::object client_key(py::handle key) {
  PyObject* const o = key.ptr();
  const bool is_empty =
      (PyUnicode_Check(o) && PyUnicode_GET_LENGTH(o) == 0) ||
      (PyBytes_Check(o) && PyBytes_GET_SIZE(o) == 0 && !py::type::handle_of(key).is(class_of(Record::kDigest)));
  if (is_empty) return py::bytes(kEmpty.data(), kEmpty.size());
  if (PyUnicode_Check(o) || PyBytes_Check(o)) return py::reinterpret_borrow<py::object>(key);
  const py::object whole = integer_of(key);
  if (!whole) return py::reinterpret_borrow<py::object>(key);
  int is_beyond = 0;
  const long long value = PyLong_AsLongLongAndOverflow(whole.ptr(), &is_beyond);
  if (is_beyond != 0) return key_of_large(whole, is_beyond < 0);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return key_of_small(value);
}

}  // namespace maru_python
