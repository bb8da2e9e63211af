#include "libmaru/client/thread_state.h"

#include <new>

namespace maru::client {

pthread_key_t thread_state_key;

int make_thread_state_key() {
  static const int code =
      ::pthread_key_create(&thread_state_key, [](void* state) { delete static_cast<ThreadState*>(state); });
  return code;
}

ThreadState* make_thread_state() noexcept {
  auto* state = new (std::nothrow) ThreadState;
  if (state == nullptr || ::pthread_setspecific(thread_state_key, state) == 0) return state;
  delete state;
  return nullptr;
}

ThreadState& thread_state() {
  if (ThreadState* state = try_thread_state()) return *state;
  throw std::bad_alloc();
}

}  // namespace maru::client
