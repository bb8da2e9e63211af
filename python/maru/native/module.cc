// The extension maru._maru: what maru/_maru.pyi describes.
#include "attachment.h"
#include "client.h"
#include "errors.h"
#include "fast_calls.h"
#include "found.h"
#include "held.h"
#include "keys.h"
#include "pins.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;
using namespace py::literals;

namespace maru_python {
namespace {

template <typename Class>
void define_stores(Class& client) {
  client
      .def(
          "store",
          [](Client& self, py::handle key, Buffer& buffer, py::object parent, uint64_t ttl_ms, uint32_t priority,
             uint32_t content_type, py::object tenant, bool keep_views) {
            return self.store(key, buffer, {parent, ttl_ms, priority, content_type, tenant}, keep_views);
          },
          "key"_a, "buffer"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none(), "keep_views"_a = false)
      .def(
          "store_copy",
          [](Client& self, py::handle key, py::handle data, py::object parent, uint64_t ttl_ms, uint32_t priority,
             uint32_t content_type, py::object tenant) {
            return self.store_copy(key, data, {parent, ttl_ms, priority, content_type, tenant});
          },
          "key"_a, "data"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none())
      .def(
          "store_chain",
          [](Client& self, py::handle keys, py::handle buffers, py::object parent, uint64_t ttl_ms, uint32_t priority,
             uint32_t content_type, py::object tenant, bool keep_views) {
            return self.store_chain(keys, buffers, {parent, ttl_ms, priority, content_type, tenant}, keep_views);
          },
          "keys"_a, "buffers"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none(), "keep_views"_a = false);
}

}  // namespace

void define_client(py::module_& module) {
  py::class_<Client> client(module, "Client", "One attachment to one pool.");
  client
      .def(py::init<std::optional<std::string>, std::optional<std::string>, uint32_t, uint32_t, bool, bool, bool>(),
           "socket_path"_a = py::none(), "pool"_a = py::none(), py::kw_only(), "timeout_ms"_a = 0,
           "thread_cache_pages"_a = 0, "first_fit"_a = false, "session_thread"_a = true, "read_only"_a = false)
      .def("close", &Client::close)
      .def_property_readonly("is_closed", &Client::is_closed)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Client& self, const py::args&) { self.close(); })
      .def("reattach", &Client::reattach)
      .def_property_readonly("daemon_epoch", &Client::daemon_epoch)
      .def("tenant", &Client::tenant, "name"_a)
      .def("geometry", &Client::geometry)
      .def("statistics", &Client::statistics)
      .def("evicted", &Client::evicted)
      .def("retrieve_batch", &Client::retrieve_batch, "keys"_a, "tenant"_a = py::none())
      .def("_find_batch", &Client::find_batch, "keys"_a, "tenant"_a, "places"_a)
      .def("pin", &Client::pin, "key"_a, "tenant"_a = py::none())
      .def("pin_block", &Client::pin_block, "block"_a)
      .def(
          "unpin", [](Client&, py::handle pin) { release_pin(pin); }, "pin"_a)
      .def("match_prefix", &Client::match_prefix, "keys"_a, "tenant"_a = py::none())
      .def("alloc", &Client::alloc, "nbytes"_a)
      .def("alloc_batch", &Client::alloc_batch, "nbytes"_a, "n"_a)
      .def("delete", &Client::remove, "key"_a, "tenant"_a = py::none())
      .def("delete_batch", &Client::remove_batch, "keys"_a, "tenant"_a = py::none())
      .def("delete_tree", &Client::remove_tree, "key"_a, "tenant"_a = py::none());
  define_stores(client);
  define_fast_calls(client);
}

void handle_memory_errors(bool views) {
  check(maru_handle_memory_errors(views ? uint32_t{MARU_MEMORY_ERRORS_VIEWS} : 0u), "maru_handle_memory_errors");
}

}  // namespace maru_python

PYBIND11_MODULE(_maru, module) {
  module.doc() = "The calls of maru.h.";
  maru_python::watch_forks();
  maru_python::load_errors();
  maru_python::set_digest_type(py::module_::import("maru.records").attr("Digest"));
  maru_python::define_pages(module);
  maru_python::define_pins(module);
  maru_python::define_memory_info(module);
  maru_python::define_held(module);
  maru_python::define_client(module);
  module.def("version", &maru_version);
  module.def("handle_memory_errors", &maru_python::handle_memory_errors, py::kw_only(), "views"_a = false);
}
