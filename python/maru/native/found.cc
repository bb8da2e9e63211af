#include "found.h"

#include "keys.h"
#include "method.h"
#include "pins.h"

#include <cstddef>
#include <new>
#include <structmember.h>

namespace py = pybind11;

namespace maru_python {
namespace {

struct InfoObject {
  PyObject_HEAD std::shared_ptr<Hold> hold;  // null: a program made this itself, and only `data` and `stay` are set
  maru_view view;
  PyObject* data;    // the memoryview
  PyObject* key;     // under which it was found
  PyObject* places;  // a Retrieved of maru/places.py
  PyObject* stay;    // its Stay there, or null until a program asks for it; a Standing when a program made this itself
  PyObject* weak_references;
};

PyTypeObject* info_type = nullptr;  // never given back: the module lives as long as the interpreter

InfoObject& info_of(PyObject* self) { return *reinterpret_cast<InfoObject*>(self); }

void deallocate_info(PyObject* self) {
  InfoObject& info = info_of(self);
  if (info.weak_references != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(info.stay);
  Py_CLEAR(info.data);
  Py_CLEAR(info.key);
  Py_CLEAR(info.places);
  info.hold.~shared_ptr();
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// An attribute of the Stay, which is entered when this is first asked for.
PyObject* of_stay(PyObject* self, void* name) {
  InfoObject& info = info_of(self);
  try {
    if (info.hold) info.hold->attachment()->show();
    if (info.stay == nullptr) {
      py::object made = py::handle(info.places).attr("enter")(new_view(info.hold, info.view), py::handle(info.key));
      if (info.stay == nullptr) info.stay = made.release().ptr();  // another thread's may have come meanwhile
    }
  } catch (py::error_already_set& raised) {
    raised.restore();
    return nullptr;
  }
  return PyObject_GetAttrString(info.stay, static_cast<const char*>(name));
}

PyObject* view_of(PyObject* self, void*) {
  InfoObject& info = info_of(self);
  try {
    if (info.hold) info.hold->attachment()->show();
  } catch (py::error_already_set& raised) {
    raised.restore();
    return nullptr;
  }
  return Py_NewRef(info.data);
}

PyObject* represent(PyObject* self) {
  return PyUnicode_FromFormat("MemoryInfo(%llu bytes)", static_cast<unsigned long long>(info_of(self).view.bytes));
}

Py_ssize_t info_length(PyObject* self) { return static_cast<Py_ssize_t>(info_of(self).view.bytes); }

char region_id[] = "region_id";
char page_index[] = "page_index";
char kv_offset[] = "kv_offset";

// For programs that stand in for a handler: a MemoryInfo of memory that they have.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static char view_name[] = "view";
  static char* const names[] = {view_name, region_id, page_index, kv_offset, nullptr};
  PyObject* memory = nullptr;
  PyObject* numbers[3] = {nullptr, nullptr, nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO:MemoryInfo", const_cast<char**>(names), &memory, &numbers[0],
                                   &numbers[1], &numbers[2]))
    return nullptr;
  try {
    const auto data = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(memory));
    if (!data) throw py::error_already_set();
    py::tuple place(3);
    for (size_t i = 0; i < 3; ++i)
      place[i] = numbers[i] == nullptr ? 0 : number_of(numbers[i], names[i + 1], UINT64_MAX);
    py::object stay = py::module_::import("maru.places").attr("Standing")(*place);
    PyObject* const self = type->tp_alloc(type, 0);
    if (self == nullptr) throw py::error_already_set();
    InfoObject& info = info_of(self);
    new (&info.hold) std::shared_ptr<Hold>();
    info.view.bytes = static_cast<uint64_t>(PyMemoryView_GET_BUFFER(data.ptr())->len);
    info.data = data.inc_ref().ptr();
    info.stay = stay.release().ptr();
    return self;
  } catch (py::error_already_set& raised) {
    raised.restore();
    return nullptr;
  }
}

PyGetSetDef properties[] = {
    {"view", view_of, nullptr, nullptr, nullptr},        {region_id, of_stay, nullptr, nullptr, region_id},
    {page_index, of_stay, nullptr, nullptr, page_index}, {kv_offset, of_stay, nullptr, nullptr, kv_offset},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(InfoObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A block that was found: `view` shows it, read-only. The block stays pinned for as "
                                  "long as this, `view`, or an array or tensor made from `view` lives.")},
    {Py_tp_new, slot(make)},
    {Py_tp_dealloc, slot(deallocate_info)},
    {Py_tp_repr, slot(represent)},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_sq_length, slot(info_length)},
    {0, nullptr},
};
constexpr unsigned kInfoFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE;
PyType_Spec spec = {"maru.MemoryInfo", sizeof(InfoObject), 0, kInfoFlags, slots};

}  // namespace

py::object new_memory_info(std::shared_ptr<Hold> hold, const maru_view& view, py::object key, py::handle places) {
  // Made at once, not when asked for: it keeps the memory mapped beyond a close() of the handler.
  py::object data = view_of_pages(hold, const_cast<void*>(view.data), view.bytes);
  PyObject* const self = info_type->tp_alloc(info_type, 0);
  if (self == nullptr) throw py::error_already_set();
  InfoObject& info = info_of(self);
  new (&info.hold) std::shared_ptr<Hold>(std::move(hold));
  info.view = view;
  info.data = data.release().ptr();
  info.key = key.release().ptr();
  info.places = places.inc_ref().ptr();
  return py::reinterpret_steal<py::object>(self);
}

void define_memory_info(py::module_& module) {
  info_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (info_type == nullptr) throw py::error_already_set();
  module.attr("MemoryInfo") = py::handle(reinterpret_cast<PyObject*>(info_type));
}

}  // namespace maru_python
