#include "pins.h"

#include "errors.h"
#include "keys.h"
#include "method.h"

#include <cstddef>
#include <new>
#include <span>
#include <structmember.h>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace maru_python {
namespace {

struct PinObject {
  PyObject_HEAD std::shared_ptr<Hold> hold;  // null once released
  maru_view view;
  PyObject* data;  // the memoryview that was asked for, or null
  PyObject* weak_references;
};

// From so many on, releasing takes more than a microsecond.
constexpr size_t kManyReleased = 16;

PyTypeObject* pin_type = nullptr;  // never given back: the module lives as long as the interpreter
PyTypeObject* view_type = nullptr;

PinObject& pin_of(PyObject* self) { return *reinterpret_cast<PinObject*>(self); }

py::object new_object(PyTypeObject* type, std::shared_ptr<Hold> hold, const maru_view& view) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) throw py::error_already_set();
  PinObject& pin = pin_of(self);
  new (&pin.hold) std::shared_ptr<Hold>(std::move(hold));
  pin.view = view;
  return py::reinterpret_steal<py::object>(self);
}

void let_go(PinObject& pin) {
  Py_CLEAR(pin.data);
  pin.hold.reset();
}

void deallocate_pin(PyObject* self) {
  PinObject& pin = pin_of(self);
  if (pin.weak_references != nullptr) PyObject_ClearWeakRefs(self);
  let_go(pin);
  pin.hold.~shared_ptr();
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* block(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(pin_of(self).view.block); }
PyObject* nbytes(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(pin_of(self).view.bytes); }
PyObject* is_held(PyObject* self, void*) { return PyBool_FromLong(pin_of(self).hold != nullptr); }
Py_ssize_t pin_length(PyObject* self) { return static_cast<Py_ssize_t>(pin_of(self).view.bytes); }

void expect_pin(PyObject* object) {
  if (!PyObject_TypeCheck(object, pin_type))
    raise_named("InvalidArgumentError",
                "A Pin or a View is wanted, not " + std::string(Py_TYPE(object)->tp_name) + ".");
}

// Read-only; the same memoryview each time.
PyObject* data(PyObject* self, void*) {
  PinObject& pin = pin_of(self);
  try {
    if (pin.data != nullptr && is_released(pin.data)) Py_CLEAR(pin.data);  // which may call what releases this view
    if (pin.hold == nullptr) raise_named("ClosedError", "This view was released: retrieve the block again.");
    pin.hold->attachment()->open();
    if (pin.data == nullptr) {
      py::object made = view_of_pages(pin.hold, const_cast<void*>(pin.view.data), pin.view.bytes);
      if (pin.data == nullptr) pin.data = made.release().ptr();  // another thread's may have come meanwhile
    }
  } catch (py::error_already_set& raised) {
    raised.restore();
    return nullptr;
  }
  Py_INCREF(pin.data);
  return pin.data;
}

// A copy, which outlives the view.
PyObject* metadata(PyObject* self, void*) {
  const PinObject& pin = pin_of(self);
  try {
    if (pin.hold == nullptr) raise_named("ClosedError", "This block was released: find it again.");
    maru_metadata found{};
    check(maru_view_metadata(pin.hold->attachment()->open(), &pin.view, &found), "maru_view_metadata");
    return PyBytes_FromStringAndSize(static_cast<const char*>(found.data), Py_ssize_t(found.bytes));
  } catch (py::error_already_set& raised) {
    raised.restore();
    return nullptr;
  }
}

PyObject* release(PyObject* self, PyObject*) {
  let_go(pin_of(self));
  Py_RETURN_NONE;
}

// Raises when memory of the view went bad while it was held.
PyObject* check_memory(PyObject* self, PyObject*) {
  const PinObject& pin = pin_of(self);
  try {
    if (pin.hold == nullptr) raise_named("ClosedError", "This view was released: ask before that.");
    check(maru_view_error(pin.hold->attachment()->open(), &pin.view), "maru_view_error");
  } catch (py::error_already_set& raised) {
    raised.restore();
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* enter(PyObject* self, PyObject*) {
  Py_INCREF(self);
  return self;
}

PyMethodDef pin_methods[] = {
    {"release", release, METH_NOARGS, "release($self)\n--\n\nLets go."},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", release, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef view_methods[] = {
    {"check_memory", check_memory, METH_NOARGS,
     "check_memory($self)\n--\n\nRaises BadMemoryError when what was read of it may be zeros."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef pin_properties[] = {
    {"block", block, nullptr, nullptr, nullptr},     {"nbytes", nbytes, nullptr, nullptr, nullptr},
    {"is_held", is_held, nullptr, nullptr, nullptr}, {"metadata", metadata, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyGetSetDef view_properties[] = {
    {"data", data, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMemberDef pin_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PinObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot pin_slots[] = {
    {Py_tp_doc, const_cast<char*>("A block that is pinned; not mapped.")},
    {Py_tp_dealloc, slot(deallocate_pin)},
    {Py_tp_methods, pin_methods},
    {Py_tp_getset, pin_properties},
    {Py_tp_members, pin_members},
    {0, nullptr},
};
PyType_Slot view_slots[] = {
    {Py_tp_doc, const_cast<char*>("A block that is pinned, to be read in place.")},
    {Py_tp_methods, view_methods},
    {Py_tp_getset, view_properties},
    {Py_sq_length, slot(pin_length)},
    {0, nullptr},
};

constexpr unsigned kPinFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
PyType_Spec pin_spec = {"maru._maru.Pin", sizeof(PinObject), 0, kPinFlags | Py_TPFLAGS_BASETYPE, pin_slots};
PyType_Spec view_spec = {"maru._maru.View", sizeof(PinObject), 0, kPinFlags, view_slots};

}  // namespace

py::object new_pin(std::shared_ptr<Hold> hold, const maru_view& view) {
  return new_object(pin_type, std::move(hold), view);
}

py::object new_view(std::shared_ptr<Hold> hold, const maru_view& view) {
  return new_object(view_type, std::move(hold), view);
}

void release_pin(py::handle pin) {
  expect_pin(pin.ptr());
  let_go(pin_of(pin.ptr()));
}

void release_pins(Attachment& attachment, py::handle pins) {
  const py::object items = tuple_of(pins, "A batch wants a sequence of pins, not ");
  const std::span<PyObject* const> all(PySequence_Fast_ITEMS(items.ptr()), size_t(PyTuple_GET_SIZE(items.ptr())));
  for (PyObject* const item : all) expect_pin(item);
  std::vector<std::shared_ptr<Hold>> holds;
  std::vector<maru_view> views;
  holds.reserve(all.size());
  views.reserve(all.size());
  for (PyObject* const item : all) {
    Py_CLEAR(pin_of(item).data);  // which may call what releases others of these
    if (pin_of(item).hold != nullptr) holds.push_back(std::move(pin_of(item).hold));
  }
  for (const std::shared_ptr<Hold>& hold : holds) {
    if (hold.use_count() != 1 || hold->attachment().get() != &attachment) continue;
    if (const auto view = hold->take_pin()) views.push_back(*view);
  }
  attachment.give_back(views.size() >= kManyReleased,
                       [&](maru_client* client) { maru_release_batch(client, views.data(), views.size()); });
}

void define_pins(py::module_& module) {
  pin_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&pin_spec));
  if (pin_type == nullptr) throw py::error_already_set();
  const auto bases = py::make_tuple(py::handle(reinterpret_cast<PyObject*>(pin_type)));
  view_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpecWithBases(&view_spec, bases.ptr()));
  if (view_type == nullptr) throw py::error_already_set();
  pin_type->tp_flags &= ~Py_TPFLAGS_BASETYPE;  // nobody else's base
  module.attr("Pin") = py::handle(reinterpret_cast<PyObject*>(pin_type));
  module.attr("View") = py::handle(reinterpret_cast<PyObject*>(view_type));
}

}  // namespace maru_python
