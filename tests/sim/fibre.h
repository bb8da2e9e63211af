// A fibre: a stack that is switched by hand. swapcontext() makes a system call per switch to save the signal mask, which
// would be nine tenths of a schedule's cost, so the switch is a dozen instructions of our own on x86-64 and AArch64.
#pragma once

#include <cstddef>

namespace maru::sim {

// Stacks are mapped once and used by millions of schedules; below each lies a page that may not be touched.
class FibreStack {
 public:
  FibreStack() = default;
  ~FibreStack();
  FibreStack(const FibreStack&) = delete;
  FibreStack& operator=(const FibreStack&) = delete;

  // Prepares the stack so that the first switch to it calls entry(), which must not return. Whatever was on the stack
  // is forgotten: a simulated process that was killed runs no destructor either.
  void start(void (*entry)());

  void* stack_pointer = nullptr;  // where the fibre was left

 private:
  void map();

  char* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

// Leaves the running fibre, whose stack pointer goes to *save_to, and continues another.
extern "C" void maru_sim_switch(void** save_to, void* continue_at);

}  // namespace maru::sim
