#include "libmaru/adapters/checksum.h"

#define XXH_INLINE_ALL
#include <cstring>
#include <new>
#include <xxhash.h>

namespace maru::adapters {
namespace {
#include "libmaru/adapters/xxh3_checksummer.h"
}  // namespace

std::unique_ptr<Checksummer> plain_checksummer() { return std::unique_ptr<Checksummer>(new (std::nothrow) Xxh3); }

std::unique_ptr<Checksummer> make_checksummer() {
  std::unique_ptr<Checksummer> fast = avx2_checksummer();
  return fast ? std::move(fast) : plain_checksummer();
}

}  // namespace maru::adapters
