// The words of routers: runs of an engine's blocks of tokens come, and go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace maru::eventd {

// Blocks of an engine that follow each other in a prompt, each with `block_size` tokens and under its hash of 64 bits.
struct Blocks {
  std::vector<uint64_t> hashes;
  std::optional<uint64_t>
      parent;                    // the block before the first one; nothing: a prompt begins with it, or it is not known
  std::vector<uint32_t> tokens;  // of all blocks; empty: they are known by their hashes alone
  uint32_t block_size = 0;
  std::string medium;  // where they are: "CPU", "GPU"; empty: not said
  std::string lora_name, cache_salt;
  std::optional<uint64_t> lora_id;      // an engine's own; the 64 bits of a number that may be negative
  std::vector<std::string> extra_keys;  // of an engine's event: one value in MessagePack for each block, or none at all
  // Of an engine's event, pairs in MessagePack that are passed on as they came. `place` tells apart blocks under one hash
  // besides the medium, and removals have it, too; `more` is the rest.
  std::string place, more;
  size_t place_pairs = 0, more_pairs = 0;

  bool has_tokens() const { return !tokens.empty(); }
};

struct RouterEvent {
  enum class Kind : uint8_t {
    kStored,
    kRemoved,  // hashes, medium and `place` count
    kCleared   // nothing is there any more
  };
  Kind kind = Kind::kStored;
  Blocks blocks;
};

// Events in their order. Runs that continue each other become one event, and a long run becomes several.
class EventList {
 public:
  static constexpr size_t kHashesMax = 256;  // of one event

  void stored(const Blocks& blocks, size_t first, size_t count);  // of these blocks, `count` from `first` on
  void removed(const Blocks& blocks, size_t first, size_t count);
  void cleared();
  void append(const RouterEvent& event);

  bool empty() const { return events_.empty(); }
  const std::vector<RouterEvent>& events() const { return events_; }
  size_t bytes() const { return bytes_; }  // that they will have in MessagePack, about
  void clear() {
    events_.clear();
    bytes_ = 0;
  }

 private:
  std::vector<RouterEvent> events_;
  size_t bytes_ = 0;
};

}  // namespace maru::eventd
