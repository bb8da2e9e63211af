#include "finder.h"

#include "errors.h"
#include "fast_calls.h"
#include "method.h"

#include <string>
#include <structmember.h>

namespace py = pybind11;

namespace maru_python {
namespace {

PyTypeObject* client_type = nullptr;  // never given back, as the module

// A slot of the class Finder.
class Slot {
 public:
  explicit Slot(const char* name) : name_(name) {}
  void find(py::handle finder_type) {
    offset_ = reinterpret_cast<PyMemberDescrObject*>(finder_type.attr(name_).ptr())->d_member->offset;
  }
  // Raises AttributeError when it has no value.
  py::object of(PyObject* finder) const {
    PyObject* const value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(finder) + offset_);
    return value != nullptr ? py::reinterpret_borrow<py::object>(value) : py::handle(finder).attr(name_);
  }

 private:
  const char* name_;
  Py_ssize_t offset_ = 0;
};
Slot client_slot("_client"), tenant_slot("_tenant"), places_slot("_retrieved");

// What is raised is being handled, as in an `except` block of Python's, for as long as this lives.
class Handling {
 public:
  explicit Handling(const py::error_already_set& raised) {
    PyErr_GetExcInfo(&before_[0], &before_[1], &before_[2]);
    PyErr_SetExcInfo(py::object(raised.type()).release().ptr(), py::object(raised.value()).release().ptr(),
                     py::object(raised.trace()).release().ptr());
  }
  ~Handling() { PyErr_SetExcInfo(before_[0], before_[1], before_[2]); }
  Handling(const Handling&) = delete;
  Handling& operator=(const Handling&) = delete;

 private:
  PyObject* before_[3];
};

bool passes_over(PyObject* finder, const py::error_already_set& raised) {
  const Handling handling(raised);
  const int truth = PyObject_IsTrue(py::object(py::handle(finder).attr("_passes_over")(raised.value())).ptr());
  if (truth < 0) throw py::error_already_set();
  return truth != 0;
}

Client& expect_client(const py::object& object) {
  if (Py_TYPE(object.ptr()) != client_type && !PyObject_TypeCheck(object.ptr(), client_type))
    throw py::type_error(std::string("_client is a Client, not ") + Py_TYPE(object.ptr())->tp_name + ".");
  return client_of(object.ptr());
}

// A method of one argument: find(client, argument, tenant), or absent(argument) when it raises what the handler takes for
// absent. What it uses stays until its end, whoever closes or connects the handler meanwhile.
template <typename Find, typename Absent>
PyObject* found_by(PyObject* finder, const Signature& signature, PyObject* const* args, Py_ssize_t positional,
                   PyObject* kwnames, Find&& find, Absent&& absent) {
  PyObject* argument;
  if (!read_arguments(signature, args, positional, kwnames, &argument)) return nullptr;
  return guarded([&] {
    const py::object its_client = client_slot.of(finder);
    if (its_client.is_none()) py::handle(finder).attr("_refuse")();
    Client& client = expect_client(its_client);
    const py::object tenant = tenant_slot.of(finder);
    try {
      return find(client, argument, tenant).release().ptr();
    } catch (const py::error_already_set& raised) {
      if (!is_unreadable(raised) || !passes_over(finder, raised)) throw;
      return absent(argument).release().ptr();
    }
  });
}

PyObject* finder_exists(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  return found_by(
      self, {"exists", 1, 1, {"key"}}, args, positional, kwnames,
      [](const Client& client, py::handle key, py::handle tenant) {
        return py::bool_(client.exists(key, tenant, KeyForm::kHandler));
      },
      [](py::handle) { return py::bool_(false); });
}

PyObject* batch_exists(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  return found_by(
      self, {"batch_exists", 1, 1, {"keys"}}, args, positional, kwnames,
      [](const Client& client, py::handle keys, py::handle tenant) {
        return client.exists_batch(keys, tenant, py::none(), KeyForm::kHandler);
      },
      [](py::handle keys) {
        const Py_ssize_t n = PyObject_Size(keys.ptr());
        if (n < 0) {  // an iterator, which has ended by now
          if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
          PyErr_Clear();
          throw;  // what was raised
        }
        return py::list(py::make_tuple(false)) * py::int_(n);
      });
}

PyObject* finder_retrieve(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  return found_by(
      self, {"retrieve", 1, 1, {"key"}}, args, positional, kwnames,
      [self](const Client& client, py::handle key, py::handle tenant) {
        return client.find(key, tenant, places_slot.of(self));
      },
      [](py::handle) { return py::none(); });
}

PyMethodDef finder_methods[] = {
    definition<finder_exists>("exists", "exists($self, key)\n--\n\nWhether the value is there."),
    definition<batch_exists>("batch_exists", "batch_exists($self, keys)\n--\n\nOf every key, also behind absent ones."),
    definition<finder_retrieve>("retrieve", "retrieve($self, key)\n--\n\nNone when the value is absent."),
};

}  // namespace

void define_finder(py::module_& module) {
  client_type = reinterpret_cast<PyTypeObject*>(py::object(module.attr("Client")).release().ptr());
  py::dict contents;
  contents["__slots__"] = py::make_tuple("_client", "_tenant", "_retrieved");
  contents["__module__"] = "maru._maru";
  contents["__doc__"] = "The calls of MaruHandler that look for a value.";
  const py::object finder =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyType_Type))("Finder", py::tuple(), contents);
  for (Slot* slot : {&client_slot, &tenant_slot, &places_slot}) slot->find(finder);
  add_methods(finder, finder_methods);
  module.attr("Finder") = finder;
}

}  // namespace maru_python
