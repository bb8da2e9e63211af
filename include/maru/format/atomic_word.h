// The only way to touch a word that two processes share.
//
// An AtomicWord is a plain aggregate over the compiler's __atomic builtins. It is not std::atomic because mapped memory
// has no constructor to run, and because nothing here may silently fall back to a lock: a lock of the C++ runtime is
// private to a process. The memory order is in the name of each method and there is no conversion to the integer, so
// every shared access can be found by reading.
//
// In a simulator build (MARU_SIM) each method is a scheduling point: the access is handed to the simulator, which keeps
// a store buffer per simulated process. See tests/sim/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace maru {

#if defined(MARU_SIM)
namespace sim {
enum class Order : uint8_t { kRelaxed, kAcquire, kRelease, kAcqRel, kSeqCst };
// `bytes` is 4 or 8. All of these may switch to another simulated process before they act.
uint64_t on_load(const void* address, unsigned bytes, Order order);
void on_store(void* address, unsigned bytes, uint64_t value, Order order);
uint64_t on_exchange(void* address, unsigned bytes, uint64_t value, Order order);
uint64_t on_fetch_add(void* address, unsigned bytes, uint64_t value, Order order);
// Returns the value found; the store happened if and only if that equals `expected`.
uint64_t on_cas(void* address, unsigned bytes, uint64_t expected, uint64_t desired, Order order);
}  // namespace sim
#endif

template <typename T>
struct AtomicWord {
  static_assert(std::is_unsigned_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  static_assert(__atomic_always_lock_free(sizeof(T), nullptr));

  // Never named outside this struct, except by code that owns the memory alone (formatting).
  T raw;

#if defined(MARU_SIM)
  T load_relaxed() const { return T(sim::on_load(&raw, sizeof(T), sim::Order::kRelaxed)); }
  T load_acquire() const { return T(sim::on_load(&raw, sizeof(T), sim::Order::kAcquire)); }
  T load_seq_cst() const { return T(sim::on_load(&raw, sizeof(T), sim::Order::kSeqCst)); }
  void store_relaxed(T value) { sim::on_store(&raw, sizeof(T), value, sim::Order::kRelaxed); }
  void store_release(T value) { sim::on_store(&raw, sizeof(T), value, sim::Order::kRelease); }
  T exchange_seq_cst(T value) { return T(sim::on_exchange(&raw, sizeof(T), value, sim::Order::kSeqCst)); }
  T fetch_add_relaxed(T value) { return T(sim::on_fetch_add(&raw, sizeof(T), value, sim::Order::kRelaxed)); }
  T fetch_add_seq_cst(T value) { return T(sim::on_fetch_add(&raw, sizeof(T), value, sim::Order::kSeqCst)); }
  bool cas_relaxed(T& expected, T desired) { return cas(expected, desired, sim::Order::kRelaxed); }
  bool cas_acq_rel(T& expected, T desired) { return cas(expected, desired, sim::Order::kAcqRel); }
  bool cas_seq_cst(T& expected, T desired) { return cas(expected, desired, sim::Order::kSeqCst); }

 private:
  bool cas(T& expected, T desired, sim::Order order) {
    const T found = T(sim::on_cas(&raw, sizeof(T), expected, desired, order));
    const bool stored = found == expected;
    expected = found;
    return stored;
  }
#else
  T load_relaxed() const { return __atomic_load_n(&raw, __ATOMIC_RELAXED); }
  T load_acquire() const { return __atomic_load_n(&raw, __ATOMIC_ACQUIRE); }
  T load_seq_cst() const { return __atomic_load_n(&raw, __ATOMIC_SEQ_CST); }
  void store_relaxed(T value) { __atomic_store_n(&raw, value, __ATOMIC_RELAXED); }
  void store_release(T value) { __atomic_store_n(&raw, value, __ATOMIC_RELEASE); }
  T exchange_seq_cst(T value) { return __atomic_exchange_n(&raw, value, __ATOMIC_SEQ_CST); }
  T fetch_add_relaxed(T value) { return __atomic_fetch_add(&raw, value, __ATOMIC_RELAXED); }
  T fetch_add_seq_cst(T value) { return __atomic_fetch_add(&raw, value, __ATOMIC_SEQ_CST); }
  // Each cas_* stores `desired` if the word equals `expected` and returns true. Otherwise it puts the word into `expected` and
  // returns false. All are strong: false means that the word had another value.
  bool cas_relaxed(T& expected, T desired) {
    return __atomic_compare_exchange_n(&raw, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
  bool cas_acq_rel(T& expected, T desired) {
    return __atomic_compare_exchange_n(&raw, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  bool cas_seq_cst(T& expected, T desired) {
    return __atomic_compare_exchange_n(&raw, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  }
#endif
};

using AtomicU32 = AtomicWord<uint32_t>;
using AtomicU64 = AtomicWord<uint64_t>;

static_assert(sizeof(AtomicU32) == 4 && sizeof(AtomicU64) == 8);
static_assert(std::has_unique_object_representations_v<AtomicU64>);

}  // namespace maru
