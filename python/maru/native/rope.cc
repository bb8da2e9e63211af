// The extension maru._rope: the calls of maru/rope.h, for maru/rope.py. What it raises is (errno, reason).
#include "without_gil.h"

#include <array>
#include <maru/rope.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>
#include <vector>

namespace py = pybind11;
using namespace py::literals;

namespace {

struct Refused {
  int code;
  std::string reason;
};

void check(int status, const maru_rope_reason& reason) {
  if (status < 0) throw Refused{-status, reason.text};
}

// With the factors of longrope, to which the C structure points.
struct Rope {
  maru_rope c{};
  std::vector<double> factors;

  const maru_rope* get() {
    c.factors = factors.empty() ? nullptr : factors.data();
    return &c;
  }
};

Rope make(uint32_t head_dim, uint32_t rotary_dim, uint32_t pairing, uint32_t scaling, uint32_t flags, double base,
          double factor, double original_positions, double beta_fast, double beta_slow, double extrapolation_factor,
          double low_freq_factor, double high_freq_factor, std::vector<double> factors) {
  const uint32_t pairs = (rotary_dim != 0 ? rotary_dim : head_dim) / 2;
  if (!factors.empty() && factors.size() != pairs)
    throw Refused{EINVAL, "there are " + std::to_string(factors.size()) + " factors, expected " +
                              std::to_string(pairs) + ", one for each pair"};
  Rope rope;
  rope.c = {sizeof(maru_rope),
            head_dim,
            rotary_dim,
            pairing,
            scaling,
            flags,
            0,
            base,
            factor,
            original_positions,
            beta_fast,
            beta_slow,
            extrapolation_factor,
            low_freq_factor,
            high_freq_factor,
            nullptr,
            {}};
  rope.factors = std::move(factors);
  return rope;
}

std::vector<double> frequencies(Rope& rope) {
  std::vector<double> all(rope.c.head_dim <= MARU_ROPE_HEAD_DIM_MAX ? rope.c.head_dim / 2 : 0);
  maru_rope_reason reason = {};
  check(maru_rope_frequencies(rope.get(), all.data(), all.size(), &reason), reason);
  all.resize((rope.c.rotary_dim != 0 ? rope.c.rotary_dim : rope.c.head_dim) / 2);
  return all;
}

// The buffer of an array with strides.
class Strided {
 public:
  Strided(py::handle array, bool is_writable) {
    const int flags = is_writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO;
    if (PyObject_GetBuffer(array.ptr(), &buffer_, flags) != 0) throw py::error_already_set();
  }
  ~Strided() { PyBuffer_Release(&buffer_); }
  Strided(const Strided&) = delete;
  Strided& operator=(const Strided&) = delete;
  const Py_buffer& get() const { return buffer_; }
  uint64_t stride(int axis) const { return uint64_t(buffer_.strides[axis]); }

 private:
  Py_buffer buffer_{};
};

// Of layers, tokens, heads and elements; maru/rope.py sees to types and shapes.
void rerotate(Rope& rope, py::handle from, py::handle to, uint32_t dtype, uint64_t old_position,
              uint64_t new_position) {
  const bool in_place = from.is(to);
  const Strided source(from, in_place);
  const Strided target(to, true);
  const Py_buffer& a = source.get();
  const Py_buffer& b = target.get();
  const Py_ssize_t element = dtype == MARU_ROPE_FLOAT32 ? 4 : 2;
  if (a.ndim != 4 || b.ndim != 4 || a.itemsize != element || b.itemsize != element)
    throw Refused{EINVAL, "an array has not four axes, or elements of another size"};
  for (int axis = 0; axis < 4; ++axis)
    if (a.shape[axis] != b.shape[axis]) throw Refused{EINVAL, "the arrays have different shapes"};
  for (const Py_buffer* buffer : {&a, &b}) {
    if (buffer->shape[3] != Py_ssize_t(rope.c.head_dim))
      throw Refused{EINVAL, "the last axis has " + std::to_string(buffer->shape[3]) + " elements, expected head_dim, " +
                                std::to_string(rope.c.head_dim)};
    if (buffer->strides[3] != element) throw Refused{EINVAL, "the elements of a head are not one behind the other"};
    for (int axis = 0; axis < 3; ++axis)
      if (buffer->strides[axis] < 0) throw Refused{EINVAL, "an axis runs backwards"};
  }
  maru_rerotation keys = {};
  keys.size = sizeof(keys);
  keys.from = a.buf;
  keys.to = b.buf;
  keys.dtype = dtype;
  keys.layers = uint64_t(a.shape[0]);
  keys.tokens = uint64_t(a.shape[1]);
  keys.heads = uint64_t(a.shape[2]);
  keys.from_layer_stride = source.stride(0);
  keys.from_token_stride = source.stride(1);
  keys.from_head_stride = source.stride(2);
  keys.to_layer_stride = target.stride(0);
  keys.to_token_stride = target.stride(1);
  keys.to_head_stride = target.stride(2);
  keys.old_position = old_position;
  keys.new_position = new_position;
  maru_rope_reason reason = {};
  int status;
  {
    const maru_rope* const c = rope.get();
    const maru_python::WithoutGil released;
    status = maru_rerotate(c, &keys, &reason);
  }
  check(status, reason);
}

}  // namespace

PYBIND11_MODULE(_rope, module) {
  module.doc() = "The calls of maru/rope.h.";
  static py::exception<Refused> refused(module, "Refused");
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Refused& why) {
      PyErr_SetObject(refused.ptr(), py::make_tuple(why.code, why.reason).ptr());
    }
  });
  py::class_<Rope>(module, "Rope")
      .def(py::init(&make))
      .def("frequencies", &frequencies)
      .def("rerotate", &rerotate, "from_"_a, "to"_a, "dtype"_a, "old"_a, "new"_a);
}
