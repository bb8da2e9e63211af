// The extension maru._prefetch: the calls of maru/prefetch.h, for maru/tier.py, which has checked types and ranges.
#include "without_gil.h"

#include <cerrno>
#include <maru/prefetch.h>
#include <memory>
#include <optional>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>
#include <tuple>
#include <vector>

namespace py = pybind11;

namespace maru_python {
namespace {

struct Release {
  void operator()(maru_prefetch_ticket* ticket) const { maru_prefetch_release(ticket); }
};

// A key as Python gives it: bytes, kind, tenant.
using AskedKey = std::tuple<std::string, uint32_t, uint64_t>;

class Ticket {
 public:
  Ticket(const std::vector<AskedKey>& keys, const std::optional<std::string>& socket_path, uint32_t policy,
         uint32_t deadline_ms, uint32_t compute_us, uint32_t flags) {
    std::vector<maru_key> asked;
    asked.reserve(keys.size());
    for (const auto& [data, kind, tenant] : keys) asked.push_back({data.data(), uint32_t(data.size()), kind, tenant});
    maru_prefetch_options options = {};
    options.size = sizeof(options);
    options.socket_path = socket_path ? socket_path->c_str() : nullptr;
    options.policy = policy;
    options.deadline_ms = deadline_ms;
    options.compute_us = compute_us;
    options.flags = flags;
    maru_prefetch_ticket* made = nullptr;
    const WithoutGil released;
    opened_ = maru_prefetch(asked.data(), asked.size(), &options, &made);
    ticket_.reset(made);
  }
  int opened() const { return opened_; }
  int descriptor() const { return ticket_ ? maru_prefetch_descriptor(ticket_.get()) : -1; }
  void release() { ticket_.reset(); }

  // The fields of maru.tier.Status, or -errno. Waits for so long; 0: does not wait.
  py::object wait(int timeout_ms) {
    if (!ticket_) return py::int_(-EBADF);
    maru_prefetch_status_info status = {};
    status.size = sizeof(status);
    int result = 0;
    {
      const WithoutGil released;
      result = timeout_ms == 0 ? maru_prefetch_status(ticket_.get(), &status)
                               : maru_prefetch_wait(ticket_.get(), timeout_ms, &status);
    }
    if (result < 0) return py::int_(result);
    return py::make_tuple(status.is_done != 0, status.keys, status.usable, status.in_pool, status.loaded, status.absent,
                          status.failed, status.gated, status.late, status.loaded_bytes, status.took_us);
  }

 private:
  int opened_ = 0;
  std::unique_ptr<maru_prefetch_ticket, Release> ticket_;
};

}  // namespace
}  // namespace maru_python

PYBIND11_MODULE(_prefetch, module) {
  using maru_python::Ticket;
  py::class_<Ticket>(module, "Ticket")
      .def(py::init<const std::vector<maru_python::AskedKey>&, const std::optional<std::string>&, uint32_t, uint32_t,
                    uint32_t, uint32_t>())
      .def("opened", &Ticket::opened)
      .def("descriptor", &Ticket::descriptor)
      .def("release", &Ticket::release)
      .def("wait", &Ticket::wait);
}
