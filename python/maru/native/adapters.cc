// The extension maru._adapters: the calls of maru/adapters.h, for maru/adapters.py. What it raises is (errno, reason).
#include "without_gil.h"

#include <cerrno>
#include <cstring>
#include <maru/adapters.h>
#include <memory>
#include <optional>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>
#include <vector>

namespace py = pybind11;
using namespace py::literals;

namespace {

// maru/adapters.py makes an exception of the package of it.
struct Refused {
  int code;
  std::string reason;
};

void check(int status, const char* reason = "") {
  if (status < 0) throw Refused{-status, reason};
}

// A client and a set of one process; closed once, when nothing of it is held any more.
struct Opened {
  maru_client* client = nullptr;
  maru_adapters* set = nullptr;
  ~Opened() {
    const maru_python::WithoutGil released;
    maru_adapters_close(set);
    maru_detach(client);
  }
};

// Another thread may release or close an object during a call without the GIL, so each call keeps a reference.
class Held {
 public:
  Held(const std::shared_ptr<Opened>& opened, maru_adapter* adapter)
      : adapter_(adapter, [opened](maru_adapter* own) {
          const maru_python::WithoutGil released;
          maru_adapters_release(own);
        }) {}

  void release() { adapter_.reset(); }
  const std::shared_ptr<maru_adapter>& get() const {
    if (adapter_ == nullptr) throw Refused{EBADF, "the adapter was released"};
    return adapter_;
  }
  maru_adapter_module module(size_t number) const {
    maru_adapter_module module = {};
    module.size = sizeof(module);
    check(maru_adapter_get_module(get().get(), number, &module), "no module has this number");
    return module;
  }

 private:
  std::shared_ptr<maru_adapter> adapter_;
};

py::dict as_dict(const maru_adapter_info& info) {
  return py::dict("name"_a = std::string(info.name), "folder"_a = std::string(info.folder), "tier"_a = info.tier,
                  "rank"_a = info.rank, "modules"_a = info.modules, "dtype"_a = info.dtype, "alpha"_a = info.alpha,
                  "file_bytes"_a = info.file_bytes, "hot_bytes"_a = info.hot_bytes, "warm_bytes"_a = info.warm_bytes,
                  "checksum"_a = py::bytes(reinterpret_cast<const char*>(info.checksum), sizeof(info.checksum)),
                  "window_uses"_a = info.window_uses);
}

class Set {
 public:
  Set(const std::optional<std::string>& socket_path, const std::optional<std::string>& pool, const py::dict& options) {
    maru_attach_options attach = {};
    attach.size = sizeof(attach);
    attach.socket_path = socket_path ? socket_path->c_str() : nullptr;
    attach.pool = pool ? pool->c_str() : nullptr;
    maru_adapters_options own = {};
    own.size = sizeof(own);
    const auto text = [&](const char* name) {
      return options.contains(name) ? std::optional(options[name].cast<std::string>()) : std::nullopt;
    };
    const std::optional<std::string> path = text("register_path"), root = text("root"), base = text("base_model"),
                                     tier = text("tier_socket");
    own.register_path = path ? path->c_str() : nullptr;
    own.root = root ? root->c_str() : nullptr;
    own.base_model = base ? base->c_str() : nullptr;
    own.tier_socket = tier ? tier->c_str() : nullptr;
    std::string fingerprint;
    if (options.contains("base_fingerprint")) {
      fingerprint = options["base_fingerprint"].cast<std::string>();
      if (fingerprint.size() != 16) throw Refused{EINVAL, "base_fingerprint must be 16 bytes"};
      own.base_fingerprint = fingerprint.data();
    }
    const auto number = [&]<typename T>(const char* name, T* to) {
      if (options.contains(name)) *to = options[name].cast<T>();
    };
    number("entries_max", &own.entries_max);
    number("window_ms", &own.window_ms);
    number("hot_enter_uses", &own.hot_enter_uses);
    number("hot_leave_uses", &own.hot_leave_uses);
    number("stay_ms", &own.stay_ms);
    number("hot_adapters_max", &own.hot_adapters_max);
    number("warm_adapters_max", &own.warm_adapters_max);
    number("hot_bytes_max", &own.hot_bytes_max);
    number("warm_bytes_max", &own.warm_bytes_max);
    number("part_bytes", &own.part_bytes);
    number("timeout_ms", &own.timeout_ms);
    maru_adapters_reason reason = {};
    int status = 0;
    {
      const maru_python::WithoutGil released;
      status = maru_attach(&attach, &opened_->client);
      if (status == 0) status = maru_adapters_open(opened_->client, &own, &opened_->set, &reason);
    }
    check(status, reason.text[0] != 0 ? reason.text : "cannot attach to the pool");
  }

  void load(const std::string& name, const std::string& folder, bool lazy) const {
    const std::shared_ptr<Opened> own = opened();
    maru_adapters_reason reason = {};
    int status = 0;
    {
      const maru_python::WithoutGil released;
      status = maru_adapters_load(own->set, name.c_str(), folder.c_str(), lazy ? MARU_ADAPTERS_LOAD_LAZY : 0, &reason);
    }
    check(status, reason.text);
  }
  void unload(const std::string& name) const {
    const std::shared_ptr<Opened> own = opened();
    maru_adapters_reason reason = {};
    int status = 0;
    {
      const maru_python::WithoutGil released;
      status = maru_adapters_unload(own->set, name.c_str(), &reason);
    }
    check(status, reason.text);
  }
  std::unique_ptr<Held> acquire(const std::string& name, bool exact) const {
    const std::shared_ptr<Opened> own = opened();
    maru_adapters_reason reason = {};
    maru_adapter* adapter = nullptr;
    int status = 0;
    {
      const maru_python::WithoutGil released;
      status = maru_adapters_acquire(own->set, name.c_str(), exact ? MARU_ADAPTER_EXACT : MARU_ADAPTER_ANY, &adapter,
                                     &reason);
    }
    check(status, reason.text);
    return std::make_unique<Held>(own, adapter);
  }
  std::vector<int32_t> prefetch(const std::vector<std::string>& names, bool exact) const {
    const std::shared_ptr<Opened> own = opened();
    std::vector<const char*> texts;
    for (const std::string& name : names) texts.push_back(name.c_str());
    std::vector<int32_t> results(names.size());
    const maru_python::WithoutGil released;
    (void)maru_adapters_prefetch(own->set, texts.data(), texts.size(), exact ? MARU_ADAPTER_EXACT : MARU_ADAPTER_ANY,
                                 results.data());
    return results;
  }
  int rebalance(uint32_t moves_max) const {
    const std::shared_ptr<Opened> own = opened();
    int status = 0;
    {
      const maru_python::WithoutGil released;
      status = maru_adapters_rebalance(own->set, moves_max);
    }
    check(status, "another process has the register locked");
    return status;
  }
  py::dict find(const std::string& name) const {
    maru_adapter_info info = {};
    info.size = sizeof(info);
    check(maru_adapters_find(opened()->set, name.c_str(), &info), "no adapter of this name is loaded");
    return as_dict(info);
  }
  py::list all() const {
    py::list list;
    uint64_t cursor = 0;
    while (true) {
      maru_adapter_info info = {};
      info.size = sizeof(info);
      const int status = maru_adapters_next(opened()->set, &cursor, &info);
      if (status == -ENOENT) return list;
      check(status, "another process has the register locked");
      list.append(as_dict(info));
    }
  }
  py::dict statistics() const {
    maru_adapters_statistics s = {};
    s.size = sizeof(s);
    check(maru_adapters_get_statistics(opened()->set, &s), "another process has the register locked");
    return py::dict("adapters"_a = s.adapters, "hot_adapters"_a = s.hot_adapters, "warm_adapters"_a = s.warm_adapters,
                    "hot_bytes"_a = s.hot_bytes, "warm_bytes"_a = s.warm_bytes, "acquires_hot"_a = s.acquires_hot,
                    "acquires_warm"_a = s.acquires_warm, "acquires_cold"_a = s.acquires_cold, "loads"_a = s.loads,
                    "loaded_bytes"_a = s.loaded_bytes, "tier_loads"_a = s.tier_loads, "promotions"_a = s.promotions,
                    "demotions"_a = s.demotions, "evicted"_a = s.evicted, "waits"_a = s.waits,
                    "refusals"_a = s.refusals, "repairs"_a = s.repairs);
  }
  void close() { opened_.reset(); }

 private:
  const std::shared_ptr<Opened>& opened() const {
    if (opened_ == nullptr) throw Refused{EBADF, "the adapters were closed"};
    return opened_;
  }

  std::shared_ptr<Opened> opened_ = std::make_shared<Opened>();
};

py::dict info_of(const Held& held) {
  maru_adapter_info info = {};
  info.size = sizeof(info);
  check(maru_adapter_get_info(held.get().get(), &info), "the adapter was unloaded");
  return as_dict(info);
}

py::tuple module_of(const Held& held, size_t number) {
  const maru_adapter_module module = held.module(number);
  return py::make_tuple(module.name, module.in_features, module.out_features, module.rank, module.scaling,
                        module.a.dtype);
}

// A new array of floats of the matrix, or of 16-bit numbers as unsigned ones.
py::array matrix_of(const Held& held, size_t number, uint32_t matrix, uint32_t dtype) {
  const std::shared_ptr<maru_adapter> adapter = held.get();
  const maru_adapter_module module = held.module(number);
  const bool is_a = matrix == MARU_ADAPTER_A;
  const std::vector<py::ssize_t> shape = {py::ssize_t(is_a ? module.rank : module.out_features),
                                          py::ssize_t(is_a ? module.in_features : module.rank)};
  const bool is_float = dtype == MARU_ADAPTER_FLOAT32;
  // With the strides and the size: pybind11 before 2.12 would take them from where NumPy 2 has something else.
  const py::ssize_t each = is_float ? sizeof(float) : sizeof(uint16_t);
  py::array result(is_float ? py::dtype::of<float>() : py::dtype::of<uint16_t>(), shape, {shape[1] * each, each});
  const auto bytes = uint64_t(shape[0] * shape[1] * each);
  void* const data = result.mutable_data();
  int status = 0;
  {
    const maru_python::WithoutGil released;
    status = maru_adapter_copy(adapter.get(), number, matrix, dtype, data, bytes);
  }
  check(status, "the form that is held has other weights; ask for float32");
  return result;
}

using Floats = py::array_t<float, py::array::c_style>;

class Bgmv {
 public:
  Bgmv(uint32_t threads, uint32_t instructions) {
    maru_bgmv* made = nullptr;
    check(maru_bgmv_create(threads, instructions, &made),
          "this processor has not these instructions, or no thread could be started");
    bgmv_.reset(made);
  }
  uint32_t uses() const { return maru_bgmv_uses(bgmv_.get()); }

  // `chosen`: for each row of x and y an adapter, or None; `module`: a number, the same of all.
  void add(const std::vector<const Held*>& chosen, size_t module, const Floats& x, Floats& y) const {
    if (x.ndim() != 2 || y.ndim() != 2 || size_t(x.shape(0)) != chosen.size() || size_t(y.shape(0)) != chosen.size())
      throw Refused{EINVAL, "x and y must have a row for each request"};
    std::vector<std::pair<std::shared_ptr<maru_adapter>, std::unique_ptr<maru_adapter_module>>> modules;
    std::vector<maru_bgmv_request> requests;
    float* const out = y.mutable_data();
    for (size_t i = 0; i < chosen.size(); ++i) {
      const maru_adapter_module* own = nullptr;
      if (chosen[i] != nullptr) {
        for (const auto& [adapter, known] : modules)
          if (adapter == chosen[i]->get()) own = known.get();
        if (own == nullptr) {
          modules.emplace_back(chosen[i]->get(), std::make_unique<maru_adapter_module>(chosen[i]->module(module)));
          own = modules.back().second.get();
        }
        if (own->in_features != uint64_t(x.shape(1)) || own->out_features != uint64_t(y.shape(1)))
          throw Refused{EINVAL, "the module goes from " + std::to_string(own->in_features) + " to " +
                                    std::to_string(own->out_features) + " features; x has " +
                                    std::to_string(x.shape(1)) + " columns and y " + std::to_string(y.shape(1))};
      }
      requests.push_back({own, x.data() + i * size_t(x.shape(1)), out + i * size_t(y.shape(1))});
    }
    int status = 0;
    {
      const maru_python::WithoutGil released;
      status = maru_bgmv_add(bgmv_.get(), requests.data(), requests.size());
    }
    check(status, "a module is damaged");
  }

 private:
  struct Free {
    void operator()(maru_bgmv* bgmv) const { maru_bgmv_free(bgmv); }
  };
  std::unique_ptr<maru_bgmv, Free> bgmv_;
};

class BatchFormer {
 public:
  BatchFormer(uint32_t policy, uint32_t requests_max, uint32_t adapters_max, uint32_t ranks_max, uint32_t old_ms) {
    maru_batch_options options = {};
    options.size = sizeof(options);
    options.policy = policy, options.requests_max = requests_max, options.adapters_max = adapters_max;
    options.ranks_max = ranks_max, options.old_ms = old_ms;
    maru_batch_former* made = nullptr;
    check(maru_batch_create(&options, &made), "no such policy");
    former_.reset(made);
  }
  void set_weight(uint64_t tenant, double weight) {
    check(maru_batch_set_weight(former_.get(), tenant, weight), "a weight must be finite, and above 0");
  }
  void add(uint64_t id, uint64_t tenant, uint64_t adapter, uint32_t tokens, uint32_t rank, uint32_t tier,
           uint64_t now_ms) {
    const maru_batch_request request = {id, tenant, adapter, tokens, rank, tier, 0};
    check(maru_batch_add(former_.get(), &request, now_ms), "a request of this id waits already");
  }
  void cancel(uint64_t id) { check(maru_batch_cancel(former_.get(), id), "no request of this id waits"); }
  std::vector<uint64_t> next(uint64_t now_ms, size_t n) {
    std::vector<uint64_t> ids(n);
    const int count = maru_batch_next(former_.get(), now_ms, ids.data(), ids.size());
    check(count, "n must be 1 or more");
    ids.resize(size_t(count));
    return ids;
  }
  size_t waiting() const { return maru_batch_waiting(former_.get()); }

 private:
  struct Free {
    void operator()(maru_batch_former* former) const { maru_batch_free(former); }
  };
  std::unique_ptr<maru_batch_former, Free> former_;
};

}  // namespace

PYBIND11_MODULE(_adapters, module) {
  static py::exception<Refused> refused(module, "Refused");
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Refused& why) {
      const py::tuple arguments = py::make_tuple(why.code, why.reason);
      PyErr_SetObject(refused.ptr(), arguments.ptr());
    }
  });
  py::class_<Held>(module, "Held")
      .def("release", &Held::release)
      .def("info", info_of)
      .def("modules", [](const Held& held) { return maru_adapter_modules(held.get().get()); })
      .def("module", module_of, "number"_a)
      .def("matrix", matrix_of, "number"_a, "matrix"_a, "dtype"_a);
  py::class_<Set>(module, "Set")
      .def(py::init<const std::optional<std::string>&, const std::optional<std::string>&, const py::dict&>(),
           "socket_path"_a, "pool"_a, "options"_a)
      .def("load", &Set::load, "name"_a, "folder"_a, "lazy"_a)
      .def("unload", &Set::unload, "name"_a)
      .def("acquire", &Set::acquire, "name"_a, "exact"_a)
      .def("prefetch", &Set::prefetch, "names"_a, "exact"_a)
      .def("rebalance", &Set::rebalance, "moves_max"_a)
      .def("find", &Set::find, "name"_a)
      .def("all", &Set::all)
      .def("statistics", &Set::statistics)
      .def("close", &Set::close);
  py::class_<Bgmv>(module, "Bgmv")
      .def(py::init<uint32_t, uint32_t>(), "threads"_a, "instructions"_a)
      .def("uses", &Bgmv::uses)
      .def("add", &Bgmv::add, "chosen"_a, "module"_a, "x"_a.noconvert(), "y"_a.noconvert());
  py::class_<BatchFormer>(module, "BatchFormer")
      .def(py::init<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>(), "policy"_a, "requests_max"_a, "adapters_max"_a,
           "ranks_max"_a, "old_ms"_a)
      .def("set_weight", &BatchFormer::set_weight, "tenant"_a, "weight"_a)
      .def("add", &BatchFormer::add, "id"_a, "tenant"_a, "adapter"_a, "tokens"_a, "rank"_a, "tier"_a, "now_ms"_a)
      .def("cancel", &BatchFormer::cancel, "id"_a)
      .def("next", &BatchFormer::next, "now_ms"_a, "n"_a)
      .def("waiting", &BatchFormer::waiting);
}
