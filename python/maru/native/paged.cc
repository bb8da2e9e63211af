// The extension maru._paged: copies blocks of an engine's KV cache into a buffer of the pool and back, for
// maru/paged_layers.py, which has checked the layers.
//
// A layer is a tensor in the processor's memory with a number of blocks. The order of a block's bytes is the order of its
// dimensions. In memory these bytes may lie apart, and in another order. In a buffer the layers follow each other, the blocks
// of each lie side by side, and the bytes of a block stand in their order. So a copy is a loop over runs: bytes that are
// neighbours on both sides. One thread makes it, without the GIL: it begins at once, however many threads the engine has.
#include "without_gil.h"

#include <cstdint>
#include <cstring>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace py = pybind11;
using namespace py::literals;

namespace {

struct Dimension {
  int64_t count;
  int64_t stride;  // bytes
};

struct Layer {
  char* base;
  int64_t blocks;
  int64_t block_stride;
  int64_t block_bytes;
  int64_t run_bytes;
  std::vector<Dimension> outer;  // of the runs of a block, the slowest first; none has one item
};

// The bytes of a Python object, for as long as this lives. With the GIL.
class Bytes {
 public:
  Bytes(const py::object& object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  char* data() const { return static_cast<char*>(view_.buf); }
  int64_t size() const { return view_.len; }

 private:
  Py_buffer view_{};
};

Layer layer_of(uintptr_t address, int64_t blocks, int64_t block_stride, const std::vector<Dimension>& dimensions) {
  Layer layer{reinterpret_cast<char*>(address), blocks, block_stride, 1, 1, {}};
  for (const Dimension& each : dimensions) {
    if (each.count <= 0) throw std::invalid_argument("a block has no bytes");
    layer.block_bytes *= each.count;
    if (each.count == 1) continue;
    if (!layer.outer.empty() && layer.outer.back().stride == each.stride * each.count) {
      layer.outer.back() = {layer.outer.back().count * each.count, each.stride};
    } else {
      layer.outer.push_back(each);
    }
  }
  if (!layer.outer.empty() && layer.outer.back().stride == 1) {
    layer.run_bytes = layer.outer.back().count;
    layer.outer.pop_back();
  }
  return layer;
}

template <bool kIsIntoBuffer>
void copy_run(char* cache, char* buffer, int64_t bytes) {
  if constexpr (kIsIntoBuffer) {
    std::memcpy(buffer, cache, size_t(bytes));
  } else {
    std::memcpy(cache, buffer, size_t(bytes));
  }
}

// Returns where the buffer goes on. Recurses as deep as there are dimensions, which are few.
template <bool kIsIntoBuffer>
char* copy_runs(const Layer& layer, size_t dimension, char* cache, char* buffer) {
  if (dimension == layer.outer.size()) {
    copy_run<kIsIntoBuffer>(cache, buffer, layer.run_bytes);
    return buffer + layer.run_bytes;
  }
  const auto [count, stride] = layer.outer[dimension];
  if (dimension + 1 == layer.outer.size()) {
    for (int64_t i = 0; i < count; i++, cache += stride, buffer += layer.run_bytes)
      copy_run<kIsIntoBuffer>(cache, buffer, layer.run_bytes);
    return buffer;
  }
  for (int64_t i = 0; i < count; i++, cache += stride)
    buffer = copy_runs<kIsIntoBuffer>(layer, dimension + 1, cache, buffer);
  return buffer;
}

template <bool kIsIntoBuffer>
void copy_layer(const Layer& layer, const std::vector<int64_t>& blocks, char* buffer) {
  const bool is_whole = layer.outer.empty() && layer.block_stride == layer.block_bytes;
  for (size_t i = 0; i < blocks.size();) {
    size_t next = i + 1;
    // Blocks that lie side by side are one run.
    while (is_whole && next < blocks.size() && blocks[next] == blocks[next - 1] + 1) next++;
    char* const cache = layer.base + blocks[i] * layer.block_stride;
    if (is_whole) {
      copy_run<kIsIntoBuffer>(cache, buffer, int64_t(next - i) * layer.block_bytes);
    } else {
      copy_runs<kIsIntoBuffer>(layer, 0, cache, buffer);
    }
    buffer += int64_t(next - i) * layer.block_bytes;
    i = next;
  }
}

// Thread safety: any, as far as the blocks are others.
class Layers {
 public:
  explicit Layers(const std::vector<std::tuple<uintptr_t, std::vector<int64_t>, std::vector<int64_t>>>& given) {
    for (const auto& [address, shape, strides] : given) {
      if (shape.empty() || shape.size() != strides.size() || shape[0] <= 0)
        throw std::invalid_argument("a layer has a number of blocks, a shape of each, and as many strides");
      std::vector<Dimension> dimensions;
      for (size_t i = 1; i < shape.size(); i++) dimensions.push_back({shape[i], strides[i]});
      layers_.push_back(layer_of(address, shape[0], strides[0], dimensions));
      block_bytes_ += layers_.back().block_bytes;
    }
  }

  void gather(const std::vector<int64_t>& blocks, const py::object& into) const {
    const Bytes bytes(into, PyBUF_WRITABLE);
    expect(blocks, bytes.size(), int64_t(blocks.size()), 0);
    copy<true>(blocks, bytes.data(), int64_t(blocks.size()), 0);
  }

  void scatter(const std::vector<int64_t>& blocks, const py::object& data, int64_t skip) const {
    const Bytes bytes(data, PyBUF_SIMPLE);
    const int64_t total = block_bytes_ > 0 ? bytes.size() / block_bytes_ : 0;
    expect(blocks, bytes.size(), total, skip);
    copy<false>(blocks, bytes.data(), total, skip);
  }

 private:
  void expect(const std::vector<int64_t>& blocks, int64_t bytes, int64_t total, int64_t skip) const {
    if (bytes != total * block_bytes_)
      throw std::invalid_argument("a buffer of " + std::to_string(bytes) + " bytes is no whole number of blocks of " +
                                  std::to_string(block_bytes_) + " bytes, or not as many as are copied");
    if (skip < 0 || skip > total || int64_t(blocks.size()) > total - skip)
      throw std::invalid_argument(std::to_string(blocks.size()) + " blocks after " + std::to_string(skip) +
                                  " are more than the " + std::to_string(total) + " in the buffer");
    for (const Layer& layer : layers_)
      for (const int64_t block : blocks)
        if (block < 0 || block >= layer.blocks)
          throw std::invalid_argument("there is no block " + std::to_string(block) + " among " +
                                      std::to_string(layer.blocks));
  }

  template <bool kIsIntoBuffer>
  void copy(const std::vector<int64_t>& blocks, char* buffer, int64_t total, int64_t skip) const {
    const maru_python::WithoutGil released;
    for (const Layer& layer : layers_) {
      copy_layer<kIsIntoBuffer>(layer, blocks, buffer + skip * layer.block_bytes);
      buffer += total * layer.block_bytes;
    }
  }

  std::vector<Layer> layers_;
  int64_t block_bytes_ = 0;
};

}  // namespace

PYBIND11_MODULE(_paged, module) {
  module.doc() = "Copies of blocks of a KV cache; maru.paged_layers is what to use.";
  py::class_<Layers>(module, "Layers")
      .def(py::init<const std::vector<std::tuple<uintptr_t, std::vector<int64_t>, std::vector<int64_t>>>&>(),
           "layers"_a)
      .def("gather", &Layers::gather, "blocks"_a, "into"_a)
      .def("scatter", &Layers::scatter, "blocks"_a, "data"_a, "skip"_a = 0);
}
