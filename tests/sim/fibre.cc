#include "fibre.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif

namespace maru::sim {
namespace {
constexpr size_t kStackBytes = 256u << 10;  // an audit on a fibre's stack needs the most
}  // namespace

// Only what the ABI lets a callee rely on is saved. The floating-point control words are not: no fibre changes them.
#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".globl maru_sim_switch\n"
    ".type maru_sim_switch,@function\n"
    "maru_sim_switch:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size maru_sim_switch,.-maru_sim_switch\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".globl maru_sim_switch\n"
    ".type maru_sim_switch,%function\n"
    "maru_sim_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n"
    "  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n"
    "  ldp x21, x22, [sp, #16]\n"
    "  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size maru_sim_switch,.-maru_sim_switch\n");
#else
#error "the simulator's fibre switch is written for x86-64 and AArch64"
#endif

void FibreStack::map() {
  const size_t os_page = size_t(sysconf(_SC_PAGESIZE));
  mapping_bytes_ = kStackBytes + os_page;
  void* memory =
      mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, os_page, PROT_NONE) != 0) {
    std::perror("sim: map a fibre's stack");
    std::abort();
  }
  mapping_ = static_cast<char*>(memory);
}

FibreStack::~FibreStack() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

void FibreStack::start(void (*entry)()) {
  if (mapping_ == nullptr) map();
#if defined(ASAN_UNPOISON_MEMORY_REGION)
  ASAN_UNPOISON_MEMORY_REGION(mapping_, mapping_bytes_);  // the marks of functions that never returned
#endif
  auto* top = reinterpret_cast<uint64_t*>(mapping_ + mapping_bytes_);
#if defined(__x86_64__)
  // After six pops and the return the stack pointer is 8 below a multiple of 16, as a function finds it after a call.
  top -= 8;
  for (int i = 0; i < 8; ++i) top[i] = 0;
  top[6] = reinterpret_cast<uint64_t>(entry);
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = 0;
  top[11] = reinterpret_cast<uint64_t>(entry);  // x30
#endif
  stack_pointer = top;
}

}  // namespace maru::sim
