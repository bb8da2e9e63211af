// maru_follow* for maru/follow.py, which makes iterators of it: a module of its own, since a follower is no client.
#include "without_gil.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <maru/follow.h>
#include <memory>
#include <optional>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>

namespace py = pybind11;

namespace maru_python {
namespace {

constexpr size_t kEventsAtOnce = 256;

struct Close {
  void operator()(maru_follower* follower) const { maru_follow_close(follower); }
};

py::object bytes_or_none(const void* data, size_t size) {
  return size != 0 ? py::object(py::bytes(static_cast<const char*>(data), size)) : py::none();
}

// The fields of maru.follow.Event, in their order.
py::tuple fields_of(const maru_follow_event& event) {
  return py::make_tuple(event.kind, maru_follow_reason_name(event.reason), event.flags, event.depth, event.incarnation,
                        event.sequence, event.at_ms, event.block, event.parent,
                        bytes_or_none(event.key.data, event.key.size), event.key.kind, event.key.tenant,
                        event.tenant_name_bytes != 0
                            ? py::object(py::bytes(event.tenant_name, event.tenant_name_bytes))
                            : py::none(),
                        bytes_or_none(event.parent_key.data, event.parent_key.size), event.length, event.stored_ms,
                        event.expires_ms, bytes_or_none(event.metadata, event.metadata_bytes), event.content_type,
                        event.priority);
}

// next() and close() are called with the lock of maru.follow.Follower held; wake() is not.
class Follower {
 public:
  Follower(const std::optional<std::string>& socket_path, const std::optional<std::string>& pool, uint32_t timeout_ms,
           bool metadata) {
    maru_follow_options options = {};
    options.size = sizeof(options);
    options.socket_path = socket_path ? socket_path->c_str() : nullptr;
    options.pool = pool ? pool->c_str() : nullptr;
    options.timeout_ms = timeout_ms;
    options.flags = metadata ? 0 : uint32_t{MARU_FOLLOW_NO_METADATA};
    maru_follower* made = nullptr;
    const WithoutGil released;
    opened_ = maru_follow_open(&options, &made);
    follower_.reset(made);
  }
  int opened() const { return opened_; }

  // A list of events, or -errno.
  py::object next(int timeout_ms) {
    if (!follower_) return py::int_(-EINVAL);
    int found = 0;
    {
      const WithoutGil released;
      found = maru_follow_next(follower_.get(), events_.data(), events_.size(), timeout_ms);
    }
    if (found < 0) return py::int_(found);
    py::list events;
    for (int i = 0; i < found; ++i) events.append(fields_of(events_[size_t(i)]));
    return events;
  }
  void wake() { maru_follow_wake(follower_.get()); }
  void close() { follower_.reset(); }

  py::dict status() const {
    maru_follow_status status = {};
    status.size = sizeof(status);
    maru_follow_get_status(follower_.get(), &status);
    py::dict all;
    all["incarnation"] = status.incarnation;
    all["sequence"] = status.sequence;
    all["newest"] = status.newest;
    all["blocks"] = status.blocks;
    all["snapshots"] = status.snapshots;
    all["overruns"] = status.overruns;
    all["restarts"] = status.restarts;
    all["ring_bytes"] = status.ring_bytes;
    all["unread_bytes"] = status.unread_bytes;
    all["is_connected"] = status.is_connected != 0;
    all["is_current"] = status.is_current != 0;
    return all;
  }

 private:
  std::unique_ptr<maru_follower, Close> follower_;
  std::array<maru_follow_event, kEventsAtOnce> events_;
  int opened_ = 0;
};

}  // namespace
}  // namespace maru_python

PYBIND11_MODULE(_follow, module) {
  using maru_python::Follower;
  module.doc() = "The calls of maru/follow.h.";
  py::class_<Follower>(module, "Follower")
      .def(py::init<const std::optional<std::string>&, const std::optional<std::string>&, uint32_t, bool>(),
           py::arg("socket_path"), py::arg("pool"), py::arg("timeout_ms"), py::arg("metadata"))
      .def_property_readonly("opened", &Follower::opened)
      .def("next", &Follower::next, py::arg("timeout_ms"))
      .def("wake", &Follower::wake)
      .def("close", &Follower::close)
      .def("status", &Follower::status);
}
