// This process's knowledge of the entries on a server: by a listing, which is repeated now and then as other hosts use the
// server, too, and by its own stores and deletions, at once. Lookups do not trust it; list(), get_usage() and the calls about
// groups read it, as they must not wait for a server. It never takes more memory than it was given: it leaves out further
// entries.
//
// An entry has a name: its key, or another text by which the server knows it. Where a name does not tell the key, the entry is
// listed once the key is known.
//
// Threads: any.
#pragma once

#include "maru/tier.h"

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace maru::tierd {

class Catalogue {
 public:
  // An entry as far as a listing, a lookup or a store tells of it.
  struct About {
    std::string group;
    uint64_t entry_bytes = 0;     // of payload and attributes
    uint64_t physical_bytes = 0;  // that it takes on the server
    int64_t written = 0;          // by one clock for all entries: the order of their ages. 0: not told
    // Not from a listing that has only sizes:
    bool has_details = false;
    uint64_t note = 0;
    uint32_t attributes_bytes = 0;
  };
  using KeyOf = std::function<std::string(const std::string& name)>;

  // `key_of`: the key that a name tells; empty: it does not.
  // `changed_max`: names that may change in one round; past it the round is in vain.
  Catalogue(KeyOf key_of, uint64_t bytes_max, size_t changed_max = 1u << 20)
      : key_of_(std::move(key_of)), bytes_max_(bytes_max), changed_max_(changed_max) {}

  // An entry that was stored or looked up.
  void put(const std::string& name, const std::string& key, const About& about);
  void erase(const std::string& name);

  // A listing: begin_round(), listed() for each entry, then end_round(), after which entries that were not listed are gone. A
  // round that failed ends with is_whole = false, and nothing goes. Changes meanwhile by the calls above stay.
  void begin_round();
  // False: there is no room for it.
  bool listed(const std::string& name, const About& about);
  void end_round(bool is_whole);
  // Changed in this round by put() or erase().
  bool has_changed(const std::string& name) const;
  // Looks behind *cursor for an entry without a known key, and returns its name. Empty: each key there is known.
  std::string next_nameless(uint64_t* cursor) const;

  void get_usage(maru_tier_usage& ret_usage) const;
  int list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) const;
  void get_group(std::string_view name, maru_tier_group& ret_group) const;
  int list_groups(const maru_tier_group* after, maru_tier_group* ret_groups, size_t n) const;
  // The oldest first. Entries that were written at one moment come by their names: all hosts with one server have the same
  // order, so what two of them delete for one limit are the same entries.
  int list_oldest(std::string_view group, maru_tier_entry* ret_entries, size_t n) const;

 private:
  using Age = std::pair<int64_t, std::string_view>;  // when it was written, and its name
  struct Group {
    uint64_t bytes = 0;
    std::map<Age, uint64_t> by_age;  // numbers of entries
  };
  using Groups = std::map<std::string, Group, std::less<>>;
  struct Entry {
    std::string name;
    std::string own_key;  // where the name does not tell it; empty: not known
    uint64_t entry_bytes = 0, physical_bytes = 0, note = 0;
    uint32_t attributes_bytes = 0;
    bool names_key = false;
    bool has_details = false;
    bool is_current = false;  // seen in this round
    int64_t written = 0;
    Groups::iterator group = {};
  };
  using Entries = std::map<uint64_t, Entry>;
  static constexpr uint64_t kBytesOfAnEntry = 300;  // beside its name and its key

  void note_change(const std::string& name);
  // Counts the entry, and returns its place; end(): there is no room.
  Entries::iterator place(const std::string& name, const About& about);
  void count_in(Entries::iterator at, const About& about);
  void count_out(Entries::iterator at);
  void remove(Entries::iterator at);
  bool write(const Entry& entry, maru_tier_entry& ret_entry) const;  // false: its key is not known

  const KeyOf key_of_;
  const uint64_t bytes_max_;
  const size_t changed_max_;
  mutable std::mutex mutex_;
  Entries entries_;                                         // by a number that grows, which is the cursor of list()
  std::unordered_map<std::string_view, uint64_t> numbers_;  // by the name that lies in the entry
  Groups groups_;                                           // that have entries
  std::unordered_set<std::string> changed_;                 // in this round, and not by its list
  bool is_listing_ = false;
  bool is_in_vain_ = false;  // the round: more names have changed than are kept
  uint64_t last_ = 0, entry_bytes_ = 0, physical_bytes_ = 0;
  uint64_t bytes_ = 0;  // that the entries take here
};

}  // namespace maru::tierd
