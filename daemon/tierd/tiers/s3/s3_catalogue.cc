#include "daemon/tierd/tiers/s3/s3_catalogue.h"

#include <algorithm>
#include <cstring>

namespace maru::tierd {

// With the lock held.
S3Catalogue::Entry* S3Catalogue::entry_of(const std::string& name, uint32_t key_bytes, uint64_t object_bytes) {
  auto number = numbers_.find(name);
  if (number == numbers_.end()) {
    const uint64_t bytes = kBytesOfAnEntry + name.size();
    if (bytes > bytes_max_ - std::min(bytes_, bytes_max_)) return nullptr;
    bytes_ += bytes;
    Entry& fresh = entries_[++last_];
    fresh.name = name;
    number = numbers_.emplace(fresh.name, last_).first;
  }
  Entry& entry = entries_.at(number->second);
  if (entry.object_bytes != object_bytes) {
    if (entry.object_bytes > 0) entry_bytes_ -= entry.entry_bytes(), object_bytes_ -= entry.object_bytes;
    entry.object_bytes = object_bytes;
    entry.key_bytes = key_bytes;
    entry.is_known = false;
    entry_bytes_ += entry.entry_bytes(), object_bytes_ += object_bytes;
  }
  entry.is_current = true;
  return &entry;
}

void S3Catalogue::remove(std::map<uint64_t, Entry>::iterator at) {
  entry_bytes_ -= at->second.entry_bytes();
  object_bytes_ -= at->second.object_bytes;
  bytes_ -= kBytesOfAnEntry + at->second.name.size() + at->second.long_key.size();
  numbers_.erase(at->second.name);
  entries_.erase(at);
}

void S3Catalogue::put(const std::string& name, const std::string& key, const S3Head& head) {
  const std::lock_guard lock(mutex_);
  if (is_listing_) changed_.insert(name);
  Entry* const entry = entry_of(name, head.key_bytes, head.object_bytes());
  if (entry == nullptr) return;
  entry->note = head.note;
  entry->attributes_bytes = head.attributes_bytes;
  entry->is_known = true;
  if (key.size() <= kNamedKeyBytesMax || !entry->long_key.empty()) return;
  entry->long_key = key;
  bytes_ += key.size();
}

void S3Catalogue::erase(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (is_listing_) changed_.insert(name);
  const auto number = numbers_.find(name);
  if (number != numbers_.end()) remove(entries_.find(number->second));
}

void S3Catalogue::begin_round() {
  const std::lock_guard lock(mutex_);
  is_listing_ = true;
  for (auto& [number, entry] : entries_) entry.is_current = false;
}

bool S3Catalogue::listed(const std::string& name, uint64_t object_bytes) {
  const auto named = parse_s3_object_name(prefix_, name);
  if (!named || object_bytes < kS3FixedBytes + named->key_bytes) return true;  // not of ours, or no entry
  const std::lock_guard lock(mutex_);
  return changed_.contains(name) || entry_of(name, named->key_bytes, object_bytes) != nullptr;
}

void S3Catalogue::end_round(bool is_whole) {
  const std::lock_guard lock(mutex_);
  for (auto at = entries_.begin(); is_whole && at != entries_.end();) {
    const auto here = at++;
    if (!here->second.is_current) remove(here);
  }
  is_listing_ = false;
  changed_.clear();
}

std::pair<std::string, uint32_t> S3Catalogue::next_nameless(uint64_t* cursor) const {
  const std::lock_guard lock(mutex_);
  for (auto at = entries_.upper_bound(*cursor); at != entries_.end(); ++at) {
    *cursor = at->first;
    const Entry& entry = at->second;
    if (entry.key_bytes > kNamedKeyBytesMax && entry.long_key.empty()) return {entry.name, entry.key_bytes};
  }
  return {};
}

void S3Catalogue::get_usage(maru_tier_usage& ret_usage) const {
  const std::lock_guard lock(mutex_);
  ret_usage.entries = entries_.size();
  ret_usage.entry_bytes = entry_bytes_;
  ret_usage.physical_bytes = object_bytes_;
}

int S3Catalogue::list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) const {
  const std::lock_guard lock(mutex_);
  size_t given = 0;
  for (auto at = entries_.upper_bound(*cursor); at != entries_.end() && given < n; ++at) {
    const Entry& entry = at->second;
    *cursor = at->first;
    std::string key = entry.long_key;
    if (entry.key_bytes <= kNamedKeyBytesMax) key = parse_s3_object_name(prefix_, entry.name)->key;
    if (key.empty()) continue;
    maru_tier_entry& to = ret_entries[given++];
    to.key_bytes = uint32_t(key.size());
    std::memcpy(to.key, key.data(), key.size());
    to.attributes_bytes = entry.is_known ? entry.attributes_bytes : 0;
    to.payload_bytes = entry.entry_bytes() - to.attributes_bytes;
    to.note = entry.is_known ? entry.note : 0;
  }
  return int(given);
}

}  // namespace maru::tierd
