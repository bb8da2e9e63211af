#include "records.h"

#include <iterator>

namespace py = pybind11;

namespace maru_python {
namespace {

constexpr const char* kNames[] = {"Digest",     "BlockInfo", "EvictedKey",  "Geometry",
                                  "Statistics", "Stored",    "StoredBatch", "StoredChain"};
static_assert(std::size(kNames) == size_t(Record::kStoredChain) + 1);
PyObject* classes[std::size(kNames)];  // never given back

// As the tuple or the bytes that it is, which costs a fraction of what its class would do in Python. contents: a new reference.
py::object made_as(PyTypeObject& base, Record record, PyObject* contents) {
  const auto owned = py::reinterpret_steal<py::object>(contents);
  if (!owned) throw py::error_already_set();
  const auto arguments = py::reinterpret_steal<py::object>(PyTuple_Pack(1, owned.ptr()));
  if (!arguments) throw py::error_already_set();
  PyObject* const made = base.tp_new(reinterpret_cast<PyTypeObject*>(class_of(record).ptr()), arguments.ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

void load_records() {
  const py::module_ module = py::module_::import("maru.records");
  for (size_t i = 0; i < std::size(kNames); ++i) classes[i] = py::object(module.attr(kNames[i])).release().ptr();
}

py::handle class_of(Record record) { return classes[size_t(record)]; }

py::object record(Record record, PyObject* values) { return made_as(PyTuple_Type, record, values); }

py::object digest_of(const void* data, size_t size) {
  return made_as(PyBytes_Type, Record::kDigest, py::bytes(static_cast<const char*>(data), size).release().ptr());
}

}  // namespace maru_python
