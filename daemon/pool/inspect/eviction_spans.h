// Spans of evictions that no request waits for: in the background, of expired blocks, for administrators. A request's own spans
// are in its client's ring. docs/tracing.md lists their fields.
//
// They come from the counters of the pool, which a turn reads before and after its work. So no eviction reads a line more, and
// without tracing a turn tests one pointer more. A span begins with the turn in which the first block goes. It ends when the
// pool has nothing more to do, or after a second.
//
// The ring is marud's own, one for each pool. A thread hands it to maru-eventd. While maru-eventd is away the oldest spans are
// overwritten.
//
// Thread safety: one thread.
#pragma once

#include "daemon/base/aside.h"
#include "daemon/pool/core.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/spans/own_ring.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

namespace maru::daemon {

class EvictionSpans {
 public:
  explicit EvictionSpans(PoolCore& core) : core_(core) {}
  ~EvictionSpans();  // ends the spans that have begun
  EvictionSpans(const EvictionSpans&) = delete;
  EvictionSpans& operator=(const EvictionSpans&) = delete;

  // From here on they are written, if the configuration has a socket for them. Without memory for the ring the log says so.
  void begin();
  void begin_turn() {
    if (ring_) note_turn();
  }
  // `has_more`: the pool goes on right away.
  void end_turn(bool has_more) {
    if (ring_) look_at_turn(has_more);
  }

 private:
  static constexpr size_t kReasons = 3;
  struct Counts {
    uint64_t blocks = 0, pages = 0;
  };
  struct Open {
    uint64_t begun_ns = 0, ended_ns = 0, turns = 0;  // no turns: there is none
    Counts went;
  };

  std::array<Counts, kReasons> counts() const;
  void note_turn();
  void look_at_turn(bool has_more);
  void write(size_t which);
  void keep_connected();

  PoolCore& core_;
  std::shared_ptr<spans::OwnRing> ring_;  // null: nothing is traced. A thread that connects has it, too
  uint64_t number_ = 0;
  uint64_t turn_begun_ns_ = 0;
  std::array<Counts, kReasons> before_;
  std::array<Open, kReasons> open_;

  FileDescriptor connection_;
  Aside<std::optional<FileDescriptor>> connecting_;
  uint64_t connect_again_ms_ = 0;
};

}  // namespace maru::daemon
