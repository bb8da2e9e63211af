#include "libmaru/adapters/bgmv.h"

#include "libmaru/adapters/placement.h"

#include <algorithm>
#include <cstring>

namespace maru::adapters {
namespace {

constexpr uint32_t kRequestsMax = 16;          // of one work
constexpr uint64_t kOutputsBytes = 32u << 10;  // part of the outputs that fits the nearest cache, added to at a time

const std::byte* row_at(const maru_adapter_rows& rows, uint64_t row) {
  if (row < rows.first_rows)
    return static_cast<const std::byte*>(rows.parts[0]) + rows.first_offset + row * rows.slot_bytes;
  row -= rows.first_rows;
  return static_cast<const std::byte*>(rows.parts[1 + row / rows.rows_per_part]) +
         row % rows.rows_per_part * rows.slot_bytes;
}

float scale_at(const maru_adapter_rows& rows, uint64_t row) {
  if (rows.dtype != MARU_ADAPTER_INT8) return 1.0f;
  float scale;
  std::memcpy(&scale, row_at(rows, row) + scale_offset(rows.columns), sizeof(scale));
  return scale;
}

// Four rows from `first` on. Behind the last come the last again, which count with factors of zero.
void find_rows(const maru_adapter_rows& rows, uint64_t first, const std::byte** ret_rows) {
  for (unsigned i = 0; i < kRowsAtOnce; ++i) ret_rows[i] = row_at(rows, std::min(first + i, rows.rows - 1));
}

uint64_t rounded_rank(const maru_adapter_module& module) {
  return (module.rank + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
}

}  // namespace

Bgmv::Bgmv(uint32_t threads, const BgmvKernels& kernels) : kernels_(kernels), scratches_(threads) {
  try {
    for (uint32_t number = 1; number < threads; ++number) threads_.emplace_back([this, number] { run(number); });
  } catch (...) {
    {
      const std::lock_guard guard(mutex_);
      is_over_ = true;
    }
    begin_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

Bgmv::~Bgmv() {
  {
    const std::lock_guard guard(mutex_);
    is_over_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Bgmv::run(size_t number) {
  uint64_t seen = 0;
  std::unique_lock guard(mutex_);
  while (true) {
    begin_.wait(guard, [&] { return is_over_ || round_ != seen; });
    if (is_over_) return;
    seen = round_;
    guard.unlock();
    work_on_all(scratches_[number]);
    guard.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

void Bgmv::divide(std::span<const maru_bgmv_request> requests) {
  order_.clear(), works_.clear();
  for (uint32_t i = 0; i < requests.size(); ++i)
    if (requests[i].module != nullptr) order_.push_back(i);
  std::ranges::stable_sort(order_, std::less(), [&](uint32_t i) { return requests[i].module; });
  for (uint32_t first = 0, end = 0; first < order_.size(); first = end) {
    while (end < order_.size() && end - first < kRequestsMax &&
           requests[order_[end]].module == requests[order_[first]].module)
      ++end;
    works_.push_back({first, end - first});
  }
  // The largest works come first. The last works are then small, and the threads end together.
  std::ranges::sort(works_, std::greater(), [&](const Work& work) {
    const maru_adapter_module& module = *requests[order_[work.first]].module;
    return module.rank * (module.in_features + module.out_features) * (work.count + 4);
  });
}

void Bgmv::add(std::span<const maru_bgmv_request> requests) {
  const std::lock_guard caller(callers_);
  requests_ = requests;
  divide(requests);
  // Here, where the caller can be told that there is no memory.
  uint64_t rank_most = 0;
  for (const Work& work : works_) rank_most = std::max(rank_most, rounded_rank(*requests[order_[work.first]].module));
  for (Scratch& scratch : scratches_)
    if (scratch.products.size() < kRequestsMax * rank_most) scratch.products.resize(kRequestsMax * rank_most);
  next_.store(0, std::memory_order_relaxed);  // the mutex orders it
  const bool has_help = !threads_.empty() && works_.size() > 1;
  if (has_help) {
    {
      const std::lock_guard guard(mutex_);
      ++round_;
      busy_ = threads_.size();
    }
    begin_.notify_all();
  }
  work_on_all(scratches_[0]);
  if (!has_help) return;
  std::unique_lock guard(mutex_);
  done_.wait(guard, [&] { return busy_ == 0; });
}

void Bgmv::work_on_all(Scratch& scratch) {
  while (true) {
    const size_t at = next_.fetch_add(1, std::memory_order_relaxed);
    if (at >= works_.size()) return;
    compute(works_[at], scratch);
  }
}

void Bgmv::compute(const Work& work, Scratch& scratch) const {
  const maru_adapter_module& module = *requests_[order_[work.first]].module;
  const uint64_t rank = rounded_rank(module);
  const float* inputs[kRequestsMax];
  float* outputs[kRequestsMax];
  for (uint32_t i = 0; i < work.count; ++i) {
    inputs[i] = requests_[order_[work.first + i]].x;
    outputs[i] = requests_[order_[work.first + i]].y;
  }
  float* const products = scratch.products.data();
  const unsigned at_once = kernels_.requests_at_once;
  const std::byte* rows[kRowsAtOnce];
  float tile[4 * kRowsAtOnce];
  for (uint64_t first = 0; first < rank; first += kRowsAtOnce) {
    find_rows(module.a, first, rows);
    float factors[kRowsAtOnce];
    for (unsigned row = 0; row < kRowsAtOnce; ++row)
      factors[row] = first + row < module.rank
                         ? module.scaling * scale_at(module.a, first + row) * scale_at(module.bt, first + row)
                         : 0.0f;
    for (uint32_t request = 0; request < work.count; request += at_once) {
      const unsigned count = std::min(at_once, work.count - request);
      kernels_.shrink(rows, Element(module.a.dtype), module.in_features, inputs + request, count, tile);
      for (unsigned i = 0; i < count; ++i)
        for (unsigned row = 0; row < kRowsAtOnce; ++row)
          products[(request + i) * rank + first + row] =
              factors[row] == 0.0f ? 0.0f : tile[i * kRowsAtOnce + row] * factors[row];
    }
  }
  const uint64_t columns_at_once = kOutputsBytes / sizeof(float) / work.count / 64 * 64;
  for (uint64_t column = 0; column < module.out_features; column += columns_at_once) {
    const uint64_t columns = std::min(columns_at_once, module.out_features - column);
    for (uint64_t first = 0; first < rank; first += kRowsAtOnce) {
      find_rows(module.bt, first, rows);
      for (uint32_t request = 0; request < work.count; request += at_once) {
        const unsigned count = std::min(at_once, work.count - request);
        for (unsigned i = 0; i < count; ++i)
          std::memcpy(&tile[i * kRowsAtOnce], &products[(request + i) * rank + first], kRowsAtOnce * sizeof(float));
        kernels_.expand(rows, Element(module.bt.dtype), column, columns, tile, outputs + request, count);
      }
    }
  }
}

}  // namespace maru::adapters
