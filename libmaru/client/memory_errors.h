// Memory that goes bad under a process arrives as SIGBUS. The signal is the program's, so the library acts only if the program
// asked with maru_handle_memory_errors(). Then one handler acts on the library's own signals, and passes all others on:
//
//   * the library's own reading and copying of payload (run_guarded) ends early and says so;
//   * a view that meets bad memory reads zeros from that page on, if the program asked for that as well, and the page is noted
//     with the client, for maru_view_error() and for marud.
//
// A machine may take away more than a page of the pool (2 MiB and more on devices and huge pages), and it is replaced whole. So
// every page that lies in it is bad for this process from then on: a read does not give the stored bytes, and no other process
// sees a write. Such pages are refused, in both directions; other processes may still have them.
//
// Thread safety: any. The handler takes no lock and allocates nothing.
#pragma once

#include "libmaru/client/wake.h"
#include "maru/format/atomic_word.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace maru::client {

// Installs the handler; more flags may follow. 0 or -errno.
int handle_memory_errors(uint32_t flags);

// Addresses of memory that is bad, or may be: `end` does not count.
struct BadRange {
  uintptr_t start = 0, end = 0;
  bool is_absent = false;  // the memory is not bad but absent: the file system is full, or the file was cut off
};

// Runs `run(argument)`, which reads or writes [start, start + bytes) and has nothing to clean up. False: it met bad memory
// there (*ret_bad says where), and was left. Without the handler the signal goes to its owner.
bool run_guarded(const void* start, size_t bytes, void (*run)(void*), void* argument, BadRange* ret_bad);

template <typename F>
bool guarded(const void* start, size_t bytes, F&& run, BadRange* ret_bad) {
  return run_guarded(start, bytes, [](void* argument) { (*static_cast<F*>(argument))(); }, &run, ret_bad);
}

// One client's knowledge of bad pages: written by any thread and by the handler, read by the session thread, which tells marud.
class BadPages {
 public:
  // `base`: the address of page 0, in `mapped`, which can be replaced in multiples of `unit` bytes alone. `wake`: of
  // the thread that tells marud, which may have none; outlives this.
  BadPages(std::byte* base, uint64_t pages, uint64_t page_bytes, std::span<std::byte> mapped, uint64_t unit,
           const Wake& wake);
  ~BadPages();
  BadPages(const BadPages&) = delete;
  BadPages& operator=(const BadPages&) = delete;

  // 0: the handler finds it. Else why not: ENOMEM, or the errno of a kernel that cannot empty memory in a child of fork().
  int unplaced_because() const { return unplaced_because_; }

  // Marks the pages of the pool in the range bad, and notes for marud as many as there is room for. Safe in a signal handler.
  void note(const BadRange& bad);
  bool has(uint32_t page) const { return (bits_[page / 64].load_relaxed() >> page % 64 & 1) != 0; }  // own process
  // Whether something of these bytes, from a page on, is bad. The first time that such a page is met here marud is to be
  // told of it.
  bool meets(uint32_t first, uint64_t bytes) {
    return is_any_.load_relaxed() != 0 && look_for(first, bytes);  // set by this process, before the memory is replaced
  }
  // A page that marud was not told of yet; it stays one until was_said().
  bool next_unsaid(uint32_t* ret_page) const;
  void was_said(uint32_t page);

  // Whether a page of the pool lies in there.
  bool covers(const BadRange& bad) const { return bad.end > base_ && bad.start < base_ + pages_ * page_bytes_; }
  // Puts zeroed private memory where the machine has lost some; every page of that is bad before. `size_bits`: how much the
  // kernel says is lost; where it does not know it says 0, or nonsense. Safe in a signal handler.
  bool replace(uintptr_t address, unsigned size_bits);

 private:
  static constexpr uint32_t kUnsaid = 64;

  bool look_for(uint32_t first, uint64_t bytes);
  void mark(uint32_t first, uint32_t last);
  void say(uint32_t page);

  const uintptr_t base_;
  const uint64_t pages_, page_bytes_;
  const uintptr_t mapped_, mapped_end_;
  const uint64_t unit_;
  const Wake& wake_;
  std::unique_ptr<AtomicU64[]> bits_, met_;  // bad; bad, and met by a call
  AtomicU32 is_any_{0};
  AtomicU64 unsaid_[kUnsaid];                // page + 1; 0: free. A page without a place is noted at its next use
  std::atomic<BadPages*>* place_ = nullptr;  // where the handler finds it; each client of the process has one
  int unplaced_because_ = 0;
};

}  // namespace maru::client
