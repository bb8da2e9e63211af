// The library's state for each thread of the program.
//
// A key of the threads library leads to it, and no variable here is thread_local. Thread-local words that need no call lie in a
// block with little room beyond the words of the program itself. Once other libraries have used up this room, the loader
// refuses a library that wants some. For other words the C library allocates memory at the first use in each thread. Without
// memory it ends the process, and a handler of a signal may not allocate.
#pragma once

#include "libmaru/client/trace_context.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/blocks/prefix.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <pthread.h>
#include <span>
#include <tuple>
#include <type_traits>

namespace maru::client {

struct OpenSpan;

struct ThreadState {
  // Memory that grows and stays.
  template <typename T>
  struct Scratch {
    static_assert(std::is_trivially_destructible_v<T>);
    std::unique_ptr<T[]> memory;
    size_t size = 0;
  };

  uint64_t tenant = 0;                 // of the blocks that this thread stores next
  void* volatile innermost = nullptr;  // memory_errors.cc: the frame that the handler leaves
  TraceContext request;                // maru_set_traceparent(): the request of this thread
  const OpenSpan* span = nullptr;      // of the call that is under way, where it is traced
  uint64_t number = 0;  // the kernel's, as this ring's client has learnt it; a child of fork() has another ring
  uint64_t number_of_ring = 0;
  std::tuple<Scratch<int32_t>, Scratch<uint32_t>, Scratch<uint64_t>, Scratch<shm::Digest>, Scratch<shm::Found>,
             Scratch<shm::HeldBlock>, Scratch<shm::PageRef>, Scratch<shm::PlainDigest>>
      scratch;
};

extern pthread_key_t thread_state_key;

// Before any other call here. 0, or the errno of a process that has no key left.
int make_thread_state_key();
// The calling thread's, or nothing if it has none yet. Safe in a handler of a signal.
inline ThreadState* thread_state_if_any() { return static_cast<ThreadState*>(::pthread_getspecific(thread_state_key)); }
// The same, and makes it; nothing without memory. It ends with the thread, after the destructors of the program's own
// thread-local objects.
ThreadState* make_thread_state() noexcept;
inline ThreadState* try_thread_state() noexcept {
  ThreadState* state = thread_state_if_any();
  return state ? state : make_thread_state();
}
// The same, or std::bad_alloc.
ThreadState& thread_state();

// Memory of the calling thread, which the next call for this type overwrites.
template <typename T>
std::span<T> scratch(size_t n) {
  auto& mine = std::get<ThreadState::Scratch<T>>(thread_state().scratch);
  if (mine.size < n) {
    const size_t larger = std::max(n, 2 * mine.size);  // many calls in a row may ask for one more each
    mine.memory.reset(new T[larger]());
    mine.size = larger;
  }
  return {mine.memory.get(), n};
}

// The thread among all that are there now. It stands in a register, so that the hot path may ask.
inline uint64_t thread_identity() {
#if defined(__x86_64__)
  uint64_t block;  // its first word is its own address
  __asm__("mov %%fs:0, %0" : "=r"(block));
  return block;
#else
  return reinterpret_cast<uint64_t>(__builtin_thread_pointer());
#endif
}

}  // namespace maru::client
