#include "daemon/tierd/tiers/catalogue.h"

#include "daemon/tierd/tiers/groups.h"

#include <algorithm>
#include <cstring>

namespace maru::tierd {

// The private functions run with the lock held.

Catalogue::Entries::iterator Catalogue::place(const std::string& name, const About& about) {
  const auto number = numbers_.find(name);
  Entries::iterator at;
  if (number != numbers_.end()) {
    at = entries_.find(number->second);
    const bool is_another =
        at->second.entry_bytes != about.entry_bytes || at->second.physical_bytes != about.physical_bytes;
    at->second.has_details = at->second.has_details && !is_another;
    count_out(at);
  } else {
    const uint64_t bytes = kBytesOfAnEntry + name.size();
    if (bytes > bytes_max_ - std::min(bytes_, bytes_max_)) return entries_.end();
    bytes_ += bytes;
    at = entries_.try_emplace(++last_).first;
    at->second.name = name;
    at->second.names_key = !key_of_(name).empty();
    numbers_.emplace(at->second.name, last_);
  }
  count_in(at, about);
  at->second.is_current = true;
  return at;
}

void Catalogue::count_in(Entries::iterator at, const About& about) {
  Entry& entry = at->second;
  entry.entry_bytes = about.entry_bytes;
  entry.physical_bytes = about.physical_bytes;
  if (about.has_details) {
    entry.has_details = true;
    entry.note = about.note;
    entry.attributes_bytes = about.attributes_bytes;
  }
  if (about.written != 0) entry.written = about.written;
  entry.group = groups_.try_emplace(about.group).first;
  entry.group->second.bytes += entry.entry_bytes;
  entry.group->second.by_age.emplace(Age{entry.written, entry.name}, at->first);
  entry_bytes_ += entry.entry_bytes;
  physical_bytes_ += entry.physical_bytes;
}

void Catalogue::count_out(Entries::iterator at) {
  const Entry& entry = at->second;
  entry_bytes_ -= entry.entry_bytes;
  physical_bytes_ -= entry.physical_bytes;
  Group& group = entry.group->second;
  group.bytes -= entry.entry_bytes;
  group.by_age.erase(Age{entry.written, entry.name});
  if (group.by_age.empty()) groups_.erase(entry.group);
}

void Catalogue::remove(Entries::iterator at) {
  count_out(at);
  bytes_ -= kBytesOfAnEntry + at->second.name.size() + at->second.own_key.size();
  numbers_.erase(at->second.name);
  entries_.erase(at);
}

void Catalogue::note_change(const std::string& name) {
  if (!is_listing_ || is_in_vain_) return;
  changed_.insert(name);
  is_in_vain_ = changed_.size() >= changed_max_;
  if (is_in_vain_) changed_.clear();
}

void Catalogue::put(const std::string& name, const std::string& key, const About& about) {
  const std::lock_guard lock(mutex_);
  note_change(name);
  const auto at = place(name, about);
  if (at == entries_.end() || at->second.names_key || !at->second.own_key.empty()) return;
  if (key.size() > bytes_max_ - std::min(bytes_, bytes_max_)) return;
  at->second.own_key = key;
  bytes_ += key.size();
}

void Catalogue::erase(const std::string& name) {
  const std::lock_guard lock(mutex_);
  note_change(name);
  const auto number = numbers_.find(name);
  if (number != numbers_.end()) remove(entries_.find(number->second));
}

void Catalogue::begin_round() {
  const std::lock_guard lock(mutex_);
  is_listing_ = true;
  is_in_vain_ = false;
  for (auto& [number, entry] : entries_) entry.is_current = false;
}

bool Catalogue::listed(const std::string& name, const About& about) {
  const std::lock_guard lock(mutex_);
  return is_in_vain_ || changed_.contains(name) || place(name, about) != entries_.end();
}

void Catalogue::end_round(bool is_whole) {
  const std::lock_guard lock(mutex_);
  for (auto at = entries_.begin(); is_whole && !is_in_vain_ && at != entries_.end();) {
    const auto here = at++;
    if (!here->second.is_current) remove(here);
  }
  is_listing_ = false;
  changed_.clear();
}

bool Catalogue::has_changed(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return is_in_vain_ || changed_.contains(name);
}

std::string Catalogue::next_nameless(uint64_t* cursor) const {
  const std::lock_guard lock(mutex_);
  for (auto at = entries_.upper_bound(*cursor); at != entries_.end(); ++at) {
    *cursor = at->first;
    if (!at->second.names_key && at->second.own_key.empty()) return at->second.name;
  }
  return {};
}

void Catalogue::get_usage(maru_tier_usage& ret_usage) const {
  const std::lock_guard lock(mutex_);
  ret_usage.entries = entries_.size();
  ret_usage.entry_bytes = entry_bytes_;
  ret_usage.physical_bytes = physical_bytes_;
}

bool Catalogue::write(const Entry& entry, maru_tier_entry& ret_entry) const {
  const std::string key = entry.names_key ? key_of_(entry.name) : entry.own_key;
  if (key.empty()) return false;
  ret_entry.key_bytes = uint32_t(key.size());
  std::memcpy(ret_entry.key, key.data(), key.size());
  ret_entry.attributes_bytes = entry.has_details ? entry.attributes_bytes : 0;
  ret_entry.payload_bytes = entry.entry_bytes - ret_entry.attributes_bytes;
  ret_entry.note = entry.has_details ? entry.note : 0;
  return true;
}

int Catalogue::list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) const {
  const std::lock_guard lock(mutex_);
  size_t given = 0;
  for (auto at = entries_.upper_bound(*cursor); at != entries_.end() && given < n; ++at) {
    *cursor = at->first;
    given += write(at->second, ret_entries[given]);
  }
  return int(given);
}

void Catalogue::get_group(std::string_view name, maru_tier_group& ret_group) const {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(name);
  const bool is_there = found != groups_.end();
  write_group(name, is_there ? found->second.by_age.size() : 0, is_there ? found->second.bytes : 0, ret_group);
}

int Catalogue::list_groups(const maru_tier_group* after, maru_tier_group* ret_groups, size_t n) const {
  const std::lock_guard lock(mutex_);
  auto next = after ? groups_.upper_bound(name_of(*after)) : groups_.begin();
  size_t given = 0;
  for (; next != groups_.end() && given < n; ++next)
    write_group(next->first, next->second.by_age.size(), next->second.bytes, ret_groups[given++]);
  return int(given);
}

int Catalogue::list_oldest(std::string_view group, maru_tier_entry* ret_entries, size_t n) const {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  size_t given = 0;
  if (found == groups_.end()) return 0;
  for (auto next = found->second.by_age.begin(); next != found->second.by_age.end() && given < n; ++next)
    given += write(entries_.at(next->second), ret_entries[given]);
  return int(given);
}

}  // namespace maru::tierd
