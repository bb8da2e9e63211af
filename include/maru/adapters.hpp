// adapters.h for C++20: the same calls, with owners that give back. Header only, needs no exceptions.
//
//   AdapterAnswer<T>   a value, or the errno and the sentence that say why there is none
//   Adapters           a register and a pool; closed when it goes
//   Adapter            an adapter that is held; released when it goes
//   Bgmv               threads that compute products; freed when it goes
//   BatchFormer        requests that wait; freed when it goes
//
// Adapters must go before their Adapters does, and that before its client. adapters.h has the meaning of each call; nothing
// differs here.
#ifndef MARU_ADAPTERS_HPP
#define MARU_ADAPTERS_HPP

#include <maru/adapters.h>
#include <maru/answer.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru {
inline namespace api_0 {

using AdapterRefusal = RefusalWith<maru_adapters_reason>;
template <typename T>
using AdapterAnswer = AnswerWith<T, maru_adapters_reason>;

class Adapter {
 public:
  Adapter() = default;
  explicit Adapter(maru_adapter* adapter) : adapter_(adapter) {}

  explicit operator bool() const { return adapter_ != nullptr; }
  maru_adapter* get() const { return adapter_.get(); }
  void release() { adapter_.reset(); }

  size_t modules() const { return maru_adapter_modules(get()); }
  AdapterAnswer<maru_adapter_module> module(size_t number) const {
    maru_adapter_module module = {};
    module.size = sizeof(module);
    const int status = maru_adapter_get_module(get(), number, &module);
    if (status < 0) return AdapterRefusal{-status};
    return module;
  }
  AdapterAnswer<maru_adapter_info> info() const {
    maru_adapter_info info = {};
    info.size = sizeof(info);
    const int status = maru_adapter_get_info(get(), &info);
    if (status < 0) return AdapterRefusal{-status};
    return info;
  }
  // As rows of floats, in the file's shape.
  AdapterAnswer<std::vector<float>> floats(size_t number, maru_adapter_matrix matrix) const {
    const AdapterAnswer<maru_adapter_module> own = module(number);
    if (!own.ok()) return AdapterRefusal{own.error()};
    std::vector<float> values(own->rank * (matrix == MARU_ADAPTER_A ? own->in_features : own->out_features));
    const int status = maru_adapter_copy(get(), number, uint32_t(matrix), MARU_ADAPTER_FLOAT32, values.data(),
                                         values.size() * sizeof(float));
    if (status < 0) return AdapterRefusal{-status};
    return values;
  }

 private:
  struct Release {
    void operator()(maru_adapter* adapter) const { maru_adapters_release(adapter); }
  };
  std::unique_ptr<maru_adapter, Release> adapter_;
};

class Adapters {
 public:
  Adapters() = default;

  static AdapterAnswer<Adapters> open(maru_client* client, const maru_adapters_options* options = nullptr) {
    Adapters opened;
    maru_adapters* adapters = nullptr;
    const AdapterAnswer<void> answer =
        said([&](maru_adapters_reason* reason) { return maru_adapters_open(client, options, &adapters, reason); });
    if (!answer.ok()) return refusal_of(answer);
    opened.adapters_.reset(adapters);
    return opened;
  }
  maru_adapters* get() const { return adapters_.get(); }

  AdapterAnswer<void> load(const std::string& name, const std::string& folder, uint32_t flags = 0) const {
    return said([&](maru_adapters_reason* reason) {
      return maru_adapters_load(get(), name.c_str(), folder.c_str(), flags, reason);
    });
  }
  AdapterAnswer<void> unload(const std::string& name) const {
    return said([&](maru_adapters_reason* reason) { return maru_adapters_unload(get(), name.c_str(), reason); });
  }
  AdapterAnswer<Adapter> acquire(const std::string& name, maru_adapter_want want = MARU_ADAPTER_ANY) const {
    maru_adapter* adapter = nullptr;
    const AdapterAnswer<void> answer = said([&](maru_adapters_reason* reason) {
      return maru_adapters_acquire(get(), name.c_str(), uint32_t(want), &adapter, reason);
    });
    if (!answer.ok()) return refusal_of(answer);
    return Adapter(adapter);
  }
  // How many of them are resident.
  AdapterAnswer<int> prefetch(std::span<const char* const> names, maru_adapter_want want = MARU_ADAPTER_ANY) const {
    return counted(maru_adapters_prefetch(get(), names.data(), names.size(), uint32_t(want), nullptr));
  }
  AdapterAnswer<int> rebalance(uint32_t moves_max) const { return counted(maru_adapters_rebalance(get(), moves_max)); }
  AdapterAnswer<maru_adapter_info> find(const std::string& name) const {
    maru_adapter_info info = {};
    info.size = sizeof(info);
    const int status = maru_adapters_find(get(), name.c_str(), &info);
    if (status < 0) return AdapterRefusal{-status};
    return info;
  }
  AdapterAnswer<maru_adapters_statistics> statistics() const {
    maru_adapters_statistics statistics = {};
    statistics.size = sizeof(statistics);
    const int status = maru_adapters_get_statistics(get(), &statistics);
    if (status < 0) return AdapterRefusal{-status};
    return statistics;
  }

 private:
  struct Close {
    void operator()(maru_adapters* adapters) const { maru_adapters_close(adapters); }
  };
  template <typename Call>
  static AdapterAnswer<void> said(const Call& call) {
    AdapterRefusal refusal;
    const int status = call(&refusal.reason);
    if (status >= 0) return {};
    refusal.code = -status;
    return refusal;
  }
  static AdapterRefusal refusal_of(const AdapterAnswer<void>& answer) {
    AdapterRefusal refusal;
    refusal.code = answer.error();
    answer.reason().copy(refusal.reason.text, sizeof(refusal.reason.text) - 1);
    return refusal;
  }
  static AdapterAnswer<int> counted(int status) {
    if (status < 0) return AdapterRefusal{-status};
    return status;
  }

  std::unique_ptr<maru_adapters, Close> adapters_;
};

class Bgmv {
 public:
  Bgmv() = default;
  static AdapterAnswer<Bgmv> create(uint32_t threads = 0, maru_bgmv_instructions instructions = MARU_BGMV_FASTEST) {
    Bgmv made;
    maru_bgmv* bgmv = nullptr;
    const int status = maru_bgmv_create(threads, uint32_t(instructions), &bgmv);
    if (status < 0) return AdapterRefusal{-status};
    made.bgmv_.reset(bgmv);
    return made;
  }
  maru_bgmv* get() const { return bgmv_.get(); }
  AdapterAnswer<void> add(std::span<const maru_bgmv_request> requests) const {
    const int status = maru_bgmv_add(get(), requests.data(), requests.size());
    if (status < 0) return AdapterRefusal{-status};
    return {};
  }

 private:
  struct Free {
    void operator()(maru_bgmv* bgmv) const { maru_bgmv_free(bgmv); }
  };
  std::unique_ptr<maru_bgmv, Free> bgmv_;
};

class BatchFormer {
 public:
  BatchFormer() = default;
  static AdapterAnswer<BatchFormer> create(const maru_batch_options* options = nullptr) {
    BatchFormer made;
    maru_batch_former* former = nullptr;
    const int status = maru_batch_create(options, &former);
    if (status < 0) return AdapterRefusal{-status};
    made.former_.reset(former);
    return made;
  }
  maru_batch_former* get() const { return former_.get(); }
  AdapterAnswer<void> add(const maru_batch_request& request, uint64_t now_ms) const {
    const int status = maru_batch_add(get(), &request, now_ms);
    if (status < 0) return AdapterRefusal{-status};
    return {};
  }
  // The ids of a batch, n at most.
  AdapterAnswer<std::vector<uint64_t>> next(uint64_t now_ms, size_t n = 256) const {
    std::vector<uint64_t> ids(n);
    const int count = maru_batch_next(get(), now_ms, ids.data(), ids.size());
    if (count < 0) return AdapterRefusal{-count};
    ids.resize(size_t(count));
    return ids;
  }
  size_t waiting() const { return maru_batch_waiting(get()); }

 private:
  struct Free {
    void operator()(maru_batch_former* former) const { maru_batch_free(former); }
  };
  std::unique_ptr<maru_batch_former, Free> former_;
};

}  // namespace api_0
}  // namespace maru

#endif
