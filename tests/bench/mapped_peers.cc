// Peers without a server: LMDB and boost.interprocess share a mapping between processes as we do; TBB's map lives in
// one process and shows what the best unshared map does.
#include "tests/bench/peers.h"

#include <algorithm>
#include <boost/functional/hash.hpp>
#include <boost/interprocess/allocators/allocator.hpp>
#include <boost/interprocess/managed_shared_memory.hpp>
#include <boost/interprocess/sync/interprocess_mutex.hpp>
#include <boost/interprocess/sync/scoped_lock.hpp>
#include <boost/unordered_map.hpp>
#include <cstring>
#include <filesystem>
#include <lmdb.h>
#include <stdexcept>
#include <tbb/concurrent_hash_map.h>
#include <unistd.h>

namespace maru::bench {

namespace {

PeerRecord record_of(uint64_t index) { return {{index, ~index, index * 3}}; }

// The keys are digests already: their low word is hash enough.
struct KeyHash {
  size_t operator()(const Key& key) const { return key.lo; }
};
struct KeyEqual {
  bool operator()(const Key& a, const Key& b) const { return a.lo == b.lo && a.hi == b.hi; }
};
struct TbbHashCompare {
  size_t hash(const Key& key) const { return key.lo; }
  bool equal(const Key& a, const Key& b) const { return a.lo == b.lo && a.hi == b.hi; }
};
// Large enough for a location and for the small value of the store rows.
struct Record {
  PeerRecord location;
  std::byte rest[kSmallValueBytes - sizeof(PeerRecord)];
};

void lmdb_must(int result, const char* what) {
  if (result != MDB_SUCCESS) throw std::runtime_error(std::string("lmdb ") + what + ": " + mdb_strerror(result));
}

// On tmpfs and without syncs, so that no disk is measured. A reader's transaction is what pins what it reads: lookups
// renew and reset one, and a batch shares one.
class Lmdb final : public Peer {
 public:
  Lmdb(const std::string& directory, uint64_t keys) {
    lmdb_must(mdb_env_create(&env_), "create");
    lmdb_must(mdb_env_set_mapsize(env_, (256ull << 20) + keys * 256), "mapsize");
    lmdb_must(mdb_env_open(env_, directory.c_str(), MDB_NOSYNC | MDB_NOMETASYNC | MDB_WRITEMAP | MDB_NOTLS, 0600),
              "open");
    MDB_txn* transaction = nullptr;
    lmdb_must(mdb_txn_begin(env_, nullptr, 0, &transaction), "begin");
    lmdb_must(mdb_dbi_open(transaction, nullptr, 0, &table_), "table");
    lmdb_must(mdb_txn_commit(transaction), "commit");
    lmdb_must(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &reader_), "begin");
    mdb_txn_reset(reader_);
  }
  ~Lmdb() override {
    mdb_txn_abort(reader_);
    mdb_env_close(env_);
  }
  std::string name() const override { return "lmdb"; }

  void load(uint64_t keys) override {
    std::vector<std::pair<Key, uint64_t>> sorted(keys);
    for (uint64_t i = 0; i < keys; ++i) sorted[i] = {key_of(i), i};
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return std::memcmp(&a.first, &b.first, sizeof(Key)) < 0; });
    MDB_txn* transaction = nullptr;
    lmdb_must(mdb_txn_begin(env_, nullptr, 0, &transaction), "begin");
    for (auto& [key, index] : sorted) {
      PeerRecord record = record_of(index);
      MDB_val name = val(key), value = {sizeof record, &record};
      lmdb_must(mdb_put(transaction, table_, &name, &value, MDB_APPEND), "load");
    }
    lmdb_must(mdb_txn_commit(transaction), "commit");
  }
  bool exists(const Key& key) override {
    MDB_val name = val(key), value;
    lmdb_must(mdb_txn_renew(reader_), "renew");
    const bool found = mdb_get(reader_, table_, &name, &value) == MDB_SUCCESS;
    mdb_txn_reset(reader_);
    return found;
  }
  uint64_t exists_batch(const Key* keys, uint64_t count) override {
    uint64_t present = 0;
    lmdb_must(mdb_txn_renew(reader_), "renew");
    for (uint64_t i = 0; i < count; ++i) {
      MDB_val name = val(keys[i]), value;
      present += mdb_get(reader_, table_, &name, &value) == MDB_SUCCESS;
    }
    mdb_txn_reset(reader_);
    return present;
  }
  bool lookup(const Key& key, PeerRecord& record) override {
    MDB_val name = val(key), value;
    lmdb_must(mdb_txn_renew(reader_), "renew");
    const bool found = mdb_get(reader_, table_, &name, &value) == MDB_SUCCESS;
    if (found) std::memcpy(&record, value.mv_data, sizeof record);
    mdb_txn_reset(reader_);
    return found;
  }
  bool put(const Key& key, const void* value64) override {
    MDB_txn* transaction = nullptr;
    lmdb_must(mdb_txn_begin(env_, nullptr, 0, &transaction), "begin");
    MDB_val name = val(key), value = {kSmallValueBytes, const_cast<void*>(value64)};
    lmdb_must(mdb_put(transaction, table_, &name, &value, 0), "put");
    return mdb_txn_commit(transaction) == MDB_SUCCESS;
  }
  bool remove(const Key& key) override {
    MDB_txn* transaction = nullptr;
    lmdb_must(mdb_txn_begin(env_, nullptr, 0, &transaction), "begin");
    MDB_val name = val(key);
    const int result = mdb_del(transaction, table_, &name, nullptr);
    return mdb_txn_commit(transaction) == MDB_SUCCESS && result == MDB_SUCCESS;
  }

 private:
  static MDB_val val(const Key& key) { return {sizeof key, const_cast<Key*>(&key)}; }
  MDB_env* env_ = nullptr;
  MDB_dbi table_ = 0;
  MDB_txn* reader_ = nullptr;
};

class BoostInterprocess final : public Peer {
  using Pair = std::pair<const Key, Record>;
  using Allocator = boost::interprocess::allocator<Pair, boost::interprocess::managed_shared_memory::segment_manager>;
  using Map = boost::unordered_map<Key, Record, KeyHash, KeyEqual, Allocator>;
  using Lock = boost::interprocess::scoped_lock<boost::interprocess::interprocess_mutex>;

 public:
  explicit BoostInterprocess(uint64_t keys)
      : name_("maru-bench-" + std::to_string(getpid())),
        memory_(boost::interprocess::create_only, name_.c_str(), (256ull << 20) + keys * 224) {
    mutex_ = memory_.construct<boost::interprocess::interprocess_mutex>("mutex")();
    map_ = memory_.construct<Map>("map")(keys, KeyHash(), KeyEqual(), memory_.get_segment_manager());
    // The mapping stays; the name need not, and nothing is left behind if the suite dies.
    boost::interprocess::shared_memory_object::remove(name_.c_str());
  }
  std::string name() const override { return "boost_interprocess"; }

  void load(uint64_t keys) override {
    for (uint64_t i = 0; i < keys; ++i) map_->emplace(key_of(i), Record{record_of(i), {}});
  }
  bool exists(const Key& key) override {
    const Lock lock(*mutex_);
    return map_->find(key) != map_->end();
  }
  uint64_t exists_batch(const Key* keys, uint64_t count) override {
    const Lock lock(*mutex_);
    uint64_t present = 0;
    for (uint64_t i = 0; i < count; ++i) present += map_->find(keys[i]) != map_->end();
    return present;
  }
  bool lookup(const Key& key, PeerRecord& record) override {
    const Lock lock(*mutex_);
    const auto found = map_->find(key);
    if (found == map_->end()) return false;
    record = found->second.location;
    return true;
  }
  bool put(const Key& key, const void* value64) override {
    const Lock lock(*mutex_);
    const auto [place, added] = map_->emplace(key, Record{});
    std::memcpy(&place->second, value64, sizeof(Record));
    return added;
  }
  bool remove(const Key& key) override {
    const Lock lock(*mutex_);
    return map_->erase(key) == 1;
  }

 private:
  std::string name_;
  boost::interprocess::managed_shared_memory memory_;
  boost::interprocess::interprocess_mutex* mutex_ = nullptr;
  Map* map_ = nullptr;
};

class Tbb final : public Peer {
  using Map = tbb::concurrent_hash_map<Key, Record, TbbHashCompare>;

 public:
  std::string name() const override { return "tbb_unshared"; }
  void load(uint64_t keys) override {
    map_.rehash(keys);
    for (uint64_t i = 0; i < keys; ++i) map_.insert({key_of(i), Record{record_of(i), {}}});
  }
  bool exists(const Key& key) override { return map_.count(key) != 0; }
  uint64_t exists_batch(const Key* keys, uint64_t count) override {
    uint64_t present = 0;
    for (uint64_t i = 0; i < count; ++i) present += map_.count(keys[i]);
    return present;
  }
  bool lookup(const Key& key, PeerRecord& record) override {
    Map::const_accessor found;
    if (!map_.find(found, key)) return false;
    record = found->second.location;
    return true;
  }
  bool put(const Key& key, const void* value64) override {
    Record record;
    std::memcpy(&record, value64, sizeof record);
    return map_.insert({key, record});
  }
  bool remove(const Key& key) override { return map_.erase(key); }

 private:
  Map map_;
};

}  // namespace

std::unique_ptr<Peer> open_lmdb(const std::string& directory, uint64_t keys) {
  const std::string own = directory + "/lmdb-" + std::to_string(keys);
  std::filesystem::create_directory(own);
  return std::make_unique<Lmdb>(own, keys);
}
std::unique_ptr<Peer> open_boost_interprocess(uint64_t keys) { return std::make_unique<BoostInterprocess>(keys); }
std::unique_ptr<Peer> open_tbb() { return std::make_unique<Tbb>(); }

}  // namespace maru::bench
