// The peers: other ways to keep a small record under a key where several processes can find it. All hold the same keys.
#pragma once

#include "tests/bench/keys.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace maru::bench {

// What a lookup finds in every peer, the size of a block's location. The second word is the complement of the first, so
// that a caller can make the next question depend on what it read.
struct PeerRecord {
  uint64_t words[3];
};
inline constexpr size_t kSmallValueBytes = 64;

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  // Where a server runs matters: 2 when it can be on this CPU or on another one.
  virtual unsigned placements() const { return 1; }
  virtual void place(unsigned) {}
  // Stores the records of key_of(0..keys).
  virtual void load(uint64_t keys) = 0;
  virtual bool exists(const Key& key) = 0;
  virtual uint64_t exists_batch(const Key* keys, uint64_t count) = 0;
  // Finds the record and reads it under whatever keeps it from changing, which ends before the return.
  virtual bool lookup(const Key& key, PeerRecord& record) = 0;
  virtual bool put(const Key& key, const void* value64) = 0;
  virtual bool remove(const Key& key) = 0;
};

// Each returns null when the machine lacks it. `directory` is private to the suite, on tmpfs.
std::unique_ptr<Peer> start_memcached(const std::string& directory, uint64_t keys);
std::unique_ptr<Peer> start_redis(const std::string& directory, uint64_t keys);
std::unique_ptr<Peer> open_lmdb(const std::string& directory, uint64_t keys);
std::unique_ptr<Peer> open_boost_interprocess(uint64_t keys);
std::unique_ptr<Peer> open_tbb();

}  // namespace maru::bench
