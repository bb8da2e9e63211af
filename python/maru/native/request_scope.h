// Whose request a call is part of: the `traceparent` that the calls of Client take.
#pragma once

#include <maru/tracing.h>
#include <pybind11/pybind11.h>

namespace maru_python {

// For as long as it lives the calling thread works for this request. None: for what it worked for before. Raises
// InvalidArgumentError for a text that is no traceparent.
class RequestScope {
 public:
  explicit RequestScope(pybind11::handle traceparent) {
    if (!traceparent.is_none()) [[unlikely]]
      enter(traceparent);
  }
  ~RequestScope() {
    if (is_entered_) maru_set_traceparent(before_);
  }
  RequestScope(const RequestScope&) = delete;
  RequestScope& operator=(const RequestScope&) = delete;

 private:
  void enter(pybind11::handle traceparent);

  bool is_entered_ = false;
  char before_[sizeof(maru_request_span::traceparent)];
};

// Defines what maru/tracing.py is made of.
void define_tracing(pybind11::module_& module);

}  // namespace maru_python
