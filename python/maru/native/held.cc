#include "held.h"

#include "arrays.h"
#include "errors.h"
#include "keys.h"
#include "pins.h"

#include <utility>

namespace py = pybind11;

namespace maru_python {

BufferHold& Buffer::held() const {
  if (hold_) hold_->attachment()->open();
  if (hold_ && hold_->state == BufferHold::State::kBusy)
    raise_named("ClosedError",
                "This buffer is being stored: it is there twice in this batch, or another thread stores it too.");
  if (!is_held()) raise_named("ClosedError", "This buffer was stored or aborted: allocate another one.");
  return *hold_;
}

py::object Buffer::data() {
  held();
  if (data_ && is_released(data_)) {
    const py::object ended = std::exchange(data_, py::object());
    if (Py_REFCNT(ended.ptr()) > 1) ended_.push_back(ended);  // somebody may still write through it
  }
  const BufferHold& hold = held();  // what was called when the old one went may have stored or aborted the buffer
  if (!data_) data_ = view_of_pages(hold_, hold.buffer().data, hold.buffer().bytes);
  return data_;
}

// Some libraries (torch.frombuffer) refer to our memoryview and are no export of it: its release() would succeed and leave them
// writing, into a published block and then into memory that is gone. So it may have no other reference.
void Buffer::take_views_back() {
  for (py::object& view : std::exchange(ended_, {}))
    if (Py_REFCNT(view.ptr()) > 1) ended_.push_back(std::move(view));
  if (data_ && Py_REFCNT(data_.ptr()) == 1) data_ = py::object();
  if (data_ || !ended_.empty() || hold_->exports() != 0)
    raise_named(
        "ViewsHeldError",
        "A variable, an array or a tensor still refers to this buffer's data, and could write into a block that "
        "others read: delete it first (del), or say keep_views=True when nobody will write through it any more.");
}

const maru_buffer& Buffer::begin_store(bool keep_views) {
  BufferHold& hold = held();
  // Before the views go: that may call what somebody wants called then, which may abort a buffer that is not busy.
  hold.state = BufferHold::State::kBusy;
  try {
    if (keep_views)
      let_views_read();
    else
      take_views_back();
  } catch (...) {
    end_store(false);
    throw;
  }
  return hold.buffer();
}

// Drops our own reference.
void Buffer::let_views_read() {
  if (!data_) return;
  if (Py_REFCNT(data_.ptr()) > 1) {
    shown_ = py::reinterpret_steal<py::object>(PyWeakref_NewRef(data_.ptr(), nullptr));
    if (!shown_) throw py::error_already_set();
    set_read_only(data_, true);
  }
  data_ = py::object();
}

// What was not stored is the caller's again, with the memoryview that it had.
void Buffer::let_views_write() {
  const py::object shown = std::exchange(shown_, py::object());
  if (!shown) return;
  const auto view = py::reinterpret_borrow<py::object>(PyWeakref_GET_OBJECT(shown.ptr()));
  if (view.is_none()) return;
  set_read_only(view, false);
  data_ = view;
}

void Buffer::end_store(bool is_used_up) {
  hold_->state = is_used_up ? BufferHold::State::kUsedUp : BufferHold::State::kHeld;
  if (!is_used_up) let_views_write();
}

void Buffer::end_shared_store(const maru_view& view) {
  if (view.block != 0)
    hold_->keep_pinned(view);
  else
    hold_->state = BufferHold::State::kLeftOver;
  shown_ = py::object();
  hold_.reset();  // what is held now is held by the views
}

void Buffer::abort() {
  if (!is_held()) return;  // also while another thread stores it
  data_ = py::object();
  hold_.reset();
}

py::list Match::resolve(py::handle keys, py::handle tenant) {
  if (hold_ == nullptr) raise_named("ClosedError", "This match was released: match again.");
  const std::shared_ptr<MatchHold> hold = hold_;  // also if it is released meanwhile
  const Use use(*hold->attachment());
  const KeyBatch batch(keys, tenant_of(use.client(), tenant));
  const size_t n = std::min(batch.size(), blocks_);
  std::vector<maru_view> views(n);
  int status = 0;
  {
    const WithoutGil released;
    status = maru_resolve(use.client(), &hold->match(), batch.data(), n, views.data());
  }
  check(status, "maru_resolve");
  py::list result = new_list(n);
  for (size_t i = 0; i < n; ++i) PyList_SET_ITEM(result.ptr(), Py_ssize_t(i), new_view(hold, views[i]).release().ptr());
  return result;
}

void define_held(py::module_& module) {
  py::class_<Buffer>(module, "Buffer", "Pages to fill, for one block.")
      .def_property_readonly("block", &Buffer::block)
      .def_property_readonly("nbytes", &Buffer::bytes)
      .def_property_readonly("is_held", &Buffer::is_held)
      .def_property_readonly("data", &Buffer::data)
      .def("abort", &Buffer::abort)
      .def("__len__", &Buffer::bytes)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Buffer& self, const py::args&) { self.abort(); });
  py::class_<Match>(module, "Match", "The leading keys that are present, held together.")
      .def_property_readonly("blocks", &Match::blocks)
      .def_property_readonly("deepest", &Match::deepest)
      .def_property_readonly("is_held", &Match::is_held)
      .def("resolve", &Match::resolve, py::arg("keys"), py::arg("tenant") = py::none())
      .def("release", &Match::release)
      .def("__len__", &Match::blocks)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Match& self, const py::args&) { self.release(); });
}

}  // namespace maru_python
