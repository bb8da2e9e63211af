// The one io_uring of marud. Completions only become events; other files decide their meaning, at the pace of the
// deciding thread.
//
// Every operation carries a kind and a number chosen by the caller (a connection, a lane watch), never a pointer. So a
// completion that arrives after its owner is gone finds no owner and does no harm. Memory that an operation uses (msghdr,
// buffers) must stay until its completion has been seen.
#pragma once

#include "libmaru/base/result.h"

#include <cstdint>
#include <memory>
#include <sys/socket.h>
#include <vector>

namespace maru::daemon {

enum class EventKind : uint8_t {
  kNone = 0,
  kAccept,   // result: a connection
  kPacket,   // a connection: something can be received or it is over; result: the events, as poll(2) has them
  kSend,     // result: bytes sent
  kProcess,  // a pidfd became readable: the process ended
  kSignal,   // the signal descriptor is readable
  kHttp,     // the HTTP thread asks something
  kFiles,    // a file of the socket may have been taken away
};

struct Event {
  EventKind kind;
  uint64_t id;  // as given, 56 bits
  int result;   // or -errno
};

class EventLoop {
 public:
  static Result<std::unique_ptr<EventLoop>> create();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop();

  // One connection; it may be asked for several times at once.
  void accept(int listener);
  void cancel_accepts();  // each completes, with a connection or -ECANCELED
  // Completes once something can be received, or the other end is gone, or will send no more. Nothing is received:
  // messages of clients stay in the kernel, on their accounts, until it is their turn.
  void watch_packets(uint64_t id, int fd);
  void send(uint64_t id, int fd, msghdr* message);
  void watch_process(uint64_t id, int pidfd);
  void watch_signals(int fd);
  void watch_http(int fd);
  void watch_files(uint64_t id, int fd);
  // Ends an operation; its completion still comes.
  void cancel(EventKind kind, uint64_t id);
  // Submits the operations that were asked for, waits until an operation completes or the time is over, and returns all
  // completions. The caller chooses the next user among all completions, so none may be left behind many others. The operations
  // bound their number: a packet and a send of each connection, and a process of each lane. Completions beyond kEventsMax wait
  // for the next turn. The vector is valid until the next call.
  Result<const std::vector<Event>*> wait(uint64_t timeout_ms);

  static constexpr size_t kEventsMax = 16384;

 private:
  struct Ring;
  explicit EventLoop(std::unique_ptr<Ring> ring);
  unsigned take_completions();  // how many there were
  std::unique_ptr<Ring> ring_;
  std::vector<Event> events_;
};

}  // namespace maru::daemon
