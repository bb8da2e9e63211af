// The simulated memory: a store buffer per fibre, under the rules that stand at the top of engine.cc.
#include "engine_state.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace maru::sim {
namespace {

// -- the trace --------------------------------------------------------------------------------------------------------

const char* order_name(Order order) {
  switch (order) {
    case Order::kRelaxed: return "relaxed";
    case Order::kAcquire: return "acquire";
    case Order::kRelease: return "release";
    case Order::kAcqRel: return "acq_rel";
    case Order::kSeqCst: return "seq_cst";
  }
  return "?";
}

}  // namespace

void trace_access(const char* what, const Fibre& fibre, const void* address, uint64_t value, const char* detail) {
  char name[kNameBytes];
  char meaning[kNameBytes];
  std::snprintf(name, sizeof name, "%p", address);
  std::snprintf(meaning, sizeof meaning, "0x%" PRIx64, value);
  if (engine.namer != nullptr) engine.namer(address, value, name, meaning);
  std::printf("%6" PRIu64 "  %-12s %-9s %-28s %s  %s\n", engine.steps, fibre.name, what, name, meaning, detail);
}

namespace {

// -- store buffers ----------------------------------------------------------------------------------------------------

uint64_t read_memory(const void* address, unsigned bytes) {
  if (bytes == 8) return *static_cast<const uint64_t*>(address);
  return *static_cast<const uint32_t*>(address);
}

// The instant at which a store of a process becomes visible to everybody.
void write_memory(void* address, unsigned bytes, uint64_t value, unsigned process) {
  const uint64_t before = read_memory(address, bytes);
  if (engine.host_of_process != nullptr && process != kNobody) line_written(address, process);
  if (bytes == 8) {
    *static_cast<uint64_t*>(address) = value;
  } else {
    *static_cast<uint32_t*>(address) = uint32_t(value);
  }
  const char* place = static_cast<const char*>(address);
  if (place >= engine.watch_begin && place < engine.watch_end && before != value) {
    Unseen unseen;
    engine.watch(address, before, value);
  }
}

// No store may pass a buffered read-modify-write of another fibre on the same word: that one has already read the value
// which its own write follows.
void make_exclusives_visible(const void* address, unsigned except) {
  if (engine.exclusive_count == 0) return;
  for (uint32_t mask = engine.pending_mask; mask != 0; mask &= mask - 1) {
    const unsigned owner = uint32_t(__builtin_ctz(mask));
    if (owner == except) continue;
    for (unsigned i = 0; i < engine.fibres[owner].buffered; ++i) {
      if (engine.fibres[owner].buffer[i].exclusive && engine.fibres[owner].buffer[i].address == address) {
        make_visible(owner, i);
        break;  // at most one per word
      }
    }
  }
}

}  // namespace

void make_visible(unsigned owner, unsigned index) {
  Fibre& fibre = engine.fibres[owner];
  const BufferedStore store = fibre.buffer[index];
  if (engine.memory_model == MemoryModel::kTso || store.release) {
    while (fibre.buffer[0].sequence != store.sequence) make_visible(owner, 0);
  } else {
    for (unsigned i = 0; i < fibre.buffered && fibre.buffer[i].sequence < store.sequence;) {
      if (fibre.buffer[i].address == store.address) {
        make_visible(owner, i);
      } else {
        ++i;
      }
    }
  }
  unsigned at = 0;
  while (fibre.buffer[at].sequence != store.sequence) ++at;
  std::memmove(&fibre.buffer[at], &fibre.buffer[at + 1], (fibre.buffered - at - 1) * sizeof(BufferedStore));
  if (--fibre.buffered == 0) engine.pending_mask &= ~(1u << owner);
  if (store.exclusive) --engine.exclusive_count;
  if (store.sequence >= fibre.visible_sequence) fibre.visible_sequence = store.sequence + 1;
  if (!store.exclusive) make_exclusives_visible(store.address, owner);
  if (engine.settings.trace) trace_access("visible", fibre, store.address, store.value, "");
  write_memory(store.address, store.bytes, store.value, fibre.process);
}

void make_all_visible(unsigned owner) {
  while (engine.fibres[owner].buffered > 0) make_visible(owner, 0);
}

namespace {

// Used before a read-modify-write or seq_cst load.
void make_word_visible(unsigned owner, const void* address) {
  Fibre& fibre = engine.fibres[owner];
  for (unsigned i = 0; i < fibre.buffered;) {
    if (fibre.buffer[i].address == address) {
      make_visible(owner, i);
      i = 0;
    } else {
      ++i;
    }
  }
}

void make_ordered_visible(unsigned owner) {
  Fibre& fibre = engine.fibres[owner];
  for (unsigned i = 0; i < fibre.buffered;) {
    if (fibre.buffer[i].release || fibre.buffer[i].exclusive) {
      make_visible(owner, i);
      i = 0;
    } else {
      ++i;
    }
  }
}

void buffer_store(void* address, unsigned bytes, uint64_t value, bool release, bool exclusive) {
  Fibre& fibre = engine.fibres[engine.current];
  if (fibre.buffered == kBufferStores) make_visible(engine.current, 0);
  fibre.buffer[fibre.buffered++] = {address, value, fibre.sequence++, uint8_t(bytes), release, exclusive};
  engine.pending_mask |= 1u << engine.current;
  if (exclusive) ++engine.exclusive_count;
}

}  // namespace

// -- the accesses -----------------------------------------------------------------------------------------------------

uint64_t on_load(const void* address, unsigned bytes, Order order) {
  if (direct()) return read_memory(address, bytes);
  point();
  Fibre& fibre = engine.fibres[engine.current];
  // x86 needs nothing for a seq_cst load, and gives nothing either.
  if (order == Order::kSeqCst && engine.memory_model == MemoryModel::kRelaxed) make_ordered_visible(engine.current);
  uint64_t value = 0;
  bool own = false;
  for (unsigned i = fibre.buffered; i > 0 && !own; --i) {
    own = fibre.buffer[i - 1].address == address;
    if (own) value = fibre.buffer[i - 1].value;
  }
  if (!own) {
    if (engine.host_of_process != nullptr) line_read(address);
    value = read_memory(address, bytes);
  }
  if (engine.settings.trace) trace_access("load", fibre, address, value, own ? "(own buffer)" : order_name(order));
  return value;
}

void on_store(void* address, unsigned bytes, uint64_t value, Order order) {
  if (direct()) return write_memory(address, bytes, value, kNobody);
  point();
  if (engine.settings.trace) trace_access("store", engine.fibres[engine.current], address, value, order_name(order));
  if (engine.memory_model == MemoryModel::kSequential)
    return write_memory(address, bytes, value, engine.fibres[engine.current].process);
  buffer_store(address, bytes, value, order != Order::kRelaxed, false);
}

namespace {

// What a read-modify-write does before it reads: the word's history up to here must be in memory.
uint64_t begin_update(const void* address, unsigned bytes) {
  point();
  if (engine.memory_model == MemoryModel::kTso) {
    make_all_visible(engine.current);
  } else {
    make_word_visible(engine.current, address);
  }
  make_exclusives_visible(address, engine.current);
  if (engine.host_of_process != nullptr) line_read(address);
  return read_memory(address, bytes);
}

void end_update(const char* what, void* address, unsigned bytes, uint64_t value, Order order) {
  if (engine.settings.trace) trace_access(what, engine.fibres[engine.current], address, value, order_name(order));
  if (engine.memory_model != MemoryModel::kRelaxed)
    return write_memory(address, bytes, value, engine.fibres[engine.current].process);
  const bool release = order == Order::kRelease || order == Order::kAcqRel || order == Order::kSeqCst;
  if (release) make_all_visible(engine.current);
  buffer_store(address, bytes, value, release, true);
}

}  // namespace

uint64_t on_exchange(void* address, unsigned bytes, uint64_t value, Order order) {
  if (direct()) {
    const uint64_t before = read_memory(address, bytes);
    write_memory(address, bytes, value, kNobody);
    return before;
  }
  const uint64_t before = begin_update(address, bytes);
  end_update("exchange", address, bytes, value, order);
  return before;
}

uint64_t on_fetch_add(void* address, unsigned bytes, uint64_t value, Order order) {
  if (direct()) {
    const uint64_t before = read_memory(address, bytes);
    write_memory(address, bytes, before + value, kNobody);
    return before;
  }
  const uint64_t before = begin_update(address, bytes);
  end_update("add", address, bytes, bytes == 8 ? before + value : uint32_t(before + value), order);
  return before;
}

uint64_t on_cas(void* address, unsigned bytes, uint64_t expected, uint64_t desired, Order order) {
  if (direct()) {
    const uint64_t found = read_memory(address, bytes);
    if (found == expected) write_memory(address, bytes, desired, kNobody);
    return found;
  }
  const uint64_t found = begin_update(address, bytes);
  if (found == expected) {
    end_update("cas", address, bytes, desired, order);
  } else if (engine.settings.trace) {
    trace_access("cas fails", engine.fibres[engine.current], address, found, order_name(order));
  }
  return found;
}

}  // namespace maru::sim
