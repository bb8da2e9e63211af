// A small number for the calling thread: the first thread that asks is 1. Never 0, never used again.
#pragma once

#include <atomic>
#include <cstdint>

namespace maru::client {

inline uint32_t thread_number() {
  static std::atomic<uint32_t> last{0};
  // In the block of thread-local memory that every thread has anyway: a load, no call.
  static thread_local uint32_t mine __attribute__((tls_model("initial-exec"))) = 0;
  if (mine == 0) mine = last.fetch_add(1, std::memory_order_relaxed) + 1;  // any order will do
  return mine;
}

}  // namespace maru::client
