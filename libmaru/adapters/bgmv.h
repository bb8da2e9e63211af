// A batch of products: groups the requests by adapter, divides the work, and owns the threads.
#pragma once

#include "libmaru/adapters/bgmv_kernels.h"
#include "maru/adapters.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace maru::adapters {

class Bgmv {
 public:
  // Throws std::system_error when a thread cannot be started.
  Bgmv(uint32_t threads, const BgmvKernels& kernels);
  ~Bgmv();
  Bgmv(const Bgmv&) = delete;
  Bgmv& operator=(const Bgmv&) = delete;

  // Checked by the caller.
  void add(std::span<const maru_bgmv_request> requests);

 private:
  // Some requests for one module: as many as keep its rows in the cache nearest to the core.
  struct Work {
    uint32_t first, count;  // in order_
  };
  // A thread's memory beside its work; kept, so that no call allocates twice.
  struct Scratch {
    std::vector<float> products;  // [request][rank rounded up to 4]
  };

  void divide(std::span<const maru_bgmv_request> requests);
  void work_on_all(Scratch& scratch);
  void compute(const Work& work, Scratch& scratch) const;
  void run(size_t number);

  const BgmvKernels& kernels_;
  std::mutex callers_;  // one call at a time
  std::span<const maru_bgmv_request> requests_;
  std::vector<uint32_t> order_;  // requests by module
  std::vector<Work> works_;      // the largest first
  std::atomic<size_t> next_{0};
  std::vector<Scratch> scratches_;

  std::mutex mutex_;  // of the members below
  std::condition_variable begin_, done_;
  uint64_t round_ = 0;
  size_t busy_ = 0;
  bool is_over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace maru::adapters
