#include "request_scope.h"

#include "arguments.h"
#include "client.h"
#include "errors.h"

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace py = pybind11;
using namespace py::literals;

namespace maru_python {
namespace {

// None is the empty text.
std::string traceparent_of(py::handle given) {
  if (given.is_none()) return "";
  if (!py::isinstance<py::str>(given)) raise_named("InvalidArgumentError", "A traceparent is a str, or None.");
  return given.cast<std::string>();
}

void check_traceparent(int status, const std::string& text) {
  if (status == -EINVAL)
    raise_named("InvalidArgumentError", "\"" + text +
                                            "\" is no traceparent; expected 00-TRACE-PARENT-FLAGS with 32, 16 and "
                                            "2 hexadecimal digits.");
  check(status, "maru_set_traceparent");
}

void set_traceparent(py::handle traceparent) {
  const std::string text = traceparent_of(traceparent);
  check_traceparent(maru_set_traceparent(text.c_str()), text);
}

std::string get_traceparent() {
  char text[sizeof(maru_request_span::traceparent)];
  check(maru_get_traceparent(text), "maru_get_traceparent");
  return text;
}

py::bytes begin_request(const Client& client, py::handle traceparent) {
  const std::string text = traceparent_of(traceparent);
  maru_request_span span;
  check_traceparent(maru_begin_request(client.handle(), text.c_str(), &span), text);
  return py::bytes(reinterpret_cast<const char*>(&span), sizeof(span));
}

void end_request(const Client& client, std::string_view bytes, int result) {
  maru_request_span span;
  if (bytes.size() != sizeof(span)) raise_named("InvalidArgumentError", "The request was never begun.");
  std::memcpy(&span, bytes.data(), sizeof(span));
  check(maru_end_request(client.handle(), &span, result), "maru_end_request");
}

// Whether maru-eventd takes the spans by now.
bool set_tracing(const Client& client, py::handle socket_path, py::handle spans, py::handle one_in) {
  const std::optional<std::string> path = path_of(socket_path, "socket_path");
  maru_tracing_options options{};
  options.size = sizeof(options);
  options.socket_path = path ? path->c_str() : nullptr;
  options.spans = uint32_t(number_of(spans, "spans", UINT32_MAX));
  options.one_in = uint32_t(number_of(one_in, "one_in", UINT32_MAX));
  const int status = maru_set_tracing(client.handle(), &options);
  if (status < 0) check(status, "maru_set_tracing");
  return status == 0;
}

}  // namespace

void RequestScope::enter(py::handle traceparent) {
  const std::string text = traceparent_of(traceparent);
  check(maru_get_traceparent(before_), "maru_get_traceparent");
  check_traceparent(maru_set_traceparent(text.c_str()), text);
  is_entered_ = true;
}

void define_tracing(py::module_& module) {
  module.def("_set_traceparent", &set_traceparent, "traceparent"_a);
  module.def("_get_traceparent", &get_traceparent);
  module.def("_begin_request", &begin_request, "client"_a, "traceparent"_a);
  module.def("_end_request", &end_request, "client"_a, "span"_a, "result"_a);
  module.def("_set_tracing", &set_tracing, "client"_a, "socket_path"_a, "spans"_a, "one_in"_a);
  module.def(
      "_stop_tracing",
      [](const Client& client) { check(maru_set_tracing(client.handle(), nullptr), "maru_set_tracing"); }, "client"_a);
}

}  // namespace maru_python
