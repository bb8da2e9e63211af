// The blocks that one stream has announced, of all its sources. Each block is announced once and taken back once, even when
// several sources, copies and ranks hold it. All of them can be announced again, for subscribers that have lost some.
//
// An *item* is a block of a pool, with one or more of the engine's blocks in it, or one block of an engine's feed. Invariants:
// (1) an engine's block (a hash in a medium) is announced exactly while each of its ranks has an item with it; (2) in the order
// of the items each block stands behind its parent.
//
// Thread safety: one thread.
#pragma once

#include "daemon/eventd/blocks.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

namespace maru::eventd {

struct ItemKey {
  uint32_t source = 0;  // which of the stream's
  uint64_t name = 0;    // of the item, by the source
  uint64_t part = 0;    // more of the name: of an engine's block, a hash of medium and group
  friend bool operator==(const ItemKey&, const ItemKey&) = default;
};

struct Item {
  Blocks blocks;
  uint32_t rank = 0;   // which part of each block this item has
  uint32_t ranks = 1;  // how many parts make a block, 1 to kRanksMax
};

class Contents {
 public:
  static constexpr uint32_t kRanksMax = 1024;

  // An item that is there already counts once more, and stays as it is.
  void add(const ItemKey& key, Item item, EventList& out);
  // Of an item that is not there nothing happens.
  void remove(const ItemKey& key, EventList& out);
  void remove_all(uint32_t source, EventList& out);  // children first
  void forget(uint32_t source);                      // announces nothing; announce_all() has to follow
  // Tells that nothing is there, and then all that is; `after_each` may publish and empty `out`.
  void announce_all(EventList& out, const std::function<void()>& after_each = [] {});

  size_t items() const { return items_.size(); }
  size_t announced() const { return announced_; }  // blocks of engines

 private:
  struct Kept {
    ItemKey key;
    Item item;
    uint64_t count = 1;
  };
  struct KeyHash {
    size_t operator()(const ItemKey& key) const {
      return size_t((key.name ^ key.part * 0x9e37'79b9'7f4a'7c15u) + key.source);
    }
  };
  // One block of an engine in a medium.
  struct BlockKey {
    uint64_t hash;
    uint64_t place;  // a hash of medium and group
    friend bool operator==(const BlockKey&, const BlockKey&) = default;
  };
  struct BlockKeyHash {
    size_t operator()(const BlockKey& key) const { return size_t(key.hash ^ key.place); }
  };
  struct Presence {
    std::vector<std::pair<uint32_t, uint32_t>> holders;  // rank, items
    bool is_announced = false;
  };
  using Order = std::map<uint64_t, Kept>;

  bool hold(const BlockKey& key, const Item& item);    // whether it is to be announced now
  bool let_go(const BlockKey& key, const Item& item);  // whether it is to be taken back now
  void announce(const Item& item, EventList& out);
  void take_back(const Item& item, EventList& out);

  Order order_;
  std::unordered_map<ItemKey, Order::iterator, KeyHash> items_;
  std::unordered_map<BlockKey, Presence, BlockKeyHash> blocks_;
  uint64_t next_ = 0;
  size_t announced_ = 0;
};

// A hash of the medium and of Blocks::place, which tell apart blocks under one hash.
uint64_t place_of(const Blocks& blocks);

}  // namespace maru::eventd
