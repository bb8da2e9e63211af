#include "libmaru/shm/region/flush.h"

#if defined(__x86_64__) && !defined(MARU_SIM)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace maru::shm {

#if defined(MARU_SIM)

void flush_lines(const void* address, size_t bytes) { sim::on_flush(address, bytes); }
const char* flush_instruction() { return "simulated"; }

#elif defined(__x86_64__)

namespace {

constexpr uintptr_t kLineBytes = 64;

enum class Instruction : uint8_t { kClwb, kClflushopt, kClflush };

Instruction best_instruction() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return Instruction::kClflush;
  if ((b >> 24 & 1) != 0)
    return Instruction::kClwb;  // keeps the line: the publisher's readers are often its neighbours
  return (b >> 23 & 1) != 0 ? Instruction::kClflushopt : Instruction::kClflush;
}

Instruction instruction() {
  static const Instruction best = best_instruction();
  return best;
}

}  // namespace

void flush_lines(const void* address, size_t bytes) {
  if (bytes == 0) return;
  const auto first = reinterpret_cast<uintptr_t>(address) & ~(kLineBytes - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + bytes;
  // Written out, because intrinsics would demand that the whole file is compiled for the newest processor.
  switch (instruction()) {
    case Instruction::kClwb:
      for (uintptr_t line = first; line < end; line += kLineBytes)
        __asm__ volatile("clwb %0" : "+m"(*reinterpret_cast<volatile char*>(line)) : : "memory");
      break;
    case Instruction::kClflushopt:
      for (uintptr_t line = first; line < end; line += kLineBytes)
        __asm__ volatile("clflushopt %0" : "+m"(*reinterpret_cast<volatile char*>(line)) : : "memory");
      break;
    case Instruction::kClflush:
      for (uintptr_t line = first; line < end; line += kLineBytes) _mm_clflush(reinterpret_cast<const void*>(line));
      break;
  }
  _mm_sfence();
}

const char* flush_instruction() {
  switch (instruction()) {
    case Instruction::kClwb: return "clwb";
    case Instruction::kClflushopt: return "clflushopt";
    case Instruction::kClflush: break;
  }
  return "clflush";
}

#else

void flush_lines(const void*, size_t) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
const char* flush_instruction() { return "none"; }

#endif

}  // namespace maru::shm
