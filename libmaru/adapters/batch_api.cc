// maru_batch: arguments checked.
#include "libmaru/adapters/batch_former.h"

#include <cerrno>
#include <cmath>
#include <memory>
#include <new>

using namespace maru::adapters;

struct maru_batch_former {
  explicit maru_batch_former(const BatchFormer::Limits& limits) : former(limits) {}
  BatchFormer former;
};

namespace {

template <typename Call>
int guarded(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

uint32_t otherwise(uint32_t value, uint32_t if_zero) { return value != 0 ? value : if_zero; }

}  // namespace

int maru_batch_create(const maru_batch_options* options, maru_batch_former** ret_former) {
  maru_batch_options defaults = {};
  defaults.size = sizeof(defaults);
  if (options == nullptr) options = &defaults;
  if (ret_former == nullptr || options->size != sizeof(*options) || options->policy > MARU_BATCH_POPULAR)
    return -EINVAL;
  return guarded([&] {
    const BatchFormer::Limits limits = {options->policy, otherwise(options->requests_max, 256),
                                        otherwise(options->adapters_max, 32), otherwise(options->ranks_max, 4096),
                                        otherwise(options->old_ms, 1000)};
    *ret_former = std::make_unique<maru_batch_former>(limits).release();
    return 0;
  });
}

void maru_batch_free(maru_batch_former* former) { delete former; }

int maru_batch_set_weight(maru_batch_former* former, uint64_t tenant, double weight) {
  if (former == nullptr || !std::isfinite(weight) || weight <= 0) return -EINVAL;
  return guarded([&] {
    former->former.set_weight(tenant, weight);
    return 0;
  });
}

int maru_batch_add(maru_batch_former* former, const maru_batch_request* request, uint64_t now_ms) {
  if (former == nullptr || request == nullptr) return -EINVAL;
  return guarded([&] { return former->former.add(*request, now_ms) ? 0 : -EEXIST; });
}

int maru_batch_cancel(maru_batch_former* former, uint64_t id) {
  if (former == nullptr) return -EINVAL;
  return guarded([&] { return former->former.cancel(id) ? 0 : -ENOENT; });
}

int maru_batch_next(maru_batch_former* former, uint64_t now_ms, uint64_t* ret_ids, size_t n) {
  if (former == nullptr || ret_ids == nullptr || n == 0) return -EINVAL;
  return guarded([&] { return int(former->former.next(now_ms, ret_ids, n)); });
}

size_t maru_batch_waiting(const maru_batch_former* former) { return former != nullptr ? former->former.waiting() : 0; }
