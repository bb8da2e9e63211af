#include "libmaru/spans/own_ring.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

namespace maru::spans {
namespace {

// The finalizer of splitmix64: other numbers give other results.
constexpr uint64_t mixed(uint64_t word) {
  word = (word ^ word >> 30) * 0xBF58'476D'1CE4'E5B9;
  word = (word ^ word >> 27) * 0x94D0'49BB'1331'11EB;
  return word ^ word >> 31;
}

void copy_text(std::string_view text, char (&ret_field)[64]) {
  std::memcpy(ret_field, text.data(), std::min(text.size(), sizeof(ret_field) - 1));  // the field is zero
}

// A seal keeps whoever has the descriptor from making the memory smaller under the reader.
FileDescriptor make_memory(uint64_t bytes) {
  FileDescriptor made(::memfd_create("maru spans", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.is_open() || ::ftruncate(made.get(), off_t(bytes)) != 0 ||
      ::fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return {};
  return made;
}

}  // namespace

uint64_t unix_ns() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

void SpanIds::seed() {
  if (::getrandom(seeds_, sizeof(seeds_), GRND_NONBLOCK) != ssize_t(sizeof(seeds_)))
    for (uint64_t& one : seeds_) one = mixed(unix_ns() ^ reinterpret_cast<uintptr_t>(&one));
}

uint64_t SpanIds::trace_high(uint64_t number) const { return mixed(seeds_[0] ^ number); }

uint64_t SpanIds::trace_low(uint64_t number) const { return std::max<uint64_t>(1, mixed(seeds_[1] + number)); }

uint64_t SpanIds::span(uint64_t number) const { return std::max<uint64_t>(1, mixed(seeds_[2] + number)); }

Result<OwnRing> make_own_ring(uint32_t spans, std::string_view service, std::string_view pool, uint32_t lane) {
  const uint32_t slots = std::bit_ceil(std::clamp(spans, format::kSpanSlotsMin, format::kSpanSlotsMax));
  const uint64_t bytes = format::span_ring_bytes(slots);
  OwnRing made;
  made.memory = make_memory(bytes);
  if (!made.memory.is_open()) return failure(errno, "take memory for spans");
  auto mapping = Mapping::map_shared(made.memory.get(), 0, bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return tl::unexpected(mapping.error());
  ::madvise(mapping->data(), bytes, MADV_DONTFORK);
  made.mapping = std::move(*mapping);
  made.view = RingView::format(made.mapping.bytes(), slots);
  made.ids.seed();
  made.hello.magic = format::kSpanRingMagic;
  made.hello.version = format::kSpanRingVersion;
  made.hello.lane = lane;
  made.hello.process = uint64_t(::getpid());
  copy_text(pool, made.hello.pool);
  copy_text(service, made.hello.service);
  return made;
}

}  // namespace maru::spans
