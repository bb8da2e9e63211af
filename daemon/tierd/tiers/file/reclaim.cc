// How the file tier makes room: a thread that keeps a region clean.
#include "daemon/tierd/tiers/file/aligned_bytes.h"
#include "daemon/tierd/tiers/file/file_tier.h"

#include <cerrno>
#include <future>
#include <utility>

namespace maru::tierd {

namespace {
constexpr size_t kCleanRegions = 2;                    // one for new records, one for moved records
constexpr std::chrono::milliseconds kRetryPause{100};  // after the device refused a region's header
}  // namespace

bool FileTier::needs_clean() const { return table_.clean_count() < kCleanRegions; }

void FileTier::run_reclaim() {
  Lock lock(mutex_);
  while (!is_stopping_) {
    if (needs_clean()) make_clean(lock);
    serve_waiting(lock);
    if (is_stopping_) return;
    // A region whose last write ends, a request that waits, or a fresh region that may be tried again.
    if (needs_clean())
      room_.wait_for(lock, kRetryPause);
    else
      room_.wait(lock, [this] { return is_stopping_ || needs_clean() || !waiting_.empty(); });
  }
}

void FileTier::make_clean(Lock& lock) {
  const bool is_full = std::chrono::steady_clock::now() < full_until_;
  if (!is_full) {
    if (const auto fresh = table_.any_fresh()) {
      // Where the disk is full, an older region may serve.
      const int result = prepare(*fresh, lock);
      if (result < 0 && result != -ENOSPC && result != -EDQUOT && table_.clean_count() == 0) refuse_waiting(result);
      return;
    }
  }
  const auto oldest = table_.oldest_closed();
  if (!oldest) {
    // Nothing is written yet, and the disk is full: the waiting requests learn it.
    if (is_full) refuse_waiting(-ENOSPC);
    return;
  }
  move_used(*oldest, lock);
  if (is_stopping_) return;
  // It stays the oldest. No other region goes before it, as its tombstones may deny this region's records.
  if (const int result = prepare(*oldest, lock); result < 0) refuse_waiting(result);
}

void FileTier::refuse_waiting(int result) {
  for (const maru_tier_request& request : std::exchange(waiting_, {})) finish(request.ticket, result);
}

// Entries that were loaded since they were written, as many bytes as are allowed. An entry whose key is being written stays.
// Its moved record could outlast the record, or the tombstone, that takes its place.
void FileTier::move_used(uint32_t index, Lock& lock) {
  uint64_t budget = file_.region_bytes() / 100 * wish_.reinsert_percent;
  const std::vector<LogEntry> entries = table_.region(index).entries;
  for (const LogEntry& entry : entries) {
    if (is_stopping_) return;
    const IndexedEntry* const found = entry.is_tombstone() ? nullptr : table_.find(entry.key);
    const bool is_used =
        found && found->region == index && found->uses > 0 && table_.entry_of(*found).sequence == entry.sequence;
    if (!is_used || writing_.contains(entry.key) || entry.record_bytes() > budget) continue;
    moving_key_ = entry.key;
    if (move_entry(index, entry, lock)) budget -= entry.record_bytes();
    moving_key_.clear();
  }
}

// Reads the record, proves it, and writes it into the open region with the sequence that it has.
bool FileTier::move_entry(uint32_t index, const LogEntry& entry, Lock& lock) {
  AlignedBytes record(entry.record_bytes());
  const uint64_t region_sequence = table_.region(index).sequence;
  lock.unlock();
  const bool was_read =
      file_.read(record.data(), record.size(), file_.region_offset(index) + entry.region_offset).has_value();
  std::string_view attributes;
  const auto read = was_read ? read_record_header(record.all().first(entry.header_bytes()), file_.id(), region_sequence,
                                                  entry.region_offset, &attributes)
                             : std::nullopt;
  const bool is_proven =
      read && read->key == entry.key && read->sequence == entry.sequence &&
      checksum_of(record.data() + entry.header_bytes(), entry.payload_bytes) == entry.payload_checksum;
  const std::string kept_attributes(attributes);
  lock.lock();
  if (!is_proven) {
    ++damaged_;
    return false;
  }
  LogEntry moved = entry;
  std::optional<uint32_t> closed;
  const auto place = table_.place(moved, true, closed);
  if (closed) write_footer(*closed, lock);
  if (!place) return false;  // stores took the room first
  moved.region_offset = place->offset;
  write_record_header(record.all().first(entry.header_bytes()), file_.id(), table_.region(place->region).sequence,
                      moved, kept_attributes.data());
  lock.unlock();
  std::promise<int> done;
  transfers_->write({.pieces = {iovec{record.data(), record.size()}, {}, {}},
                     .offset = file_.region_offset(place->region) + place->offset,
                     .is_durable = false,
                     .done = [&](int result) { done.set_value(result); }});
  const int result = done.get_future().get();
  lock.lock();
  const bool has_moved = result == 0 && table_.moved(*place, std::move(moved), index);
  if (!has_moved) keep_unproven(entry.key, place->region);
  reinserted_ += has_moved;
  end_write(place->region, lock);
  return has_moved;
}

// A header with the next sequence; then the region is clean. Returns 0, or -errno: then a closed region is as before. Some file
// systems take new room to replace a block, and may be full.
int FileTier::prepare(uint32_t index, Lock& lock) {
  const uint64_t sequence = table_.next_sequence();
  AlignedBytes block(kLogBlock);
  write_region_header(block.all(), file_.id(), index, sequence);
  lock.unlock();
  const auto put = file_.write(block.data(), block.size(), file_.region_offset(index));
  lock.lock();
  Region& region = table_.region(index);
  if (!put) {
    // A region that holds nothing is tried again as a fresh one.
    if (region.state != RegionState::kClosed) region = Region{};
    if (put.error().code == ENOSPC || put.error().code == EDQUOT)
      full_until_ = std::chrono::steady_clock::now() + kFullPause;
    return -put.error().code;
  }
  // The next start will not find its entries, so the index gives them up, too. Reads that have begun end first.
  evicted_ += table_.forget_region(index);
  std::erase_if(unproven_, [&](const auto& key_and_region) { return key_and_region.second == index; });
  quiet_.wait(lock, [&] { return is_stopping_ || region.reads == 0; });
  if (region.reads > 0) return 0;  // the tier ends
  region = Region{};
  region.state = RegionState::kClean;
  region.sequence = sequence;
  table_.add_clean(index);
  return 0;
}

}  // namespace maru::tierd
