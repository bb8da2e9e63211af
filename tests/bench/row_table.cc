// Every row of the suite: its question, its yardstick and what it must reach.
#include "tests/bench/suite.h"

namespace maru::bench {

const std::vector<RowSpec>& row_table() {
  using enum LimitOf;
  static const std::vector<RowSpec> table = {
      // Cold: 10 M keys, far more than any cache holds.
      {"exists_serial_cold", "cold",
       "one key, each question depending on the last answer, another process storing meanwhile",
       "a dependent load over memory of the registry's size", "ns/key", 1.3, kRatio, 30, 5},
      {"exists_batch256_cold", "cold", "256 keys in one call", "256 prefetched loads, per load", "ns/key", 20, kValue,
       30, 5},
      {"match_prefix256_cold", "cold", "a chain of 256 keys: count and pin",
       "two dependent loads (registry, then block line)", "ns/call", 2000, kValue, 30, 0},
      {"match_prefix256_partly_cold", "cold", "the same where the chain ends anywhere before the 256th key",
       "two rounds of 16 independent loads and a dependent one", "ns/call", 0, kNone, 0, 0},
      {"resolve256_cold", "cold",
       "locations of the 256 blocks of a match, of the chains that match_prefix256_cold asks for",
       "256 prefetched loads, per load", "ns/key", 30, kValue, 0, 0},
      {"resolve256_adjacent_cold", "cold", "the same of a match that was stored at once into neighbouring pages",
       "the same", "ns/key", 0, kNone, 0, 0},
      {"resolve256_strewn_cold", "cold", "the same of a match whose pages are strewn", "the same", "ns/key", 0, kNone,
       0, 0},
      {"retrieve_batch256_cold", "cold", "256 keys in one call: find, pin, view; release",
       "256 prefetched loads, per load", "ns/key", 0, kNone, 0, 0},
      {"retrieve_release_cold", "cold", "find, verify, pin, view, release",
       "two dependent loads (registry, then block line)", "ns/call", 1.6, kRatio, 15, 2.5},
      // The same with 200 k keys.
      {"exists_serial_cached", "cached", "exists_serial_cold with 200 k keys", "the same", "ns/key", 0, kNone, 30, 5},
      {"exists_batch256_cached", "cached", "exists_batch256_cold with 200 k keys", "the same", "ns/key", 20, kValue, 30,
       5},
      {"match_prefix256_cached", "cached", "match_prefix256_cold with 200 k keys", "the same", "ns/call", 2000, kValue,
       30, 0},
      {"match_prefix256_partly_cached", "cached", "match_prefix256_partly_cold with 200 k keys", "the same", "ns/call",
       0, kNone, 0, 0},
      {"resolve256_cached", "cached", "resolve256_cold with 200 k keys", "the same", "ns/key", 30, kValue, 0, 0},
      {"resolve256_adjacent_cached", "cached", "resolve256_adjacent_cold with 200 k keys", "the same", "ns/key", 0,
       kNone, 0, 0},
      {"resolve256_strewn_cached", "cached", "resolve256_strewn_cold with 200 k keys", "the same", "ns/key", 0, kNone,
       0, 0},
      {"retrieve_batch256_cached", "cached", "retrieve_batch256_cold with 200 k keys", "the same", "ns/key", 0, kNone,
       0, 0},
      {"retrieve_release_cached", "cached", "retrieve_release_cold with 200 k keys", "the same", "ns/call", 0, kNone,
       15, 2.5},
      {"exists_text35_batch256_cached", "cached", "256 keys that are texts of 35 characters in one call",
       "256 prefetched loads, per load", "ns/key", 0, kNone, 0, 0},
      {"exists_text115_batch256_cached", "cached", "the same with 115 characters", "the same", "ns/key", 0, kNone, 0,
       0},
      {"exists_text35_rows256_cached", "cached", "those of 35 characters, in rows of one array", "the same", "ns/key",
       0, kNone, 0, 0},
      {"repin_hot", "cached", "pin and unpin of a block this process already holds", "two exchanges on an own line",
       "ns/call", 50, kValue, 0, 0},
      // Taking pages.
      {"alloc_1", "allocation", "a page from the thread's cache, and back", "two exchanges on an own line", "ns/call",
       100, kValue, 0, 0},
      {"alloc_list_100", "allocation", "100 pages as a list from warm caches", "reading 100 lines", "ns/call", 1000,
       kValue, 0, 0},
      {"alloc_run_100", "allocation", "100 pages as one run where occupancy is clustered",
       "a compare-and-swap and a store on each of 100 lines", "ns/call", 10000, kValue, 0, 0},
      // Storing and deleting.
      {"store_small_root", "store", "alloc, 64 bytes, publish as a root",
       "copy 64 bytes, three dependent loads, four compare-and-swaps", "ns/call", 1000, kValue, 8, 0},
      {"store_with_metadata_1k", "store", "alloc, 64 bytes, publish as a root with 1 KiB of metadata",
       "the same without metadata, by the same client", "ns/call", 1.25, kRatio, 0, 0},
      {"store_small_child", "store", "alloc, 64 bytes, publish under a parent",
       "copy 64 bytes, four dependent loads, five compare-and-swaps", "ns/call", 1300, kValue, 8, 0},
      {"delete_small", "store", "delete a block by key", "three dependent loads, four compare-and-swaps", "ns/call", 0,
       kNone, 8, 0},
      {"store_copy_1mib", "copy", "copy 1 MiB in and publish", "the best copy of 1 MiB into the same kind of memory",
       "ns/call", 1.1, kRatio, 0, 0},
      // Making room.
      {"evict_page", "eviction", "choose, retire and free in batches; 8 lanes hold 1,000 pins each",
       "two dependent loads (registry, block line)", "ns/page", 2000, kValue, 0, 0},
      {"evict_page_100k_pins", "eviction", "the same with one lane that holds 100,000 pins", "the same", "ns/page",
       10000, kValue, 0, 0},
      {"evict_64", "policies", "choose, retire and free 64 pages in one request; peers: the other policies",
       "two dependent loads", "ns/page", 2000, kValue, 0, 0},
      {"evict_1", "policies", "the same, one page a request", "a request that marud answers at once", "ns/page", 0,
       kNone, 0, 0},
      {"store_beside_eviction", "policies",
       "a store and a delete in a pool with free pages that would evict (lru, 90/80)",
       "the same in a pool that never evicts", "ns/pair", 1.05, kRatio, 0, 0},
      // Coming and going.
      {"attach_1m_pages", "recovery", "a client attaches to a pool of a million pages",
       "passing a descriptor over a Unix socket and mapping it", "ns/call", 50e6, kValue, 0, 0},
      {"restart_1m_blocks", "recovery", "marud is killed and started on a million blocks, until a client is answered",
       "reading the control region once", "ns/call", 1e9, kValue, 0, 0},
      {"reclaim_100k_pins", "recovery", "a client with 100,000 pins is killed: until its lane is free again",
       "killing and reaping a process that mapped as much", "ns/call", 50e6, kValue, 0, 0},
      // Scaling. The value is a ratio of throughputs, the floor that of two busy loops.
      {"exists_two_processes", "scaling", "throughput of two processes asking, over one", "two busy loops over one",
       "x", 0.93, kRatioAtLeast, 0, 0},
  };
  return table;
}

}  // namespace maru::bench
