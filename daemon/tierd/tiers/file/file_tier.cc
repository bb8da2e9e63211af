#include "daemon/tierd/tiers/file/file_tier.h"

#include "daemon/tierd/tiers/file/aligned_bytes.h"
#include "daemon/tierd/tiers/groups.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace maru::tierd {

namespace {

constexpr size_t kWaitingMax = 256;  // requests; more are not accepted

// Neither place may be null for memcpy(), also of no bytes: a tombstone has no payload, and one in place has no rest.
void copy_bytes(void* to, const void* from, uint64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

bool is_block_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kLogBlock == 0; }

std::string_view key_of(const maru_tier_request& request) {
  return {static_cast<const char*>(request.key), request.key_bytes};
}

void write_listed(const LogEntry& entry, maru_tier_entry& ret_entry) {
  ret_entry.key_bytes = uint32_t(entry.key.size());
  ret_entry.attributes_bytes = entry.attributes_bytes;
  ret_entry.payload_bytes = entry.payload_bytes;
  ret_entry.note = entry.note;
  std::memcpy(ret_entry.key, entry.key.data(), entry.key.size());
}

}  // namespace

// Header and tail have memory of their own; the whole blocks of an aligned payload go to the device, or come from it, in
// place.
struct FileTier::Record {
  maru_tier_request request = {};
  LogEntry entry;
  RecordPlace place;
  uint64_t region_sequence = 0;
  AlignedBytes header, own;  // `own`: the tail, or all of a payload that is not aligned
  uint64_t in_place = 0;     // bytes of the payload that need no copy

  void lay_out(std::byte* payload) {
    header = AlignedBytes(entry.header_bytes());
    in_place = is_block_aligned(payload) ? entry.payload_bytes / kLogBlock * kLogBlock : 0;
    own = AlignedBytes(entry.payload_bytes - in_place);
  }
  std::array<iovec, 3> pieces(std::byte* payload) {
    return {iovec{header.data(), header.size()}, iovec{payload, in_place}, iovec{own.data(), own.size()}};
  }
};

FileTier::FileTier(const FileTierWish& wish, BlockFile file)
    : wish_(wish), file_(std::move(file)), table_(file_.region_bytes(), file_.regions()) {}

Result<std::unique_ptr<FileTier>> FileTier::open(const FileTierWish& wish) {
  auto file = BlockFile::open(wish.file);
  if (!file) return tl::unexpected(file.error());
  std::unique_ptr<FileTier> tier(new FileTier(wish, std::move(*file)));
  if (!tier->completions_.is_open()) return failure(EMFILE, "make a descriptor; raise the limit of open files");
  if (auto started = tier->start(); !started) return tl::unexpected(started.error());
  return tier;
}

Result<void> FileTier::start() {
  if (!file_.was_made_now()) {
    auto recovered = recover_log(file_, table_);
    if (!recovered) return tl::unexpected(recovered.error());
    recovered_ = *recovered;
  }
  {
    Lock lock(mutex_);
    // With another sequence, as nothing that lies there counts.
    for (uint32_t i = 0; i < table_.count(); ++i)
      if (table_.region(i).state == RegionState::kClean) (void)prepare(i, lock);
  }
  transfers_ = std::make_unique<Transfers>(file_.descriptor(), wish_.transfers);
  reclaim_ = std::thread([this] { run_reclaim(); });
  return {};
}

FileTier::~FileTier() {
  if (!reclaim_.joinable()) return;  // start() failed: nothing was written, and nothing is under way
  Lock lock(mutex_);
  is_stopping_ = true;
  room_.notify_all();
  quiet_.notify_all();
  lock.unlock();
  reclaim_.join();
  lock.lock();
  // The open region and the clean regions get their footers, so that the next start need not read them record by record.
  (void)table_.close_open();
  for (uint32_t i = 0; i < table_.count(); ++i) {
    if (table_.region(i).state == RegionState::kClean) table_.region(i).state = RegionState::kClosed;
    write_footer(i, lock);
  }
  const auto is_quiet = [this] {
    for (uint32_t i = 0; i < table_.count(); ++i)
      if (table_.region(i).writes + table_.region(i).reads > 0) return false;
    return true;
  };
  quiet_.wait(lock, is_quiet);
  lock.unlock();
  transfers_.reset();
}

// -- requests ------------------------------------------------------------------------------------------------------------

size_t FileTier::submit(const maru_tier_request* requests, size_t n) {
  Lock lock(mutex_);
  size_t taken = 0;
  for (; taken < n && waiting_.size() < kWaitingMax; ++taken) {
    ++in_flight_;
    if (!serve(requests[taken], lock)) waiting_.push_back(requests[taken]);
  }
  return taken;
}

bool FileTier::serve(const maru_tier_request& request, Lock& lock) {
  const bool changes = request.kind == MARU_TIER_STORE || request.kind == MARU_TIER_DELETE;
  // Its tombstone or its next record must lie behind the record that is being moved.
  if (changes && !moving_key_.empty() && moving_key_ == key_of(request)) return false;
  switch (request.kind) {
    case MARU_TIER_LOOKUP: lookup(request); return true;
    case MARU_TIER_LOAD: load(request, lock); return true;
    case MARU_TIER_STORE: return store(request, lock);
    case MARU_TIER_DELETE: return remove(request, lock);
    default: finish(request.ticket, -EINVAL); return true;
  }
}

void FileTier::serve_waiting(Lock& lock) {
  for (size_t left = waiting_.size(); left > 0; --left) {
    const maru_tier_request request = waiting_.front();
    waiting_.pop_front();
    if (!serve(request, lock)) waiting_.push_back(request);
  }
}

void FileTier::finish(uint64_t ticket, int result, const LogEntry* entry) {
  --in_flight_;
  completions_.put(
      {ticket, result, entry ? entry->attributes_bytes : 0, entry ? entry->payload_bytes : 0, entry ? entry->note : 0});
}

void FileTier::lookup(const maru_tier_request& request) {
  const IndexedEntry* const found = table_.find(key_of(request));
  finish(request.ticket, found ? 0 : -ENOENT, found ? &table_.entry_of(*found) : nullptr);
}

void FileTier::load(const maru_tier_request& request, Lock&) {
  IndexedEntry* const found = table_.find(key_of(request));
  if (!found) return finish(request.ticket, -ENOENT);
  const LogEntry& entry = table_.entry_of(*found);
  if (entry.payload_bytes != request.payload_bytes) return finish(request.ticket, -ESTALE, &entry);
  if (entry.attributes_bytes > request.attributes_bytes) return finish(request.ticket, -ENOBUFS, &entry);
  ++found->uses;
  auto record = std::make_shared<Record>();
  record->request = request;
  record->entry = entry;
  record->place = {found->region, entry.region_offset};
  record->region_sequence = table_.region(found->region).sequence;
  auto* const payload = static_cast<std::byte*>(request.payload);
  record->lay_out(payload);
  ++table_.region(found->region).reads;
  transfers_->read({.pieces = record->pieces(payload),
                    .offset = file_.region_offset(found->region) + entry.region_offset,
                    .is_durable = false,
                    .done = [this, record](int result) { loaded(*record, result); }});
}

void FileTier::loaded(Record& record, int result) {
  const maru_tier_request& request = record.request;
  std::string_view attributes;
  if (result == 0) {
    const auto read =
        read_record_header(record.header.all(), file_.id(), record.region_sequence, record.place.offset, &attributes);
    const bool is_it = read && read->key == record.entry.key && read->sequence == record.entry.sequence &&
                       read->payload_bytes == request.payload_bytes &&
                       attributes.size() == record.entry.attributes_bytes;
    auto* const payload = static_cast<std::byte*>(request.payload);
    if (is_it) copy_bytes(payload + record.in_place, record.own.data(), request.payload_bytes - record.in_place);
    if (!is_it || checksum_of(payload, request.payload_bytes) != read->payload_checksum)
      result = -EBADMSG;
    else
      copy_bytes(request.attributes, attributes.data(), attributes.size());
  }
  Lock lock(mutex_);
  Region& region = table_.region(record.place.region);
  if (result == -EBADMSG) ++damaged_;
  // An entry that cannot be read once is not tried again.
  if (const IndexedEntry* const found = result < 0 && result != -ECANCELED ? table_.find(record.entry.key) : nullptr;
      found && table_.entry_of(*found).sequence == record.entry.sequence) {
    keep_unproven(record.entry.key, found->region);
    table_.forget(record.entry.key);
  }
  if (--region.reads == 0) quiet_.notify_all();
  finish(request.ticket, result, &record.entry);
}

bool FileTier::store(const maru_tier_request& request, Lock& lock) {
  if (request.key_bytes == 0 || request.key_bytes > MARU_TIER_KEY_BYTES_MAX ||
      request.attributes_bytes > MARU_TIER_ATTRIBUTES_BYTES_MAX) {
    finish(request.ticket, -EINVAL);
    return true;
  }
  auto record = std::make_shared<Record>();
  record->request = request;
  record->entry.key = key_of(request);
  record->entry.payload_bytes = request.payload_bytes;
  record->entry.payload_checksum = request.payload_checksum;
  record->entry.note = request.note;
  record->entry.attributes_bytes = request.attributes_bytes;
  if (!table_.can_hold(record->entry)) {
    finish(request.ticket, -EFBIG);
    return true;
  }
  if (const IndexedEntry* const found = table_.find(record->entry.key)) {
    const LogEntry& before = table_.entry_of(*found);
    if (before.payload_checksum == request.payload_checksum && before.payload_bytes == request.payload_bytes &&
        before.attributes_bytes == request.attributes_bytes && before.note == request.note) {
      finish(request.ticket, 0);  // the same entry once more
      return true;
    }
  }
  return write_entry(std::move(record), request.attributes, static_cast<const std::byte*>(request.payload), lock);
}

bool FileTier::remove(const maru_tier_request& request, Lock& lock) {
  if (!table_.find(key_of(request)) && !unproven_.contains(key_of(request))) {
    finish(request.ticket, -ENOENT);
    return true;
  }
  auto record = std::make_shared<Record>();
  record->request = request;
  record->entry.key = key_of(request);
  record->entry.flags = kRecordTombstone;
  record->entry.payload_checksum = checksum_of(nullptr, 0);
  if (!write_entry(record, nullptr, nullptr, lock)) return false;
  table_.forget(key_of(request));  // from now on, even if the tombstone fails
  return true;
}

// -- writing -------------------------------------------------------------------------------------------------------------

bool FileTier::write_entry(std::shared_ptr<Record> record, const void* attributes, const std::byte* payload,
                           Lock& lock) {
  LogEntry& entry = record->entry;
  std::optional<uint32_t> closed;
  const auto place = table_.place(entry, false, closed);
  if (closed) write_footer(*closed, lock);
  if (needs_clean()) room_.notify_all();
  if (!place) return false;
  record->place = *place;
  entry.region_offset = place->offset;
  entry.sequence = table_.next_sequence();
  auto* const memory = const_cast<std::byte*>(payload);  // a write only reads it
  record->lay_out(memory);
  if (payload) copy_bytes(record->own.data(), payload + record->in_place, entry.payload_bytes - record->in_place);
  write_record_header(record->header.all(), file_.id(), table_.region(place->region).sequence, entry, attributes);
  // A record that takes the place of another must outlast it when the power fails.
  const bool is_durable = entry.is_tombstone() || table_.find(entry.key) != nullptr || unproven_.contains(entry.key);
  writing_.insert(entry.key);
  lock.unlock();
  transfers_->write({.pieces = record->pieces(memory),
                     .offset = file_.region_offset(place->region) + place->offset,
                     .is_durable = is_durable,
                     .done = [this, record](int result) { written(*record, result); }});
  lock.lock();
  return true;
}

void FileTier::written(Record& record, int result) {
  Lock lock(mutex_);
  writing_.erase(record.entry.key);
  if (result == 0) {
    unproven_.erase(record.entry.key);
    table_.written(record.place, std::move(record.entry));
  } else {
    keep_unproven(record.entry.key, record.place.region);
  }
  if (result == -ENOSPC || result == -EDQUOT) {
    // Regions that were written before have their room; the others are left alone for a while.
    full_until_ = std::chrono::steady_clock::now() + kFullPause;
    if (table_.region(record.place.region).state == RegionState::kOpen)
      if (const auto closed = table_.close_open()) write_footer(*closed, lock);
    room_.notify_all();
  }
  end_write(record.place.region, lock);
  finish(record.request.ticket, result);
}

void FileTier::keep_unproven(const std::string& key, uint32_t region) {
  uint32_t& newest = unproven_.try_emplace(key, region).first->second;
  if (table_.region(newest).sequence < table_.region(region).sequence) newest = region;
}

// The last of a closed region's writes takes its footer along.
void FileTier::end_write(uint32_t index, Lock& lock) {
  --table_.region(index).writes;
  write_footer(index, lock);
  if (table_.region(index).writes > 0) return;
  room_.notify_all();
  quiet_.notify_all();
}

// Once all records of a closed region are written.
void FileTier::write_footer(uint32_t index, Lock&) {
  Region& region = table_.region(index);
  if (region.state != RegionState::kClosed || region.writes > 0 || region.has_footer) return;
  region.has_footer = true;  // tried once; without it the next start reads the region
  const auto footer = make_footer(file_.id(), region.sequence, file_.region_bytes(), region.entries);
  const auto aligned = std::make_shared<AlignedBytes>(footer.size());
  std::copy(footer.begin(), footer.end(), aligned->data());
  ++region.writes;
  transfers_->write({.pieces = {iovec{aligned->data(), aligned->size()}, {}, {}},
                     .offset = file_.region_offset(index) + file_.region_bytes() - footer.size(),
                     .is_durable = false,
                     .done = [this, index, aligned](int) {
                       Lock lock(mutex_);
                       --table_.region(index).writes;
                       room_.notify_all();
                       quiet_.notify_all();
                     }});
}

// -- its properties ------------------------------------------------------------------------------------------------------

void FileTier::get_properties(maru_tier_properties& ret_properties) const {
  ret_properties = {};
  ret_properties.size = sizeof(ret_properties);
  ret_properties.capabilities =
      MARU_TIER_KEEPS | MARU_TIER_SURVIVES | MARU_TIER_LISTS | MARU_TIER_BOUNDS_SELF | MARU_TIER_COUNTS_GROUPS;
  ret_properties.entry_bytes_max = file_.region_bytes() - 3 * kLogBlock - in_blocks(MARU_TIER_ATTRIBUTES_BYTES_MAX);
  if (ret_properties.entry_bytes_max > file_.region_bytes()) ret_properties.entry_bytes_max = kLogBlock;
  ret_properties.depth_bytes = wish_.transfers.write_bytes;
}

void FileTier::get_usage(maru_tier_usage& ret_usage) {
  ret_usage = {};
  ret_usage.size = sizeof(ret_usage);
  ret_usage.physical_bytes = file_.physical_bytes();
  ret_usage.capacity_bytes = wish_.file.capacity_bytes;
  const Lock lock(mutex_);
  ret_usage.entries = table_.entries();
  ret_usage.entry_bytes = table_.entry_bytes();
  ret_usage.evicted = evicted_;
  ret_usage.damaged = damaged_;
  ret_usage.reinserted = reinserted_;
  ret_usage.in_flight = in_flight_;
}

void FileTier::get_health(maru_tier_health& ret_health) {
  ret_health = {};
  ret_health.size = sizeof(ret_health);
  ret_health.is_ready = 1;
  std::string text;
  for (const std::string& trouble : {file_.direct_trouble(), transfers_->ring_trouble()})
    if (!trouble.empty()) text += (text.empty() ? "" : "; ") + trouble;
  {
    const Lock lock(mutex_);
    if (std::chrono::steady_clock::now() < full_until_)
      text += std::string(text.empty() ? "" : "; ") + "the disk is full";
  }
  ret_health.is_slow = !text.empty();
  std::snprintf(ret_health.text, sizeof ret_health.text, "%s", text.c_str());
}

int FileTier::list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) {
  const Lock lock(mutex_);
  size_t at = 0;
  return int(table_.list(cursor, n, [&](const LogEntry& entry) { write_listed(entry, ret_entries[at++]); }));
}

void FileTier::get_group(std::string_view name, maru_tier_group& ret_group) {
  const Lock lock(mutex_);
  const auto found = table_.groups().find(name);
  const GroupCount count = found == table_.groups().end() ? GroupCount{} : found->second;
  write_group(name, count.entries, count.bytes, ret_group);
}

int FileTier::list_groups(const maru_tier_group* after, maru_tier_group* ret_groups, size_t n) {
  const Lock lock(mutex_);
  const auto& groups = table_.groups();
  auto next = after ? groups.upper_bound(name_of(*after)) : groups.begin();
  size_t listed = 0;
  for (; next != groups.end() && listed < n; ++next)
    write_group(next->first, next->second.entries, next->second.bytes, ret_groups[listed++]);
  return int(listed);
}

int FileTier::list_oldest(std::string_view name, maru_tier_entry* ret_entries, size_t n) {
  const Lock lock(mutex_);
  size_t at = 0;
  return int(table_.list_oldest(name, n, [&](const LogEntry& entry) { write_listed(entry, ret_entries[at++]); }));
}

}  // namespace maru::tierd
