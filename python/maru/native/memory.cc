#include "memory.h"

#include "errors.h"

namespace py = pybind11;

namespace maru_python {

void Hold::begin_export() {
  attachment_->open();
  attachment_->begin_use();
  ++exports_;
}

void Hold::end_export() {
  --exports_;
  attachment_->end_use();
}

// In a child of fork() the library refuses all of these, which is as good: the child holds nothing.
PinHold::~PinHold() {
  if (maru_client* client = attachment()->attached()) maru_release(client, &view_);
}

MatchHold::~MatchHold() {
  if (maru_client* client = attachment()->attached()) maru_release_match(client, &match_);
}

BufferHold::~BufferHold() {
  maru_client* client = attachment()->attached();
  if (client == nullptr) return;
  if (state == State::kHeld || state == State::kLeftOver) maru_abort(client, &buffer_);
  if (state == State::kPinned) maru_release(client, &view_);
}

py::object Pages::view_of(std::shared_ptr<Hold> hold, void* data, uint64_t bytes, bool is_writable) {
  const py::object pages = py::cast(std::make_unique<Pages>(std::move(hold), data, bytes, is_writable));
  PyObject* view = PyMemoryView_FromObject(pages.ptr());
  if (view == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(view);
}

int Pages::get_buffer(PyObject* self, Py_buffer* ret_buffer, int flags) {
  ret_buffer->obj = nullptr;
  try {
    auto& pages = *py::cast<Pages*>(py::handle(self));
    pages.hold_->begin_export();
    if (PyBuffer_FillInfo(ret_buffer, self, pages.data_, static_cast<Py_ssize_t>(pages.bytes_), !pages.is_writable_,
                          flags) == 0)
      return 0;
    pages.hold_->end_export();
  } catch (py::error_already_set& raised) {
    raised.restore();
  }
  return -1;
}

void Pages::release_buffer(PyObject* self, Py_buffer*) {
  auto& pages = *py::cast<Pages*>(py::handle(self));
  pages.hold_->end_export();
}

void define_pages(py::module_& module) {
  py::class_<Pages>(module, "Pages", py::custom_type_setup([](PyHeapTypeObject* type) {
                      type->ht_type.tp_as_buffer = &type->as_buffer;
                      type->as_buffer.bf_getbuffer = Pages::get_buffer;
                      type->as_buffer.bf_releasebuffer = Pages::release_buffer;
                    }),
                    "What a memoryview of a block refers to.");
}

}  // namespace maru_python
