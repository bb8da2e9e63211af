#include "attachment.h"

#include "errors.h"

#include <atomic>
#include <pthread.h>

namespace maru_python {
namespace {

std::atomic<unsigned> forks_seen{0};

void note_fork() { forks_seen.fetch_add(1, std::memory_order_relaxed); }  // the child has one thread, this one

}  // namespace

unsigned forks() { return forks_seen.load(std::memory_order_relaxed); }

void watch_forks() { pthread_atfork(nullptr, nullptr, note_fork); }

void Attachment::refuse() const {
  if (forks_ != forks())
    raise_named("ForkedError",
                "This was made before fork(), and the child has none of it: make a Client of its own in the child, or call "
                "connect() there of a MaruHandler.");
  raise_named("ClosedError", "The client is closed: make a new Client.");
}

void Attachment::close() {
  is_closed_ = true;
  if (uses_ == 0) detach();
}

void Attachment::end_use() {
  if (--uses_ == 0 && is_closed_) detach();
}

void Attachment::detach() {
  is_closed_ = true;
  maru_client* client = std::exchange(client_, nullptr);
  if (client == nullptr) return;
  // Waits for marud's answer, and for the session thread.
  const WithoutGil released;
  maru_detach(client);
}

}  // namespace maru_python
