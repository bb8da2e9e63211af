// What somebody who looks on is told of the blocks of a pool: a bounded list of events, of which the oldest go when nobody
// takes them, and what has to be remembered to know that something has happened. inspect/watch.cc finds out what happens.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace maru::daemon {

class BlockWatch {
 public:
  static constexpr size_t kEventsMax = 1u << 14;
  // Blocks whose keys are remembered, so that one that a client removes can be named.
  static constexpr size_t kNamesMax = 1u << 16;

  struct Block {
    std::string key;         // as text; empty: not known
    uint64_t key_bytes = 0;  // of the whole key, when `key` is only its beginning; otherwise 0
    uint64_t tenant = 0;
    uint64_t length_bytes = 0, metadata_bytes = 0;
  };
  struct Event {
    uint64_t at_ms = 0;       // when it was seen
    std::string_view reason;  // of a removal: static text; empty: the block was stored
    uint32_t page = 0;
    Block block;
  };

  // The time also tells this watch from others.
  BlockWatch(uint64_t pages, uint64_t now_ms)
      : begun_ms(now_ms), asked_ms(now_ms), lives_(static_cast<uint32_t*>(std::calloc(pages, sizeof(uint32_t)))) {}
  bool has_memory() const { return lives_ != nullptr; }

  // -- the blocks -----------------------------------------------------------------------------------------------------
  // Whether the page holds a block as far as is known here, and whether it is that of this generation.
  bool is_there(uint32_t page) const { return lives_.get()[page] != 0; }
  bool is_there(uint32_t page, uint32_t generation) const { return lives_.get()[page] == mark(generation); }
  void came(uint32_t page, uint32_t generation, const Block& block);
  // Returns what is known of it.
  Block went(uint32_t page);

  // -- the events -----------------------------------------------------------------------------------------------------
  void add(Event event);
  uint64_t first() const { return next_ - events_.size(); }  // number of the oldest that is there
  uint64_t next() const { return next_; }                    // of the one that comes next
  const Event& event(uint64_t number) const { return events_[size_t(number - first())]; }

  const uint64_t begun_ms;
  uint64_t asked_ms;          // when somebody asked last
  uint64_t look_next = 0;     // page: the walk that finds what nobody tells
  bool has_seen_all = false;  // the walk was round once

 private:
  // Never 0. Two generations in a row never have the same mark, except the last and the first of 2^32.
  static constexpr uint32_t mark(uint32_t generation) { return generation == ~0u ? 1 : generation + 1; }
  struct Free {
    void operator()(uint32_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint32_t, Free> lives_;  // by page; zero pages of the kernel until they are used
  std::unordered_map<uint32_t, Block> names_;
  std::deque<Event> events_;
  uint64_t next_ = 0;
};

}  // namespace maru::daemon
