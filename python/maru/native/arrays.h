// A NumPy array as it lies in memory. Asking one for a buffer costs more than the lookup of its keys, because NumPy writes a
// description of its items for each buffer.
#pragma once

#include <cstdint>
#include <optional>
#include <pybind11/pybind11.h>
#include <vector>

namespace maru_python {

struct PlainArray {
  uint8_t* data;
  int dimensions;
  const Py_ssize_t* shape;
  bool is_writable;
};

// Of an array of bool or uint8 without gaps; null for everything else, which may be one all the same: a subclass, a memoryview.
// What it says is good while the array lives and nobody resizes it, which NumPy refuses while somebody refers to it.
std::optional<PlainArray> plain_array(pybind11::handle object, bool is_bool);

// A new list of n items, not set.
pybind11::list new_list(size_t n);
// The same, with any bytes where the items will be: all are set before anything else runs.
pybind11::list new_unfilled_list(size_t n);

// Whether NumPy can be imported.
bool has_numpy();

// A new array of n bool, not set. Wants NumPy.
pybind11::object new_truths(Py_ssize_t n, uint8_t** ret_data);
// The same, of uint64.
pybind11::object new_numbers(Py_ssize_t n, uint64_t** ret_data);

}  // namespace maru_python
