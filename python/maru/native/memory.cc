#include "memory.h"

#include "errors.h"
#include "method.h"

#include <new>

namespace py = pybind11;

namespace maru_python {

void Hold::begin_export() {
  attachment_->open();
  if (!has_pages()) raise_named("ClosedError", "This buffer was stored: allocate another one.");
  attachment_->begin_use();
  ++exports_;
}

void Hold::end_export() {
  --exports_;
  attachment_->end_use();
}

// In a child of fork() the library refuses all of these, which is as good: the child holds nothing.
PinHold::~PinHold() {
  if (view_.block == 0) return;
  attachment()->give_back(false, [&](maru_client* client) { maru_release(client, &view_); });
}

std::optional<maru_view> PinHold::take_pin() {
  const maru_view view = view_;
  view_.block = 0;
  return view;
}

// Blocks that are no chain have a pin each.
MatchHold::~MatchHold() {
  attachment()->give_back(match_.pins != nullptr, [&](maru_client* client) { maru_release_match(client, &match_); });
}

// Aborting may wait for a thread that looks for memory.
BufferHold::~BufferHold() {
  const bool aborts = state == State::kHeld || state == State::kLeftOver;
  if (!aborts && state != State::kPinned) return;
  attachment()->give_back(
      aborts, [&](maru_client* client) { aborts ? maru_abort(client, &buffer_) : maru_release(client, &view_); });
}

namespace {

struct PagesObject {
  PyObject_HEAD std::shared_ptr<Hold> hold;
  void* data;
  uint64_t bytes;
};

PyTypeObject* pages_type = nullptr;  // never given back: the module lives as long as the interpreter

PagesObject& pages_of(PyObject* self) { return *reinterpret_cast<PagesObject*>(self); }

void deallocate_pages(PyObject* self) {
  pages_of(self).hold.~shared_ptr();
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

int get_buffer(PyObject* self, Py_buffer* ret_buffer, int flags) {
  const PagesObject& pages = pages_of(self);
  ret_buffer->obj = nullptr;
  try {
    pages.hold->begin_export();
  } catch (py::error_already_set& raised) {
    raised.restore();
    return -1;
  }
  if (PyBuffer_FillInfo(ret_buffer, self, pages.data, static_cast<Py_ssize_t>(pages.bytes), !pages.hold->is_writable(),
                        flags) == 0)
    return 0;
  pages.hold->end_export();
  return -1;
}

void release_buffer(PyObject* self, Py_buffer*) { pages_of(self).hold->end_export(); }

PyType_Slot pages_slots[] = {
    {Py_tp_doc, const_cast<char*>("What a memoryview of a block refers to.")},
    {Py_tp_dealloc, slot(deallocate_pages)},
    {Py_bf_getbuffer, slot(get_buffer)},
    {Py_bf_releasebuffer, slot(release_buffer)},
    {0, nullptr},
};
PyType_Spec pages_spec = {"maru._maru.Pages", sizeof(PagesObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, pages_slots};

}  // namespace

py::object view_of_pages(std::shared_ptr<Hold> hold, void* data, uint64_t bytes) {
  PyObject* const self = pages_type->tp_alloc(pages_type, 0);
  if (self == nullptr) throw py::error_already_set();
  const auto owned = py::reinterpret_steal<py::object>(self);
  PagesObject& pages = pages_of(self);
  new (&pages.hold) std::shared_ptr<Hold>(std::move(hold));
  pages.data = data;
  pages.bytes = bytes;
  PyObject* const view = PyMemoryView_FromObject(self);
  if (view == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(view);
}

void define_pages(py::module_& module) {
  pages_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&pages_spec));
  if (pages_type == nullptr) throw py::error_already_set();
  module.attr("Pages") = py::handle(reinterpret_cast<PyObject*>(pages_type));
}

}  // namespace maru_python
