// This process's knowledge of a bucket: by a listing, which is repeated now and then as other hosts share the
// bucket, and by its own stores and deletions, at once. Lookups do not trust it; list() and get_usage() read it, as they must
// not wait for a server. It takes about 300 bytes for each entry, and never more than it was given: it leaves out further
// entries.
//
// A listing has names and sizes. For an entry that this process has stored or looked up it knows the rest, too.
//
// Threads: any.
#pragma once

#include "daemon/tierd/tiers/s3/s3_object.h"
#include "maru/tier.h"

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace maru::tierd {

class S3Catalogue {
 public:
  S3Catalogue(std::string prefix, uint64_t bytes_max) : prefix_(std::move(prefix)), bytes_max_(bytes_max) {}

  // An object that was stored or looked up.
  void put(const std::string& name, const std::string& key, const S3Head& head);
  void erase(const std::string& name);

  // A listing: begin_round(), listed() for each object, then end_round(), after which entries that were not listed are gone. A
  // round that failed ends with is_whole = false, and nothing goes. Changes meanwhile by put() and erase() stay.
  void begin_round();
  // False: there is no room for it.
  bool listed(const std::string& name, uint64_t object_bytes);
  void end_round(bool is_whole);
  // The next entry behind *cursor whose name does not tell its key, and the key's length; an empty name: there is none.
  std::pair<std::string, uint32_t> next_nameless(uint64_t* cursor) const;

  void get_usage(maru_tier_usage& ret_usage) const;
  int list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) const;

 private:
  struct Entry {
    std::string name;
    std::string long_key;  // where the name does not tell it; empty: not known
    uint64_t object_bytes = 0, note = 0;
    uint32_t key_bytes = 0, attributes_bytes = 0;
    bool is_known = false;    // note and attributes_bytes
    bool is_current = false;  // seen in this round

    uint64_t entry_bytes() const { return object_bytes - kS3FixedBytes - key_bytes; }
  };
  static constexpr uint64_t kBytesOfAnEntry = 200;  // beside its name and its key
  // Null: no room.
  Entry* entry_of(const std::string& name, uint32_t key_bytes, uint64_t object_bytes);
  void remove(std::map<uint64_t, Entry>::iterator at);

  const std::string prefix_;
  const uint64_t bytes_max_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> entries_;                       // by a number that grows, which is the cursor of list()
  std::unordered_map<std::string_view, uint64_t> numbers_;  // by the name that lies in the entry
  std::unordered_set<std::string> changed_;                 // in this round, by put() and erase()
  bool is_listing_ = false;
  uint64_t last_ = 0, entry_bytes_ = 0, object_bytes_ = 0;
  uint64_t bytes_ = 0;  // that the entries take here
};

}  // namespace maru::tierd
