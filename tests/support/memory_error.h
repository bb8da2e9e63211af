// A memory error as the kernel reports it, for kernels that cannot make one (MADV_HWPOISON wants CONFIG_MEMORY_FAILURE): the
// signal that it would send, with its code and address, to the calling thread. The memory itself stays readable, so what is
// tested is everything behind the signal. The real thing: tests/process/memory_error_test.cc, in an emulated machine.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

namespace maru::test {

// `code`: BUS_MCEERR_AR, as after an access, or BUS_MCEERR_AO. Returns when the handler has.
inline bool raise_memory_error(const void* address, int code, unsigned size_bits = 12) {
  siginfo_t info;
  std::memset(&info, 0, sizeof(info));
  info.si_signo = SIGBUS;
  info.si_code = code;
  info.si_addr = const_cast<void*>(address);
  info.si_addr_lsb = short(size_bits);
  return ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), SIGBUS, &info) == 0;
}

}  // namespace maru::test
