// The extension maru._maru: what maru/_maru.pyi describes.
#include "arguments.h"
#include "attachment.h"
#include "client.h"
#include "errors.h"
#include "fast_calls.h"
#include "finder.h"
#include "found.h"
#include "handler_keys.h"
#include "held.h"
#include "keys.h"
#include "pins.h"
#include "records.h"
#include "request_scope.h"
#include "spans.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <stdexcept>

namespace py = pybind11;
using namespace py::literals;

namespace maru_python {
namespace {

Client::StoreOptions options_of(py::object parent, py::handle ttl_ms, py::handle priority, py::handle content_type,
                                py::object tenant, py::object metadata) {
  return {std::move(parent),
          number_of(ttl_ms, "ttl_ms", UINT64_MAX),
          uint32_t(number_of(priority, "priority", UINT32_MAX)),
          uint32_t(number_of(content_type, "content_type", MARU_CONTENT_GRADIENT)),
          std::move(tenant),
          std::move(metadata)};
}

// The same call of keys and a tenant, with a traceparent behind them.
template <typename Call>
auto for_request(Call call) {
  return [call](Client& self, py::handle keys, py::handle tenant, py::handle traceparent) {
    const RequestScope request(traceparent);
    return (self.*call)(keys, tenant);
  };
}

template <typename Class>
void define_stores(Class& client) {
  client
      .def(
          "store",
          [](Client& self, py::handle key, py::handle buffer, py::object parent, py::handle ttl_ms, py::handle priority,
             py::handle content_type, py::object tenant, py::handle keep_views, py::object metadata,
             py::handle traceparent) {
            const RequestScope request(traceparent);
            return self.store(key, buffer_of(buffer),
                              options_of(parent, ttl_ms, priority, content_type, tenant, metadata),
                              flag_of(keep_views, "keep_views"));
          },
          "key"_a, "buffer"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none(), "keep_views"_a = false, "metadata"_a = py::bytes(),
          "traceparent"_a = py::none())
      .def(
          "store_copy",
          [](Client& self, py::handle key, py::handle data, py::object parent, py::handle ttl_ms, py::handle priority,
             py::handle content_type, py::object tenant, py::object metadata, py::handle traceparent) {
            const RequestScope request(traceparent);
            return self.store_copy(key, data, options_of(parent, ttl_ms, priority, content_type, tenant, metadata));
          },
          "key"_a, "data"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none(), "metadata"_a = py::bytes(), "traceparent"_a = py::none())
      .def(
          "store_batch",
          [](Client& self, py::handle keys, py::handle buffers, py::object parent, py::handle ttl_ms,
             py::handle priority, py::handle content_type, py::object tenant, py::handle keep_views,
             py::object metadata, py::handle traceparent) {
            const RequestScope request(traceparent);
            return self.store_batch(keys, buffers, options_of(parent, ttl_ms, priority, content_type, tenant, metadata),
                                    flag_of(keep_views, "keep_views"));
          },
          "keys"_a, "buffers"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none(), "keep_views"_a = false, "metadata"_a = py::tuple(),
          "traceparent"_a = py::none())
      .def(
          "store_copy_batch",
          [](Client& self, py::handle keys, py::handle data, py::object parent, py::handle ttl_ms, py::handle priority,
             py::handle content_type, py::object tenant, py::object metadata, py::handle traceparent) {
            const RequestScope request(traceparent);
            return self.store_copy_batch(keys, data,
                                         options_of(parent, ttl_ms, priority, content_type, tenant, metadata));
          },
          "keys"_a, "data"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none(), "metadata"_a = py::tuple(), "traceparent"_a = py::none())
      .def(
          "store_chain",
          [](Client& self, py::handle keys, py::handle buffers, py::object parent, py::handle ttl_ms,
             py::handle priority, py::handle content_type, py::object tenant, py::handle keep_views,
             py::object metadata, py::handle traceparent) {
            const RequestScope request(traceparent);
            return self.store_chain(keys, buffers, options_of(parent, ttl_ms, priority, content_type, tenant, metadata),
                                    flag_of(keep_views, "keep_views"));
          },
          "keys"_a, "buffers"_a, py::kw_only(), "parent"_a = py::none(), "ttl_ms"_a = 0, "priority"_a = 0,
          "content_type"_a = 0, "tenant"_a = py::none(), "keep_views"_a = false, "metadata"_a = py::tuple(),
          "traceparent"_a = py::none());
}

// pybind11 does not look whether there was memory for an object. It is told by an exception, which its own code lets through;
// where CPython is what calls, new_object catches it.
PyObject* allocate(PyTypeObject* type, Py_ssize_t items) {
  PyObject* const made = PyType_GenericAlloc(type, items);
  if (made == nullptr) throw py::error_already_set();
  return made;
}

PyObject* new_object(PyTypeObject* type, PyObject*, PyObject*) {
  type->tp_alloc = allocate;  // of a subclass, too, which has not inherited it
  try {
    return py::detail::make_new_instance(type);
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  return nullptr;
}

void check_memory_of_objects(py::handle type) {
  auto* const made = reinterpret_cast<PyTypeObject*>(type.ptr());
  made->tp_alloc = allocate;
  made->tp_new = new_object;
  // Its own __new__, as CPython makes one for every type with a tp_new: that of the base refuses a type with another tp_new.
  const py::object inherited = type.attr("__new__");
  PyMethodDef* const definition = reinterpret_cast<PyCFunctionObject*>(inherited.ptr())->m_ml;
  const auto wrapper = py::reinterpret_steal<py::object>(PyCFunction_NewEx(definition, type.ptr(), nullptr));
  if (!wrapper || PyDict_SetItemString(made->tp_dict, "__new__", wrapper.ptr()) != 0) throw py::error_already_set();
  PyType_Modified(made);
}

// Python lets an object's class be exchanged for another that looks as large to it, and then calls that one's methods with this
// one's memory. Not from or to a class that cannot be changed.
void make_immutable(const py::module_& module) {
  const py::dict names = module.attr("__dict__");
  for (const auto& [name, value] : names) {
    if (!PyType_Check(value.ptr()) || !value.attr("__module__").equal(module.attr("__name__"))) continue;
    auto* const type = reinterpret_cast<PyTypeObject*>(value.ptr());
    type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
    PyType_Modified(type);
  }
}

// pybind11 says in words of its own that Python's API has failed. Python's exception says it better: a MemoryError.
void prefer_the_exception_of_python(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::runtime_error&) {
    if (PyErr_Occurred() == nullptr) throw;
  }
}

}  // namespace

void define_client(py::module_& module) {
  py::class_<Client> client(module, "Client", "One attachment to one pool.");
  client
      .def(py::init([](py::handle socket_path, py::handle pool, py::handle timeout_ms, py::handle thread_cache_pages,
                       py::handle first_fit, py::handle session_thread, py::handle read_only) {
             return std::make_unique<Client>(path_of(socket_path, "socket_path"), path_of(pool, "pool"),
                                             uint32_t(number_of(timeout_ms, "timeout_ms", UINT32_MAX)),
                                             uint32_t(number_of(thread_cache_pages, "thread_cache_pages", UINT32_MAX)),
                                             flag_of(first_fit, "first_fit"), flag_of(session_thread, "session_thread"),
                                             flag_of(read_only, "read_only"));
           }),
           "socket_path"_a = py::none(), "pool"_a = py::none(), py::kw_only(), "timeout_ms"_a = 0,
           "thread_cache_pages"_a = 0, "first_fit"_a = false, "session_thread"_a = true, "read_only"_a = false)
      .def("close", &Client::close)
      .def_property_readonly("is_closed", &Client::is_closed)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Client& self, const py::args&) { self.close(); })
      .def("reattach", &Client::reattach)
      .def("follow", &Client::follow)
      .def_property_readonly("daemon_epoch", &Client::daemon_epoch)
      .def("tenant", &Client::tenant, "name"_a)
      .def("geometry", &Client::geometry)
      .def("_before_unmap", &Client::before_unmap, "call"_a)
      .def("statistics", &Client::statistics)
      .def("count_blocks", &Client::count_blocks)
      .def(
          "delete_block",
          [](const Client& self, py::handle block, bool unpinned) {
            self.remove_block(number_of(block, "block", UINT64_MAX), unpinned);
          },
          "block"_a, py::kw_only(), "unpinned"_a = false)
      .def("evicted", &Client::evicted)
      .def("retrieve_batch", for_request(&Client::retrieve_batch), "keys"_a, "tenant"_a = py::none(),
           "traceparent"_a = py::none())
      .def("_find_batch", &Client::find_batch, "keys"_a, "tenant"_a, "places"_a)
      .def("pin", &Client::pin, "key"_a, "tenant"_a = py::none())
      .def("pin_batch", &Client::pin_batch, "keys"_a, "tenant"_a = py::none())
      .def(
          "pin_block",
          [](const Client& self, py::handle block) { return self.pin_block(number_of(block, "block", UINT64_MAX)); },
          "block"_a)
      .def(
          "block_info",
          [](const Client& self, py::handle block) { return self.block_info(number_of(block, "block", UINT64_MAX)); },
          "block"_a)
      .def(
          "unpin", [](Client&, py::handle pin) { release_pin(pin); }, "pin"_a)
      .def("unpin_batch", &Client::unpin_batch, "pins"_a)
      .def("match_prefix", for_request(&Client::match_prefix), "keys"_a, "tenant"_a = py::none(),
           "traceparent"_a = py::none())
      .def(
          "alloc",
          [](Client& self, py::handle nbytes, py::handle metadata_bytes, py::handle traceparent) {
            const RequestScope request(traceparent);
            return self.alloc(number_of(nbytes, "nbytes", UINT64_MAX),
                              uint32_t(number_of(metadata_bytes, "metadata_bytes", UINT32_MAX)));
          },
          "nbytes"_a, "metadata_bytes"_a = 0, "traceparent"_a = py::none())
      .def(
          "alloc_batch",
          [](Client& self, py::handle nbytes, py::handle n, py::handle metadata_bytes, py::handle traceparent) {
            const RequestScope request(traceparent);
            return self.alloc_batch(number_of(nbytes, "nbytes", UINT64_MAX), number_of(n, "n", UINT64_MAX),
                                    uint32_t(number_of(metadata_bytes, "metadata_bytes", UINT32_MAX)));
          },
          "nbytes"_a, "n"_a, "metadata_bytes"_a = 0, "traceparent"_a = py::none())
      .def("delete", for_request(&Client::remove), "key"_a, "tenant"_a = py::none(), "traceparent"_a = py::none())
      .def("delete_batch", for_request(&Client::remove_batch), "keys"_a, "tenant"_a = py::none(),
           "traceparent"_a = py::none())
      .def("delete_tree", &Client::remove_tree, "key"_a, "tenant"_a = py::none())
      .def("_open_spans", &Client::open_spans, "space"_a, "window"_a, "tenant"_a, "occupants"_a);
  define_stores(client);
  define_fast_calls(client);
}

void handle_memory_errors(py::handle views) {
  const uint32_t flags = flag_of(views, "views") ? uint32_t{MARU_MEMORY_ERRORS_VIEWS} : 0;
  check(maru_handle_memory_errors(flags), "maru_handle_memory_errors");
}

}  // namespace maru_python

PYBIND11_MODULE(_maru, module) {
  module.doc() = "The calls of maru.h.";
  maru_python::watch_forks();
  maru_python::load_errors();
  maru_python::load_records();
  maru_python::define_pages(module);
  maru_python::define_pins(module);
  maru_python::define_memory_info(module);
  maru_python::define_held(module);
  maru_python::define_spans(module);
  maru_python::define_client(module);
  maru_python::define_finder(module);
  maru_python::define_tracing(module);
  for (const char* name : {"Buffer", "Match", "Spans", "Client"})
    maru_python::check_memory_of_objects(module.attr(name));
  maru_python::make_immutable(module);
  py::register_local_exception_translator(&maru_python::prefer_the_exception_of_python);
  module.def("version", &maru_version);
  module.def("_client_key", &maru_python::client_key, "key"_a);
  module.def("handle_memory_errors", &maru_python::handle_memory_errors, py::kw_only(), "views"_a = false);
}
