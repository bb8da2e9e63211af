// Storing and deleting small blocks, and copying large ones in.
#include "maru/format/recording.h"
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/keys.h"
#include "tests/bench/peers.h"
#include "tests/bench/suite.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace maru::bench {

namespace {

constexpr uint64_t kStoreKeys = 200'000;
constexpr uint64_t kSparePages = 64 << 10;
constexpr uint64_t kSmallBytes = 64;
constexpr size_t kParents = 64;

// Touches every page that holds no block, so that no store meets a page fault.
void prefault_free_pages(maru_client* client, uint64_t pages) {
  std::vector<maru_buffer> buffers(pages);
  must(maru_alloc_batch(client, 1, pages, buffers.data()), "alloc");
  for (const maru_buffer& buffer : buffers) std::memset(buffer.data, 0, kSmallBytes);
  must(maru_abort_batch(client, buffers.data(), pages), "abort");
}

class SmallStores {
 public:
  SmallStores(maru_client* client, uint64_t count) : client_(client), keys_(count), options_{} {
    options_.size = sizeof options_;
    std::memset(payload_, 7, sizeof payload_);
    for (size_t i = 0; i < kParents; ++i) {
      const Key key = key_of(kSpaceRow + (1ull << 36) + i);
      const maru_key name = as_maru_key(key);
      must(maru_store_copy(client_, &name, payload_, kSmallBytes, nullptr, &parents_[i]), "store a parent");
    }
  }

  // `metadata`: of each block; may be null.
  double store(bool child, const maru_metadata* metadata = nullptr) {
    options_.metadata = metadata;
    fresh_keys();
    const double result = store_all(child);
    delete_all();
    return result;
  }
  // Of the last stores, with all laps.
  double mean() const { return mean_; }
  // Stores of all samples that met a full bucket (-EXFULL).
  uint64_t refused() const { return refused_; }
  double remove() {
    options_.metadata = nullptr;
    fresh_keys();
    store_all(false);
    return delete_all();
  }

 private:
  void fresh_keys() {
    for (Key& key : keys_) key = key_of(kSpaceRow + next_++);
  }
  // Laps are short, so that few of them meet another process's time slice.
  static constexpr size_t kLapBlocks = 64;

  double store_all(bool child) {
    Laps laps;
    uint64_t refused = 0;
    for (size_t begin = 0; begin < keys_.size(); begin += kLapBlocks) {
      const size_t end = std::min(begin + kLapBlocks, keys_.size());
      const uint64_t started_ns = now_ns();
      for (size_t i = begin; i < end; ++i) {
        maru_buffer buffer;
        const uint32_t room = options_.metadata ? options_.metadata->bytes : 0;
        must(maru_alloc_with_metadata(client_, kSmallBytes, room, 1, &buffer), "alloc");
        std::memcpy(buffer.data, payload_, kSmallBytes);
        options_.parent = child ? parents_[i % kParents] : 0;
        refused += !store_block(client_, keys_[i], buffer, &options_);
      }
      laps.add(now_ns() - started_ns, end - begin);
    }
    mean_ = laps.mean();
    last_refused_ = refused;
    refused_ += refused;
    return laps.trimmed_mean();
  }
  double delete_all() {
    Laps laps;
    uint64_t absent = 0;
    for (size_t begin = 0; begin < keys_.size(); begin += kLapBlocks) {
      const size_t end = std::min(begin + kLapBlocks, keys_.size());
      const uint64_t started_ns = now_ns();
      for (size_t i = begin; i < end; ++i) {
        const maru_key name = as_maru_key(keys_[i]);
        const int result = maru_delete(client_, &name);
        if (result != -ENOENT) must(result, "delete");
        absent += result == -ENOENT;
      }
      laps.add(now_ns() - started_ns, end - begin);
    }
    // A full bucket makes room for another key: that takes a block of before, in one of some 50,000 stores.
    if (absent < last_refused_ || absent - last_refused_ > keys_.size() / 1000)
      throw std::runtime_error("a block that was stored is absent");
    return laps.trimmed_mean();
  }

  maru_client* client_;
  std::vector<Key> keys_;
  maru_store_options options_;
  maru_block parents_[kParents];
  std::byte payload_[kSmallBytes];
  uint64_t next_ = 0;
  double mean_ = 0;
  uint64_t refused_ = 0, last_refused_ = 0;
};

double peer_updates(Peer& peer, uint64_t count, bool time_removal) {
  static uint64_t next = 0;
  std::byte payload[kSmallValueBytes] = {};
  std::vector<Key> keys(count);
  for (Key& key : keys) key = key_of(kSpaceRow + next++);
  Laps storing, removing;
  bool good = true;
  for (const Key& key : keys) {
    const uint64_t started_ns = now_ns();
    good = peer.put(key, payload) && good;
    storing.add(now_ns() - started_ns, 1);
  }
  for (const Key& key : keys) {
    const uint64_t started_ns = now_ns();
    good = peer.remove(key) && good;
    removing.add(now_ns() - started_ns, 1);
  }
  if (!good) throw std::runtime_error("wrong answer: " + peer.name());
  return (time_removal ? removing : storing).trimmed_mean();
}

void copy_row(Suite& suite, const char* row, uint64_t copy_bytes, uint64_t page_bytes) {
  if (!suite.wants(row)) return;
  constexpr uint64_t kCopies = 32;
  PoolShape shape;
  shape.pages = 96;
  shape.page_bytes = page_bytes;
  shape.region_bytes = 64 * page_bytes;
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), 64);
  const maru_geometry geometry = client.geometry();
  const Facts facts = facts_of(geometry, 0);
  // As many places as one region has, so that ours and the floor's go through the same amount of memory.
  const FloorMemory target(kCopies * page_bytes, facts.huge_pages);
  const FloorMemory source(copy_bytes, facts.huge_pages);
  std::memset(source.data(), 3, copy_bytes);
  {
    std::vector<maru_buffer> buffers(64);
    must(maru_alloc_batch(client, page_bytes, buffers.size(), buffers.data()), "alloc");
    for (const maru_buffer& buffer : buffers) std::memset(buffer.data, 0, page_bytes);
    must(maru_abort_batch(client, buffers.data(), buffers.size()), "abort");
  }
  uint64_t next = kSpaceRow;
  std::vector<Contestant> contestants = {
      {"value", [&] {
         const uint64_t first = next;
         next += kCopies;
         Laps laps;
         for (uint64_t i = first; i < next; ++i) {
           const Key key = key_of(i);
           const maru_key name = as_maru_key(key);
           const uint64_t started_ns = now_ns();
           must(maru_store_copy(client, &name, source.data(), copy_bytes, nullptr, nullptr), "store_copy");
           laps.add(now_ns() - started_ns, 1);
         }
         for (uint64_t i = first; i < next; ++i) {
           const Key key = key_of(i);
           const maru_key name = as_maru_key(key);
           must(maru_delete(client, &name), "delete");
         }
         return laps.median();
       }}};
  for (const CopyWay& way : copy_ways()) {
    contestants.push_back({"floor", [&target, &source, way, copy_bytes, page_bytes] {
                             Laps laps;
                             for (uint64_t i = 0; i < kCopies; ++i) {
                               const uint64_t started_ns = now_ns();
                               way.copy(target.data() + i * page_bytes, source.data(), copy_bytes);
                               laps.add(now_ns() - started_ns, 1);
                             }
                             return laps.median();
                           }});
  }
  suite.measure(row, contestants, facts);
}

// The least that a record of a call needs: two looks at the clock, a line of memory that no cache holds, and one copy of its
// keys. Without clocks: the memory alone.
double records_between_clocks(const FloorMemory& memory, bool has_clocks, uint64_t key_bytes) {
  static constexpr uint64_t kLineBytes = 64, kLapBytes = 64 << 10;
  const std::vector<std::byte> keys(key_bytes);
  const uint64_t bytes = kLineBytes + key_bytes, records = kLapBytes / bytes;
  Laps laps;
  uint64_t clocks[8] = {};
  for (uint64_t at = 0; at + records * bytes <= memory.bytes();) {
    const uint64_t started_ns = now_ns();
    for (uint64_t record = 0; record < records; ++record, at += bytes) {
      if (has_clocks) clocks[0] = now_ns(), clocks[1] = now_ns();
      std::memcpy(memory.data() + at, clocks, kLineBytes);
      if (key_bytes != 0) std::memcpy(memory.data() + at + kLineBytes, keys.data(), key_bytes);
    }
    laps.add(now_ns() - started_ns, records);
  }
  return laps.median();
}

void record_floor_row(Suite& suite, const char* row, uint64_t keys) {
  if (!suite.wants(row)) return;
  const FloorMemory memory(64 << 20, false);
  const uint64_t key_bytes = keys * sizeof(format::RecordedKey);
  suite.measure(row,
                {{"value", [&] { return records_between_clocks(memory, true, key_bytes); }},
                 {"floor", [&] { return records_between_clocks(memory, false, key_bytes); }}},
                {});
}

}  // namespace

void store_rows(Suite& suite) {
  PoolShape shape;
  shape.pages = kStoreKeys + kSparePages;
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), 64);
  const uint64_t keys = whole_chains(kStoreKeys);
  store_chains(client, keys);
  const maru_geometry geometry = client.geometry();
  prefault_free_pages(client, geometry.pages - keys - 256);
  const Facts facts = facts_of(geometry, keys);

  std::vector<std::unique_ptr<Peer>> peers;
  const auto add = [&](std::unique_ptr<Peer> peer, const char* lacking) {
    if (!peer) return suite.lacks(std::string(lacking) + " (a peer)");
    peer->load(keys);
    peers.push_back(std::move(peer));
  };
  add(start_memcached(marud.directory(), keys), "memcached");
  add(start_redis(marud.directory(), keys), "redis-server");
  add(open_lmdb(marud.directory(), keys), "lmdb");
  add(open_boost_interprocess(keys), "boost.interprocess");
  add(open_tbb(), "tbb");

  const uint64_t count = suite.operations(32'768);
  SmallStores stores(client, count);
  LoadFloor floor(geometry.pages, facts.huge_pages);
  const auto measure = [&](const char* row, const std::function<double()>& value, const std::function<double()>& least,
                           bool removal) {
    if (!suite.wants(row)) return;
    std::vector<Contestant> contestants = {{"value", value}, {"floor", least}};
    for (const auto& peer : peers) {
      for (unsigned placement = 0; placement < peer->placements(); ++placement) {
        contestants.push_back({"peer_" + peer->name(), [&suite, &peer, placement, removal] {
                                 peer->place(placement);
                                 return peer_updates(*peer, suite.operations(4000), removal);
                               }});
      }
    }
    Facts own = facts;
    if (!removal) own.extra.push_back({"last_mean", [&] { return stores.mean(); }});
    own.extra.push_back({"refused", [&] { return double(stores.refused()); }});
    suite.measure(row, contestants, own);
  };
  measure(
      "store_small_root", [&] { return stores.store(false); }, [&] { return floor.update(count, 3, 4, kSmallBytes); },
      false);
  if (suite.wants("store_with_metadata_1k")) {
    static constexpr char kText[1024] = "what the payload is";
    static constexpr maru_metadata kMetadata = {kText, sizeof kText, 0};
    suite.measure(
        "store_with_metadata_1k",
        {{"value", [&] { return stores.store(false, &kMetadata); }}, {"floor", [&] { return stores.store(false); }}},
        facts);
  }
  measure(
      "store_small_child", [&] { return stores.store(true); }, [&] { return floor.update(count, 4, 5, kSmallBytes); },
      false);
  measure("delete_small", [&] { return stores.remove(); }, [&] { return floor.update(count, 3, 4, 0); }, true);
}

void copy_rows(Suite& suite) {
  copy_row(suite, "store_copy_64kib", 64 << 10, 64 << 10);
  copy_row(suite, "store_copy_1mib", 1 << 20, 2 << 20);
  record_floor_row(suite, "two_clocks_and_a_line", 0);
  record_floor_row(suite, "two_clocks_and_64_keys", 64);
  record_floor_row(suite, "two_clocks_and_256_keys", 256);
}

}  // namespace maru::bench
