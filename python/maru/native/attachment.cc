#include "attachment.h"

#include "errors.h"

#include <atomic>
#include <pthread.h>

namespace py = pybind11;

namespace maru_python {
namespace {

std::atomic<unsigned> forks_seen{0};

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void note_fork() { forks_seen.fetch_add(1, std::memory_order_relaxed); }  // the child has one thread, this one

}  // namespace

unsigned forks() { return forks_seen.load(std::memory_order_relaxed); }

void watch_forks() { pthread_atfork(nullptr, nullptr, note_fork); }

void Attachment::refuse() const {
  if (forks_ != forks())
    raise_named("ForkedError",
                "This was made before fork(), and the child has none of it: make a Client of its own in the child, or call "
                "connect() there of a MaruHandler.");
  raise_named("ClosedError", "The client is closed: make a new Client.");
}

// maru_before_unmap waits for a call that is under way, which wants the GIL.
uintptr_t Attachment::before_unmap(py::object call) {
  maru_client* const client = open();
  const bool is_wanted = !call.is_none();
  const py::object before = std::exchange(before_unmap_, is_wanted ? std::move(call) : py::object());
  void* pages = nullptr;
  int status = 0;
  begin_use();
  {
    const WithoutGil released;
    status = maru_before_unmap(client, is_wanted ? &Attachment::end_foreign_use : nullptr, this, &pages);
  }
  end_use();
  if (status != 0) before_unmap_ = py::object();
  check(status, "maru_before_unmap");
  return reinterpret_cast<uintptr_t>(pages);
}

// The session thread calls this, or the thread that detaches, which has given up the GIL.
void Attachment::end_foreign_use(void* attachment) {
  if (is_finalizing()) return;  // a thread that asked for the GIL now would never come back
  const PyGILState_STATE state = PyGILState_Ensure();
  {
    const py::object call = std::exchange(static_cast<Attachment*>(attachment)->before_unmap_, py::object());
    if (call && !py::reinterpret_steal<py::object>(PyObject_CallNoArgs(call.ptr()))) PyErr_WriteUnraisable(call.ptr());
  }
  PyGILState_Release(state);
}

void Attachment::close() {
  is_closed_ = true;
  if (uses_ == 0) detach();
}

void Attachment::end_use() {
  if (--uses_ == 0 && is_closed_) detach();
}

void Attachment::detach() {
  is_closed_ = true;
  maru_client* client = std::exchange(client_, nullptr);
  if (client == nullptr) return;
  // Waits for marud's answer, and for the session thread.
  const WithoutGil released;
  maru_detach(client);
}

}  // namespace maru_python
