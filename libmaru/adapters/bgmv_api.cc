// maru_bgmv: arguments checked.
#include "libmaru/adapters/bgmv.h"
#include "libmaru/adapters/processors.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <system_error>

using namespace maru::adapters;

struct maru_bgmv {
  maru_bgmv(uint32_t threads, uint32_t of_instructions, const BgmvKernels& kernels)
      : instructions(of_instructions), bgmv(threads, kernels) {}
  const uint32_t instructions;
  Bgmv bgmv;
};

namespace {

constexpr uint32_t kThreadsMax = 256;

const BgmvKernels* kernels_of(uint32_t instructions) {
  switch (instructions) {
    case MARU_BGMV_PLAIN: return &plain_kernels();
    case MARU_BGMV_AVX2: return avx2_kernels();
    case MARU_BGMV_AVX512: return avx512_kernels();
    default: return nullptr;
  }
}

bool are_rows(const maru_adapter_rows& rows, uint64_t rank, uint64_t columns) {
  return rows.parts != nullptr && rows.rows == rank && rows.columns == columns && rows.dtype >= MARU_ADAPTER_FLOAT32 &&
         rows.dtype <= MARU_ADAPTER_INT8 && (rows.first_rows >= rows.rows || rows.rows_per_part > 0);
}

bool is_request(const maru_bgmv_request& request) {
  if (request.module == nullptr) return true;
  const maru_adapter_module& module = *request.module;
  return module.size == sizeof(module) && request.x != nullptr && request.y != nullptr && module.rank > 0 &&
         are_rows(module.a, module.rank, module.in_features) && are_rows(module.bt, module.rank, module.out_features);
}

}  // namespace

int maru_bgmv_create(uint32_t threads, uint32_t instructions, maru_bgmv** ret_bgmv) {
  if (ret_bgmv == nullptr || threads > kThreadsMax || instructions > MARU_BGMV_AVX512) return -EINVAL;
  if (instructions == MARU_BGMV_FASTEST)
    instructions = avx512_kernels() != nullptr ? MARU_BGMV_AVX512
                   : avx2_kernels() != nullptr ? MARU_BGMV_AVX2
                                               : MARU_BGMV_PLAIN;
  const BgmvKernels* const kernels = kernels_of(instructions);
  if (kernels == nullptr) return -EOPNOTSUPP;
  try {
    *ret_bgmv = std::make_unique<maru_bgmv>(threads != 0 ? threads : std::min(processors(), kThreadsMax), instructions,
                                            *kernels)
                    .release();
    return 0;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  } catch (const std::system_error&) {
    return -EAGAIN;
  }
}

void maru_bgmv_free(maru_bgmv* bgmv) { delete bgmv; }

uint32_t maru_bgmv_uses(const maru_bgmv* bgmv) { return bgmv != nullptr ? bgmv->instructions : 0; }

int maru_bgmv_add(maru_bgmv* bgmv, const maru_bgmv_request* requests, size_t n) {
  if (bgmv == nullptr || (n > 0 && requests == nullptr) || n > UINT32_MAX) return -EINVAL;
  for (size_t i = 0; i < n; ++i)
    if (!is_request(requests[i])) return -EINVAL;
  try {
    bgmv->bgmv.add({requests, n});
    return 0;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}
