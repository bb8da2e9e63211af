// The file tier: entries in a log of regions, an index of them in memory, and a thread that gives up whole regions for room.
//
// store     place in the open region, one write of header, payload and tail, then the index. No entry is seen before its
//           write is done.
// load      one read of the whole record; header, key and payload verify, or it is a miss and the entry is forgotten.
// delete    the index at once, then a tombstone.
// give up   the region with the lowest sequence: entries that were loaded since they were written move to the open region;
//           then the region gets a new header, the other entries go, and it is clean.
//
// Threads: any for each function. Callbacks of transfers come from threads of Transfers. One lock; no thread holds it over I/O.
#pragma once

#include "daemon/tierd/tiers/completions.h"
#include "daemon/tierd/tiers/file/block_file.h"
#include "daemon/tierd/tiers/file/recovery.h"
#include "daemon/tierd/tiers/file/region_table.h"
#include "daemon/tierd/tiers/file/transfers.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace maru::tierd {

inline constexpr std::chrono::seconds kFullPause{5};  // after "no space left", before fresh regions are tried again

struct FileTierWish {
  BlockFileWish file;
  TransferLimits transfers;
  uint64_t reinsert_percent = 25;  // of a region's bytes, at most, are moved when it is given up
};

class FileTier {
 public:
  static Result<std::unique_ptr<FileTier>> open(const FileTierWish& wish);
  ~FileTier();
  FileTier(const FileTier&) = delete;
  FileTier& operator=(const FileTier&) = delete;

  Completions& completions() { return completions_; }
  size_t submit(const maru_tier_request* requests, size_t n);
  void get_properties(maru_tier_properties& ret_properties) const;
  void get_usage(maru_tier_usage& ret_usage);
  void get_health(maru_tier_health& ret_health);
  int list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n);
  void get_group(std::string_view name, maru_tier_group& ret_group);
  int list_groups(const maru_tier_group* after, maru_tier_group* ret_groups, size_t n);
  int list_oldest(std::string_view name, maru_tier_entry* ret_entries, size_t n);
  const RecoveredLog& recovered() const { return recovered_; }

 private:
  struct Record;  // one transfer's memory, and its purpose
  using Lock = std::unique_lock<std::mutex>;

  FileTier(const FileTierWish& wish, BlockFile file);
  Result<void> start();

  void lookup(const maru_tier_request& request);
  void load(const maru_tier_request& request, Lock& lock);
  void loaded(Record& record, int result);
  // False: there is no room now, and the request waits.
  bool store(const maru_tier_request& request, Lock& lock);
  void written(Record& record, int result);
  bool remove(const maru_tier_request& request, Lock& lock);
  bool write_entry(std::shared_ptr<Record> record, const void* attributes, const std::byte* payload, Lock& lock);
  void write_footer(uint32_t index, Lock& lock);
  void serve_waiting(Lock& lock);
  bool serve(const maru_tier_request& request, Lock& lock);
  void finish(uint64_t ticket, int result, const LogEntry* entry = nullptr);
  void end_write(uint32_t region, Lock& lock);
  void keep_unproven(const std::string& key, uint32_t region);

  // The thread that makes room.
  void run_reclaim();
  bool needs_clean() const;
  void make_clean(Lock& lock);
  void move_used(uint32_t index, Lock& lock);
  bool move_entry(uint32_t index, const LogEntry& entry, Lock& lock);
  int prepare(uint32_t index, Lock& lock);
  void refuse_waiting(int result);

  const FileTierWish wish_;
  BlockFile file_;
  Completions completions_;
  RecoveredLog recovered_;
  std::mutex mutex_;
  std::condition_variable room_, quiet_;
  RegionTable table_;
  std::deque<maru_tier_request> waiting_;  // for a clean region, or for a key that is being moved
  std::string moving_key_;                 // of the entry that is being moved; empty: none
  std::set<std::string> writing_;          // keys of stores and deletions under way; their entries are not moved
  // Keys of records that the device may have and the index does not lead to, as a read or a write failed; each with the newest
  // region of such a record. The next start may find it, so a deletion writes a tombstone. The regions bound their number.
  std::map<std::string, uint32_t, std::less<>> unproven_;
  uint64_t evicted_ = 0, damaged_ = 0, reinserted_ = 0, in_flight_ = 0;
  std::chrono::steady_clock::time_point full_until_ = {};  // fresh regions are left alone: the file system was full
  bool is_stopping_ = false;
  std::unique_ptr<Transfers> transfers_;
  std::thread reclaim_;
};

}  // namespace maru::tierd
