// The extension maru._layout: the calls of maru/layout.h, for maru/layout.py. What it raises is (errno, reason).
#include "without_gil.h"

#include <cstring>
#include <maru/layout.h>
#include <memory>
#include <optional>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>
#include <vector>

namespace py = pybind11;
using namespace py::literals;

namespace {

// maru/layout.py makes an exception of the package of it.
struct Refused {
  int code;
  std::string reason;
};

void check(int status, const maru_layout_reason& reason) {
  if (status < 0) throw Refused{-status, reason.text};
}

struct Layout {
  maru_layout c{};
};

Layout make(uint32_t kind, uint32_t order, uint32_t dtype, uint32_t outer, uint64_t blocks, uint64_t layers,
            uint64_t page_tokens, uint64_t heads, uint64_t head_dim, uint64_t alignment, uint64_t heads_total,
            uint64_t first_head, uint64_t layers_total, uint64_t first_layer) {
  Layout layout;
  layout.c = {sizeof(maru_layout), kind,  order,    dtype,     outer,       blocks,     layers,
              page_tokens,         heads, head_dim, alignment, heads_total, first_head, layers_total,
              first_layer,         {}};
  maru_layout_sizes sizes;
  maru_layout_reason reason;
  check(maru_layout_measure(&layout.c, &sizes, &reason), reason);
  return layout;
}

py::tuple fields(const Layout& layout) {
  const maru_layout& c = layout.c;
  return py::make_tuple(c.kind, c.order, c.dtype, c.outer, c.blocks, c.layers, c.page_tokens, c.heads, c.head_dim,
                        c.alignment, c.heads_total, c.first_head, c.layers_total, c.first_layer);
}

py::tuple measure(const Layout& layout) {
  maru_layout_sizes sizes;
  maru_layout_reason reason;
  check(maru_layout_measure(&layout.c, &sizes, &reason), reason);
  return py::make_tuple(sizes.element_bytes, sizes.region_bytes, sizes.outer_stride, sizes.layer_stride,
                        sizes.block_stride, sizes.block_bytes, sizes.storages, sizes.storage_bytes,
                        sizes.allocation_bytes);
}

py::tuple as_tuple(const maru_layout_part& part) { return py::make_tuple(part.storage, part.offset, part.bytes); }

py::tuple locate(const Layout& layout, uint64_t block, uint64_t layer, uint64_t outer) {
  maru_layout_part part;
  maru_layout_reason reason;
  check(maru_layout_locate(&layout.c, block, layer, outer, &part, &reason), reason);
  return as_tuple(part);
}

py::tuple locate_element(const Layout& layout, uint64_t block, uint64_t layer, uint64_t outer, uint64_t token,
                         uint64_t head, uint64_t dim) {
  const maru_layout_element element = {block, layer, outer, token, head, dim};
  maru_layout_part part;
  maru_layout_reason reason;
  check(maru_layout_locate_element(&layout.c, &element, &part, &reason), reason);
  return as_tuple(part);
}

py::list block_parts(const Layout& layout, uint64_t block) {
  std::vector<maru_layout_part> parts(2 * layout.c.layers);
  size_t count = 0;
  maru_layout_reason reason;
  check(maru_layout_block_parts(&layout.c, block, parts.data(), parts.size(), &count, &reason), reason);
  py::list list;
  for (size_t i = 0; i < count; ++i) list.append(as_tuple(parts[i]));
  return list;
}

Layout slice(const Layout& layout, uint64_t tensor_ranks, uint64_t tensor_rank, uint64_t pipeline_ranks,
             uint64_t pipeline_rank) {
  Layout part;
  maru_layout_reason reason;
  check(maru_layout_slice(&layout.c, tensor_ranks, tensor_rank, pipeline_ranks, pipeline_rank, &part.c, &reason),
        reason);
  return part;
}

py::bytes encode(const Layout& layout) {
  char bytes[MARU_LAYOUT_ENCODED_BYTES];
  maru_layout_reason reason;
  check(maru_layout_encode(&layout.c, bytes, &reason), reason);
  return py::bytes(bytes, sizeof(bytes));
}

Layout decode(const py::bytes& bytes) {
  char* data = nullptr;
  Py_ssize_t n = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &n) != 0) throw py::error_already_set();
  Layout layout;
  maru_layout_reason reason;
  check(maru_layout_decode(data, size_t(n), &layout.c, &reason), reason);
  return layout;
}

std::string to_json(const Layout& layout) {
  char text[MARU_LAYOUT_JSON_BYTES_MAX];
  maru_layout_reason reason;
  check(maru_layout_to_json(&layout.c, text, sizeof(text), &reason), reason);
  return text;
}

Layout from_json(const py::bytes& utf8) {
  char* data = nullptr;
  Py_ssize_t n = 0;
  if (PyBytes_AsStringAndSize(utf8.ptr(), &data, &n) != 0) throw py::error_already_set();
  Layout layout;
  maru_layout_reason reason;
  check(maru_layout_from_json(data, size_t(n), &layout.c, &reason), reason);
  return layout;
}

py::bytes fingerprint(const Layout& layout) {
  char hash[MARU_LAYOUT_FINGERPRINT_BYTES];
  maru_layout_reason reason;
  check(maru_layout_fingerprint(&layout.c, hash, &reason), reason);
  return py::bytes(hash, sizeof(hash));
}

uint32_t kind_from_text(const std::string& text) {
  uint32_t kind = 0;
  maru_layout_reason reason;
  check(maru_layout_kind_from_text(text.c_str(), &kind, &reason), reason);
  return kind;
}

uint32_t choose_kind(uint32_t wish, const std::vector<uint64_t>& shape, uint64_t blocks, uint32_t outer) {
  uint32_t kind = 0;
  maru_layout_reason reason;
  check(maru_layout_choose_kind(wish, shape.empty() ? nullptr : shape.data(), shape.size(), blocks, outer, &kind,
                                &reason),
        reason);
  return kind;
}

// The memory of Python's objects, for as long as this lives. With the GIL.
class Storages {
 public:
  Storages(const std::vector<py::object>& objects, int flags) : views_(std::make_unique<Py_buffer[]>(objects.size())) {
    storages_.reserve(objects.size());
    for (const py::object& object : objects) {
      Py_buffer& view = views_[storages_.size()];
      if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) {
        release();
        throw py::error_already_set();
      }
      storages_.push_back({view.buf, uint64_t(view.len)});
    }
  }
  ~Storages() { release(); }
  Storages(const Storages&) = delete;
  Storages& operator=(const Storages&) = delete;
  const std::vector<maru_reslice_storage>& all() const { return storages_; }

 private:
  void release() {
    for (size_t i = 0; i < storages_.size(); ++i) PyBuffer_Release(&views_[i]);
    storages_.clear();
  }

  std::unique_ptr<Py_buffer[]> views_;
  std::vector<maru_reslice_storage> storages_;
};

class Plan {
 public:
  Plan(const std::vector<Layout>& sources, const std::vector<Layout>& targets,
       const std::optional<std::vector<uint64_t>>& source_blocks,
       const std::optional<std::vector<uint64_t>>& target_blocks) {
    const std::vector<maru_layout> from = in_c(sources), to = in_c(targets);
    static constexpr uint64_t kNone = 0;  // an empty list is not the absence of one
    maru_reslice_options options{};
    options.size = sizeof(options);
    if (source_blocks) options.source_blocks = source_blocks->empty() ? &kNone : source_blocks->data();
    if (source_blocks) options.source_blocks_count = source_blocks->size();
    if (target_blocks) options.target_blocks = target_blocks->empty() ? &kNone : target_blocks->data();
    if (target_blocks) options.target_blocks_count = target_blocks->size();
    maru_reslice* plan = nullptr;
    maru_layout_reason reason;
    int status;
    {
      const maru_python::WithoutGil released;
      status = maru_reslice_plan(&options, from.data(), from.size(), to.data(), to.size(), &plan, &reason);
    }
    check(status, reason);
    plan_.reset(plan);
  }

  py::tuple totals() const {
    maru_reslice_totals totals;
    maru_reslice_measure(plan_.get(), &totals);
    return py::make_tuple(totals.bytes, totals.runs, totals.run_bytes_min, totals.run_bytes_max, totals.moves,
                          totals.source_storages, totals.target_storages);
  }

  py::list runs(uint64_t first, size_t n) const {
    py::list list;
    std::vector<maru_reslice_run> some(n);
    size_t count = 0;
    if (n == 0 || maru_reslice_runs(plan_.get(), first, some.data(), n, &count) < 0) return list;
    for (size_t i = 0; i < count; ++i)
      list.append(py::make_tuple(some[i].source_storage, some[i].source_offset, some[i].target_storage,
                                 some[i].target_offset, some[i].bytes));
    return list;
  }

  void copy(const std::vector<py::object>& sources, const std::vector<py::object>& targets) const {
    const Storages from(sources, PyBUF_SIMPLE), to(targets, PyBUF_WRITABLE);
    maru_layout_reason reason;
    int status;
    {
      const maru_python::WithoutGil released;
      status = maru_reslice_copy(plan_.get(), from.all().data(), from.all().size(), to.all().data(), to.all().size(),
                                 &reason);
    }
    check(status, reason);
  }

 private:
  static std::vector<maru_layout> in_c(const std::vector<Layout>& layouts) {
    std::vector<maru_layout> all;
    for (const Layout& layout : layouts) all.push_back(layout.c);
    return all;
  }
  struct Free {
    void operator()(maru_reslice* plan) const { maru_reslice_free(plan); }
  };
  std::unique_ptr<maru_reslice, Free> plan_;
};

}  // namespace

PYBIND11_MODULE(_layout, module) {
  module.doc() = "The calls of maru/layout.h; maru.layout is what to use.";
  static py::exception<Refused> refused(module, "Refused");
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Refused& error) {
      // A reason may have bytes of the caller's, cut anywhere.
      const auto text = py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(error.reason.data(), Py_ssize_t(error.reason.size()), "replace"));
      if (text) PyErr_SetObject(refused.ptr(), py::make_tuple(error.code, text).ptr());
    }
  });
  py::class_<Layout>(module, "Layout")
      .def(py::init(&make), "kind"_a, "order"_a, "dtype"_a, "outer"_a, "blocks"_a, "layers"_a, "page_tokens"_a,
           "heads"_a, "head_dim"_a, "alignment"_a, "heads_total"_a, "first_head"_a, "layers_total"_a, "first_layer"_a)
      .def("fields", &fields)
      .def("measure", &measure)
      .def("locate", &locate, "block"_a, "layer"_a, "outer"_a)
      .def("locate_element", &locate_element, "block"_a, "layer"_a, "outer"_a, "token"_a, "head"_a, "dim"_a)
      .def("block_parts", &block_parts, "block"_a)
      .def("slice", &slice, "tensor_ranks"_a, "tensor_rank"_a, "pipeline_ranks"_a, "pipeline_rank"_a)
      .def("encode", &encode)
      .def_static("decode", &decode, "data"_a)
      .def("to_json", &to_json)
      .def_static("from_json", &from_json, "utf8"_a)
      .def("fingerprint", &fingerprint);
  module.def("kind_from_text", &kind_from_text, "text"_a);
  module.def("choose_kind", &choose_kind, "wish"_a, "shape"_a, "blocks"_a, "outer"_a);
  py::class_<Plan>(module, "Plan")
      .def(py::init<const std::vector<Layout>&, const std::vector<Layout>&, const std::optional<std::vector<uint64_t>>&,
                    const std::optional<std::vector<uint64_t>>&>(),
           "sources"_a, "targets"_a, "source_blocks"_a, "target_blocks"_a)
      .def("totals", &Plan::totals)
      .def("runs", &Plan::runs, "first"_a, "n"_a)
      .def("copy", &Plan::copy, "sources"_a, "targets"_a);
}
