#include "libmaru/shm/feed/ring.h"

#include <bit>
#include <cstring>

namespace maru::shm {
namespace {

using format::FeedHeader;
using format::FeedKind;

// The writer announces the words that it will overwrite in such steps, each a part of the ring.
constexpr uint64_t kOverwriteStepsPerRing = 16;
// A publication is a few stores.
constexpr uint32_t kEndReadsMax = 64;

constexpr uint64_t words_of(uint64_t bytes) { return (bytes + 7) / 8; }

constexpr uint64_t head_word(uint64_t words, FeedKind kind, uint8_t reason, uint32_t key_kind, uint32_t key_bytes) {
  return words | uint64_t(kind) << 16 | uint64_t(reason) << 24 | uint64_t(key_kind & 0xFF) << 40 |
         uint64_t(key_bytes) << 48;
}

}  // namespace

FeedPlan plan_feed(uint64_t pages, uint64_t ring_bytes) {
  FeedPlan plan;
  plan.ring_bytes = std::bit_ceil(ring_bytes < format::kFeedRingBytesMin   ? format::kFeedRingBytesMin
                                  : ring_bytes > format::kFeedRingBytesMax ? format::kFeedRingBytesMax
                                                                           : ring_bytes);
  plan.table_offset = format::kFeedHeaderBytes + plan.ring_bytes;
  constexpr uint64_t kOsPage = 4096;
  plan.bytes = (plan.table_offset + pages * sizeof(AtomicU32) + kOsPage - 1) / kOsPage * kOsPage;
  return plan;
}

void FeedView::set(std::span<std::byte> memory, uint64_t pages, uint64_t ring_bytes, uint64_t incarnation) {
  header_ = reinterpret_cast<FeedHeader*>(memory.data());
  ring_ = reinterpret_cast<AtomicU64*>(memory.data() + format::kFeedHeaderBytes);
  table_ = reinterpret_cast<AtomicU32*>(memory.data() + format::kFeedHeaderBytes + ring_bytes);
  ring_words_ = ring_bytes / 8;
  pages_ = pages;
  incarnation_ = incarnation;
}

FeedView FeedView::format(std::span<std::byte> memory, const FeedPlan& plan, uint64_t pages, const uint8_t (&uuid)[16],
                          uint64_t incarnation) {
  FeedView view;
  view.set(memory, pages, plan.ring_bytes, incarnation);
  FeedHeader& header = *view.header_;
  header.magic = format::kFeedMagic;
  header.version = format::kFeedVersion;
  header.header_bytes = format::kFeedHeaderBytes;
  std::memcpy(header.uuid, uuid, sizeof(header.uuid));
  header.incarnation = incarnation;
  header.pages = pages;
  header.ring_bytes = plan.ring_bytes;
  header.table_offset = plan.table_offset;
  header.feed_bytes = plan.bytes;
  return view;
}

const char* FeedView::attach(std::span<std::byte> memory, uint64_t pages, const uint8_t (&uuid)[16],
                             FeedView* ret_view) {
  if (memory.size() < format::kFeedHeaderBytes) return "the feed is shorter than its header";
  FeedHeader header;  // copied once: nothing there is believed twice
  std::memcpy(static_cast<void*>(&header), memory.data(), offsetof(FeedHeader, sequence_begun));
  if (header.magic != format::kFeedMagic) return "the feed does not begin with its magic number";
  if (header.version != format::kFeedVersion) return "the feed has another version";
  if (header.header_bytes != format::kFeedHeaderBytes) return "the feed's header has another size";
  if (std::memcmp(header.uuid, uuid, sizeof(header.uuid)) != 0) return "the feed is another pool's";
  if (header.pages != pages) return "the feed has another number of pages than the pool";
  if (header.incarnation == 0) return "the feed has no incarnation";
  if (!std::has_single_bit(header.ring_bytes) || header.ring_bytes < format::kFeedRingBytesMin ||
      header.ring_bytes > format::kFeedRingBytesMax)
    return "the feed's ring has a size that no ring has";
  const FeedPlan plan = plan_feed(pages, header.ring_bytes);
  if (header.table_offset != plan.table_offset || header.feed_bytes != plan.bytes || memory.size() < plan.bytes)
    return "the parts of the feed do not fit its memory";
  ret_view->set(memory, pages, header.ring_bytes, header.incarnation);
  return nullptr;
}

void FeedWriter::append(const FeedRecord& record) {
  const bool is_stored = record.kind == FeedKind::kStored;
  const uint64_t key_words = is_stored ? words_of(record.key_bytes) : 0;
  const uint64_t words = is_stored ? format::kFeedStoredWords + key_words : format::kFeedRemovedWords;
  const uint64_t end = position_ + words * 8;
  if (const uint64_t ring = view_.ring_bytes(); end > ring && overwritten_ < end - ring) {
    const uint64_t step = ring / kOverwriteStepsPerRing;
    overwritten_ = (end - ring + step - 1) / step * step;
    // Before the words that it is about, each of which releases it: [pairs feed.overwritten]
    view_.header().overwritten.store_release(overwritten_);
  }
  put(head_word(words, record.kind, record.reason, is_stored ? record.key_kind : 0, is_stored ? record.key_bytes : 0));
  put(++sequence_);
  put(record.block.bits);
  put(record.at_ms);
  if (is_stored) {
    put(record.parent.bits);
    put(record.tenant);
    put(record.length);
    put(record.shape);
    put(record.stored_ms);
    put(record.expires_ms);
    put(record.detail_kind);
    for (uint64_t i = 0; i < key_words; ++i) {
      uint64_t word = 0;
      const uint64_t left = record.key_bytes - i * 8;
      std::memcpy(&word, record.key + i * 8, left < 8 ? left : 8);
      put(word);
    }
  }
  // Before publish(): a reader of the table behind a position knows all that was told before it. [pairs feed.table]
  view_.table(record.block.page()).store_release(is_stored ? format::feed_mark(record.block.generation()) : 0);
}

bool FeedWriter::publish() {
  if (published_ == position_) return false;
  FeedHeader& header = view_.header();
  header.sequence_begun.store_release(sequence_);
  published_ = position_;
  header.published.store_release(published_);                 // [pairs feed.published]
  header.sequence.store_release(sequence_);                   // [pairs feed.sequence]
  header.wake.store_release(header.wake.load_relaxed() + 1);  // its only writer
  return true;
}

// -- reading ----------------------------------------------------------------------------------------------------------

bool FeedReader::go_to_end() {
  const FeedHeader& header = view_.header();
  for (uint32_t i = 0; i < kEndReadsMax; ++i) {
    const uint64_t sequence = header.sequence.load_acquire();    // [pairs feed.sequence]
    const uint64_t published = header.published.load_acquire();  // [pairs feed.published]
    if (header.sequence_begun.load_acquire() != sequence) continue;
    position_ = published;
    sequence_ = sequence;
    return true;
  }
  return false;
}

uint64_t FeedReader::unread_bytes() const {
  const uint64_t published = view_.header().published.load_acquire();  // [pairs feed.published]
  return published > position_ ? published - position_ : 0;
}

FeedStatus FeedReader::read(FeedRecord* ret_record) {
  const uint64_t published = view_.header().published.load_acquire();  // [pairs feed.published]
  if (published == position_) return FeedStatus::kNothing;
  if (published < position_ || published % 8 != 0) return FeedStatus::kDamaged;
  if (published - position_ > view_.ring_bytes()) return FeedStatus::kOverrun;
  const uint64_t words = view_.ring(position_ / 8).load_acquire() & 0xFFFF;  // [pairs feed.word]
  const FeedStatus status = take(published, ret_record);
  // A copy counts only if nothing was written over it meanwhile.
  if (is_overrun()) return FeedStatus::kOverrun;
  if (status != FeedStatus::kRecord) return status;
  position_ += words * 8;
  sequence_ = ret_record->sequence;
  return status;
}

// The copy of the record at the position; of any words, since they may be overwritten or damaged.
FeedStatus FeedReader::take(uint64_t published, FeedRecord* ret_record) const {
  uint64_t at = position_ / 8;
  const auto next = [&] { return view_.ring(at++).load_acquire(); };  // [pairs feed.word]
  const uint64_t head = next();
  const uint64_t words = head & 0xFFFF, key_bytes = head >> 48;
  FeedRecord& record = *ret_record;
  record.kind = FeedKind(uint8_t(head >> 16));
  record.reason = uint8_t(head >> 24);
  record.key_kind = uint8_t(head >> 40);
  record.key_bytes = uint32_t(key_bytes);
  const bool is_stored = record.kind == FeedKind::kStored;
  if (!is_stored && record.kind != FeedKind::kRemoved) return FeedStatus::kDamaged;
  if (is_stored
          ? key_bytes == 0 || key_bytes > sizeof(record.key) || words != format::kFeedStoredWords + words_of(key_bytes)
          : key_bytes != 0 || words != format::kFeedRemovedWords)
    return FeedStatus::kDamaged;
  if (published - position_ < words * 8) return FeedStatus::kDamaged;
  record.sequence = next();
  record.block = PageRef::from_bits(next());
  record.at_ms = next();
  if (record.sequence != sequence_ + 1) return FeedStatus::kDamaged;
  if (record.block.is_none() || record.block.page() >= view_.pages()) return FeedStatus::kDamaged;
  if (!is_stored) return FeedStatus::kRecord;
  record.parent = PageRef::from_bits(next());
  record.tenant = next();
  record.length = next();
  record.shape = next();
  record.stored_ms = next();
  record.expires_ms = next();
  record.detail_kind = next();
  for (uint64_t i = 0; i < words_of(key_bytes); ++i) {
    const uint64_t word = next();
    std::memcpy(record.key + i * 8, &word, 8);
  }
  if (!record.parent.is_none() && record.parent.page() >= view_.pages()) return FeedStatus::kDamaged;
  return FeedStatus::kRecord;
}

}  // namespace maru::shm
