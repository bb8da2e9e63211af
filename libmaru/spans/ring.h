// The ring of spans (include/maru/format/spans.h): threads of one client write, and maru-eventd reads.
//
// Thread safety: any number of writers, one reader. Progress: no writer waits, and the reader waits for a writer's span only as
// long as its caller likes. Two writers meet in one slot when a thread is stopped while others fill the whole ring: then one of
// them gives its span up. If a process dies here: a slot says that it is being written, and the reader passes over it.
#pragma once

#include "maru/format/spans.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

namespace maru::spans {

using format::Span;
using format::SpanRingHeader;
using format::SpanSlot;

// A ring in mapped memory. `slots` is the mapping's, and not read from it again.
class RingView {
 public:
  RingView() = default;
  // Writes the header of an empty ring over zeros.
  static RingView format(std::span<std::byte> memory, uint32_t slots) {
    RingView view(memory, slots);
    SpanRingHeader& header = view.header();
    header.version = format::kSpanRingVersion;
    header.header_bytes = format::kSpanHeaderBytes;
    header.slots = slots;
    header.slot_bytes = sizeof(SpanSlot);
    header.magic = format::kSpanRingMagic;
    return view;
  }
  // Returns nullptr, or the fault.
  static const char* attach(std::span<std::byte> memory, RingView* ret_view) {
    if (memory.size() < format::span_ring_bytes(format::kSpanSlotsMin))
      return "the memory is smaller than the smallest ring";
    const auto& header = *reinterpret_cast<const SpanRingHeader*>(memory.data());
    const uint32_t slots = header.slots;  // once: the client may change it
    if (header.magic != format::kSpanRingMagic) return "the memory is no ring of spans";
    if (header.version != format::kSpanRingVersion) return "the ring is of another version";
    if (header.header_bytes != format::kSpanHeaderBytes || header.slot_bytes != sizeof(SpanSlot))
      return "the ring has other sizes than its version";
    if (slots < format::kSpanSlotsMin || slots > format::kSpanSlotsMax || !std::has_single_bit(slots) ||
        format::span_ring_bytes(slots) > memory.size())
      return "the ring has a number of slots that it cannot have";
    *ret_view = RingView(memory, slots);
    return nullptr;
  }

  SpanRingHeader& header() const { return *header_; }
  SpanSlot& slot(uint64_t number) const { return slots_[number & (count_ - 1)]; }
  uint64_t slots() const { return count_; }

 private:
  RingView(std::span<std::byte> memory, uint32_t slots)
      : header_(reinterpret_cast<SpanRingHeader*>(memory.data())),
        slots_(reinterpret_cast<SpanSlot*>(memory.data() + format::kSpanHeaderBytes)),
        count_(slots) {}

  SpanRingHeader* header_ = nullptr;
  SpanSlot* slots_ = nullptr;
  uint64_t count_ = 1;
};

inline void write_span(const RingView& ring, const Span& span) {
  const uint64_t number = ring.header().written.fetch_add_relaxed(1);  // the slot's state publishes the span
  SpanSlot& slot = ring.slot(number);
  uint64_t state = slot.state.load_relaxed();                               // the exchange below proves it
  if ((state & format::kSpanIsWritten) != 0 || state > number + 1) return;  // another thread has, or had, the slot
  if (!slot.state.cas_acq_rel(state, (number + 1) | format::kSpanIsWritten)) return;  // [pairs span.state]
  uint64_t words[format::kSpanWords];
  std::memcpy(words, &span, sizeof(span));
  for (size_t i = 0; i < format::kSpanWords; ++i) slot.words[i].store_release(words[i]);  // [pairs span.word]
  slot.state.store_release(number + 1);                                                   // [pairs span.state]
}

class RingReader {
 public:
  enum class Got : uint8_t {
    kSpan,
    kNothing,
    kUnfinished,  // a thread is writing the next one: later, or pass()
    kDamaged      // the client cannot have written so many
  };

  RingReader() = default;
  // Begins behind the spans that an earlier reader has taken, as far as they are still there.
  explicit RingReader(const RingView& ring) : ring_(ring) {
    const uint64_t written = ring_.header().written.load_relaxed();  // a hint, as each number that a client gives
    next_ = std::min(ring_.header().taken.load_relaxed(), written);
  }

  Got read(Span* ret_span) {
    for (uint64_t tries = 0; tries < ring_.slots(); ++tries) {  // a client that writes all the time is read later
      const uint64_t written = ring_.header().written.load_relaxed();  // as above: the slot decides
      if (written <= next_) return Got::kNothing;
      if (written - next_ > kLostMax) return Got::kDamaged;
      if (written - next_ > ring_.slots()) {
        lost_ += written - ring_.slots() - next_;
        next_ = written - ring_.slots();
      }
      const SpanSlot& slot = ring_.slot(next_);
      const uint64_t state = slot.state.load_acquire();  // [pairs span.state]
      if (state == next_ + 1) {
        uint64_t words[format::kSpanWords];
        for (size_t i = 0; i < format::kSpanWords; ++i) words[i] = slot.words[i].load_acquire();  // [pairs span.word]
        if (slot.state.load_acquire() == state) {                                                 // [pairs span.state]
          std::memcpy(ret_span, words, sizeof(*ret_span));
          ++next_;
          return Got::kSpan;
        }
        continue;  // it was overwritten meanwhile
      }
      const uint64_t there = state & ~format::kSpanIsWritten;
      if (there > next_ + 1) {  // a later span lies there
        pass();
        continue;
      }
      return Got::kUnfinished;
    }
    return Got::kNothing;
  }
  // Gives the next span up.
  void pass() {
    ++next_;
    ++lost_;
  }
  // The spans up to this number are exported, for the next reader.
  void note_taken(uint64_t number) const { ring_.header().taken.store_relaxed(number); }  // no other word depends on it

  uint64_t next() const { return next_; }
  uint64_t lost() const { return lost_; }  // overwritten or given up, so far

 private:
  static constexpr uint64_t kLostMax = 1ull << 40;  // between two looks

  RingView ring_;
  uint64_t next_ = 0, lost_ = 0;
};

}  // namespace maru::spans
