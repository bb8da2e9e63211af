// A ring of spans that this process writes: its memory, its greeting for maru-eventd, and identities for its spans.
//
// Thread safety: making one, none; afterwards nothing changes but the ring, which is for any number of writers (ring.h).
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/base/result.h"
#include "libmaru/spans/ring.h"

#include <cstdint>
#include <string_view>

namespace maru::spans {

// Identities from numbers, other ones in each process. They are never 0.
class SpanIds {
 public:
  // Without the kernel's random bytes from the clock.
  void seed();
  uint64_t trace_high(uint64_t number) const;
  uint64_t trace_low(uint64_t number) const;
  uint64_t span(uint64_t number) const;

 private:
  uint64_t seeds_[3] = {};
};

struct OwnRing {
  Mapping mapping;
  FileDescriptor memory;  // sealed: maru-eventd gets it with the greeting
  RingView view;
  SpanIds ids;
  format::SpanHello hello = {};
};

// Of as many spans, rounded up to a power of two. Texts are cut at 63 bytes. In a child of fork() the ring is not mapped.
// Errors: EMFILE, ENOSYS, those of memfd_create(2) and mmap(2).
Result<OwnRing> make_own_ring(uint32_t spans, std::string_view service, std::string_view pool, uint32_t lane);

uint64_t unix_ns();

}  // namespace maru::spans
