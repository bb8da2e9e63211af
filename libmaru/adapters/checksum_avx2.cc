#include "libmaru/adapters/checksum.h"

#include <cstring>
#include <new>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#define XXH_VECTOR 2  // XXH_AVX2
#include <xxhash.h>

namespace maru::adapters {
namespace {
#include "libmaru/adapters/xxh3_checksummer.h"
}  // namespace
#pragma GCC pop_options

std::unique_ptr<Checksummer> avx2_checksummer() {
  if (!__builtin_cpu_supports("avx2")) return nullptr;
  return std::unique_ptr<Checksummer>(new (std::nothrow) Xxh3);
}

}  // namespace maru::adapters
#else
namespace maru::adapters {
std::unique_ptr<Checksummer> avx2_checksummer() { return nullptr; }
}  // namespace maru::adapters
#endif
