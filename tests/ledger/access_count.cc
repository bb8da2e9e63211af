#include "tests/ledger/access_count.h"

#include "libmaru/shm/region/flush.h"
#include "maru/format/atomic_word.h"

#include <set>

namespace maru::ledger {
namespace {

constexpr uintptr_t kLineBytes = 64;

std::span<const std::byte> watched, own;
thread_local bool is_counting;
thread_local Count now;
thread_local std::set<uintptr_t> loaded, written;

bool lies_in(const void* address, std::span<const std::byte> range) {
  const auto* const byte = static_cast<const std::byte*>(address);
  return byte >= range.data() && byte < range.data() + range.size();
}

bool counts(const void* address) { return is_counting && lies_in(address, watched); }

uintptr_t line_of(const void* address) { return reinterpret_cast<uintptr_t>(address) / kLineBytes; }

void note_load(const void* address) {
  if (counts(address) && loaded.insert(line_of(address)).second) ++now.loaded;
}

void note_write(const void* address) {
  if (!counts(address) || !written.insert(line_of(address)).second) return;
  ++(lies_in(address, own) ? now.own_written : now.written);
}

// A line that is modified is loaded as well.
void note_modification(const void* address) {
  note_load(address);
  note_write(address);
  if (counts(address)) ++now.modified;
}

}  // namespace

void watch(std::span<const std::byte> memory, std::span<const std::byte> own_lane) {
  watched = memory;
  own = own_lane;
}

void begin() {
  now = {};
  loaded.clear();
  written.clear();
  is_counting = true;
}

Count end() {
  is_counting = false;
  return now;
}

}  // namespace maru::ledger

namespace maru::sim {
namespace {

// Every order is the strongest here: what is counted is how often, not how.
template <typename Do>
uint64_t with_width(unsigned bytes, void* address, Do&& access) {
  return bytes == 8 ? access(static_cast<uint64_t*>(address)) : access(static_cast<uint32_t*>(address));
}

}  // namespace

uint64_t on_load(const void* address, unsigned bytes, Order) {
  ledger::note_load(address);
  return with_width(bytes, const_cast<void*>(address),
                    [](auto* word) -> uint64_t { return __atomic_load_n(word, __ATOMIC_SEQ_CST); });
}

void on_store(void* address, unsigned bytes, uint64_t value, Order) {
  ledger::note_write(address);
  with_width(bytes, address, [&](auto* word) -> uint64_t {
    __atomic_store_n(word, static_cast<std::remove_pointer_t<decltype(word)>>(value), __ATOMIC_SEQ_CST);
    return 0;
  });
}

uint64_t on_exchange(void* address, unsigned bytes, uint64_t value, Order) {
  ledger::note_modification(address);
  return with_width(bytes, address, [&](auto* word) -> uint64_t {
    return __atomic_exchange_n(word, static_cast<std::remove_pointer_t<decltype(word)>>(value), __ATOMIC_SEQ_CST);
  });
}

uint64_t on_fetch_add(void* address, unsigned bytes, uint64_t value, Order) {
  ledger::note_modification(address);
  return with_width(bytes, address, [&](auto* word) -> uint64_t {
    return __atomic_fetch_add(word, static_cast<std::remove_pointer_t<decltype(word)>>(value), __ATOMIC_SEQ_CST);
  });
}

uint64_t on_cas(void* address, unsigned bytes, uint64_t expected, uint64_t desired, Order) {
  ledger::note_modification(address);
  return with_width(bytes, address, [&](auto* word) -> uint64_t {
    auto found = static_cast<std::remove_pointer_t<decltype(word)>>(expected);
    __atomic_compare_exchange_n(word, &found, static_cast<decltype(found)>(desired), false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return found;
  });
}

void on_flush(const void* address, size_t) {
  if (ledger::counts(address)) ++ledger::now.flushed;
}

}  // namespace maru::sim
