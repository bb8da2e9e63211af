// Clients hand out their rings of spans here (maru/format/spans.h), and this keeps all rings that are being read.
//
// A client that ends leaves its ring here until its last span is read. Each ring is memory of its client. This program keeps a
// mapping for a client, and at most `clients` of them. A user may have a part of them, so that others find room.
//
// Nothing that a client sends or writes is believed: the memory cannot shrink, its header is checked and copied, and a slot is
// copied before it is looked at.
//
// Thread safety: one thread.
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/eventd/settings.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/base/result.h"
#include "libmaru/spans/ring.h"

#include <chrono>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::eventd {

// The origin of spans.
struct SpanSource {
  std::string service, pool;
  uint64_t process = 0;
  uint32_t lane = 0;
};

// The spans of one reading, by source.
struct SpanBatch {
  struct Part {
    SpanSource source;
    std::vector<format::Span> spans;
  };
  std::vector<Part> parts;
  size_t spans = 0;
};

// False: a client has written a slot that is no span.
bool is_whole(const format::Span& span);

class SpanIntake {
 public:
  using Clock = std::chrono::steady_clock;

  // Errors: of bind(2); EADDRINUSE another program listens there.
  static Result<std::unique_ptr<SpanIntake>> open(const TraceSettings& settings, daemon::beside::Counters& counters);
  ~SpanIntake();
  SpanIntake(const SpanIntake&) = delete;
  SpanIntake& operator=(const SpanIntake&) = delete;

  // Descriptors to wait for, until they can be read.
  void add_to_poll(std::vector<int>& descriptors) const;
  // Takes new clients, and sees which have ended.
  void serve();
  // Reads up to so many spans, of all clients in turns.
  SpanBatch drain(size_t spans_max, Clock::time_point now);
  // Notes in the rings that all spans until here are done with, for the next maru-eventd.
  void note_taken();

 private:
  struct Client {
    FileDescriptor connection;  // not open: the client has ended
    uid_t user = 0;             // that connected, by the kernel's word
    Mapping memory;
    dev_t device = 0;
    ino_t inode = 0;
    spans::RingView ring;
    spans::RingReader reader;
    SpanSource source;
    Clock::time_point unfinished_since{};  // of the next span; zero: it is not known to be unfinished
    uint64_t lost_told = 0;
    bool is_empty = false;  // when it was read last, or ended
    bool is_damaged = false;
  };

  SpanIntake(const TraceSettings& settings, daemon::beside::Counters& counters);
  std::string why_no_more(uid_t user) const;
  void complain(const std::string& trouble, Clock::time_point now);
  void accept_all();
  void greet(FileDescriptor connection);
  std::string take(FileDescriptor&& connection, const format::SpanHello& hello, FileDescriptor memory);
  void read(Client& client, size_t spans_max, Clock::time_point now, SpanBatch& batch);

  const std::string path_;
  const size_t clients_max_, user_clients_max_;
  FileDescriptor listener_;
  std::vector<FileDescriptor> strangers_;  // connected, without a hello so far
  std::vector<std::unique_ptr<Client>> clients_;
  size_t first_ = 0;  // the client that is read first next time
  Clock::time_point complain_at_{};
  daemon::beside::Sample &present_, &refused_, &lost_;
};

}  // namespace maru::eventd
