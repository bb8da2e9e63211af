// The program is linked with --wrap for each function here, so that these stand between libmaru-blend and libmaru.
#include "tests/blend/steps.h"

#include "maru/maru.h"

#include <csignal>
#include <unistd.h>

namespace maru::test {
namespace {
uint64_t last_step = 0, step = 0;

void count_step() {
  if (++step == last_step) ::kill(::getpid(), SIGKILL);
}
}  // namespace

void die_at_step(uint64_t number) {
  last_step = number;
  step = 0;
}

}  // namespace maru::test

#define MARU_STEP(name, parameters, arguments)  \
  extern "C" int __real_##name parameters;      \
  extern "C" int __wrap_##name parameters;      \
  extern "C" int __wrap_##name parameters {     \
    maru::test::count_step();                   \
    const int status = __real_##name arguments; \
    maru::test::count_step();                   \
    return status;                              \
  }

MARU_STEP(maru_alloc_with_metadata, (maru_client * c, uint64_t bytes, uint32_t more, size_t n, maru_buffer* ret),
          (c, bytes, more, n, ret))
MARU_STEP(maru_abort, (maru_client * c, const maru_buffer* buffer), (c, buffer))
MARU_STEP(maru_store_pinned,
          (maru_client * c, const maru_key* key, const maru_buffer* buffer, const maru_store_options* options,
           maru_view* ret),
          (c, key, buffer, options, ret))
MARU_STEP(maru_store_copy,
          (maru_client * c, const maru_key* key, const void* data, uint64_t bytes, const maru_store_options* options,
           maru_block* ret),
          (c, key, data, bytes, options, ret))
MARU_STEP(maru_store,
          (maru_client * c, const maru_key* key, const maru_buffer* buffer, const maru_store_options* options,
           maru_block* ret),
          (c, key, buffer, options, ret))
MARU_STEP(maru_pin, (maru_client * c, const maru_key* key, maru_view* ret), (c, key, ret))
MARU_STEP(maru_unpin, (maru_client * c, const maru_view* view), (c, view))
MARU_STEP(maru_retrieve, (maru_client * c, const maru_key* key, maru_view* ret), (c, key, ret))
MARU_STEP(maru_retrieve_batch, (maru_client * c, const maru_key* keys, size_t n, maru_view* ret), (c, keys, n, ret))
MARU_STEP(maru_release, (maru_client * c, const maru_view* view), (c, view))
MARU_STEP(maru_release_batch, (maru_client * c, const maru_view* views, size_t n), (c, views, n))
MARU_STEP(maru_exists_rows, (maru_client * c, const maru_key_rows* rows, size_t n, uint8_t* ret), (c, rows, n, ret))
MARU_STEP(maru_match_prefix, (maru_client * c, const maru_key* keys, size_t n, maru_match* ret), (c, keys, n, ret))
MARU_STEP(maru_release_match, (maru_client * c, maru_match* match), (c, match))
MARU_STEP(maru_delete_block, (maru_client * c, maru_block block, uint32_t flags), (c, block, flags))
MARU_STEP(maru_get_block_info, (maru_client * c, maru_block block, maru_block_info* ret, maru_key_copy* key),
          (c, block, ret, key))
