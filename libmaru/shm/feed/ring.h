// The ring of a feed (include/maru/format/feed.h): marud writes records, and any number of followers read them.
//
// Thread safety: one writer; readers each with a FeedReader of their own. Progress: neither waits for the other. A reader that
// is overtaken notices after the copy: the writer raises `overwritten` before it writes over a word, and a reader that has
// copied a newer word sees that. If the writer dies here: words behind `published`, which no reader reads.
#pragma once

#include "libmaru/shm/region/page_word.h"
#include "maru/format/feed.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace maru::shm {

struct FeedPlan {
  uint64_t ring_bytes = 0;
  uint64_t table_offset = 0;
  uint64_t bytes = 0;  // of all
};
// `ring_bytes` is rounded up to a power of two within the limits of the format.
FeedPlan plan_feed(uint64_t pages, uint64_t ring_bytes);

// A feed in mapped memory, checked.
class FeedView {
 public:
  FeedView() = default;
  // Writes the header of an empty feed over zeros.
  static FeedView format(std::span<std::byte> memory, const FeedPlan& plan, uint64_t pages, const uint8_t (&uuid)[16],
                         uint64_t incarnation);
  // Returns nullptr, or the fault. `pages`, `uuid`: of the pool that it must belong to.
  static const char* attach(std::span<std::byte> memory, uint64_t pages, const uint8_t (&uuid)[16], FeedView* ret_view);

  format::FeedHeader& header() const { return *header_; }
  AtomicU64& ring(uint64_t word) const { return ring_[word & (ring_words_ - 1)]; }
  AtomicU32& table(uint32_t page) const { return table_[page]; }
  uint64_t pages() const { return pages_; }
  uint64_t ring_bytes() const { return ring_words_ * 8; }
  uint64_t incarnation() const { return incarnation_; }

 private:
  void set(std::span<std::byte> memory, uint64_t pages, uint64_t ring_bytes, uint64_t incarnation);

  format::FeedHeader* header_ = nullptr;
  AtomicU64* ring_ = nullptr;
  AtomicU32* table_ = nullptr;
  uint64_t ring_words_ = 0, pages_ = 0, incarnation_ = 0;
};

// The content of a record.
struct FeedRecord {
  format::FeedKind kind = format::FeedKind::kStored;
  uint8_t reason = 0;
  uint64_t sequence = 0;
  PageRef block;
  uint64_t at_ms = 0;
  // of STORED
  PageRef parent;
  uint64_t tenant = 0, length = 0, shape = 0, stored_ms = 0, expires_ms = 0, detail_kind = 0;
  uint32_t key_kind = 0, key_bytes = 0;
  alignas(8) std::byte key[4096];
};

class FeedWriter {
 public:
  explicit FeedWriter(const FeedView& view) : view_(view) {}
  // Gives the record its number, and writes it and the page's word of the table. Readers see the record after publish().
  void append(const FeedRecord& record);
  uint64_t unpublished_bytes() const { return position_ - published_; }
  uint64_t sequence() const { return sequence_; }
  // Returns whether there was anything.
  bool publish();

 private:
  void put(uint64_t word) { view_.ring(position_ / 8).store_release(word), position_ += 8; }  // [pairs feed.word]
  FeedView view_;
  uint64_t position_ = 0, published_ = 0, sequence_ = 0;
  uint64_t overwritten_ = 0;  // as the header says
};

enum class FeedStatus : uint8_t {
  kRecord,
  kNothing,
  kOverrun,  // the writer has overtaken this reader
  kDamaged   // the words are no record, or not the next record
};

class FeedReader {
 public:
  FeedReader() = default;
  explicit FeedReader(const FeedView& view) : view_(view) {}
  // Goes to the newest record's end. False: a publication was under way all the time; try again.
  bool go_to_end();
  FeedStatus read(FeedRecord* ret_record);
  // Whether the words at this reader's position are gone.
  bool is_overrun() const { return view_.header().overwritten.load_acquire() > position_; }  // [pairs feed.overwritten]
  // The number of the last record that was read, or of the start.
  uint64_t sequence() const { return sequence_; }
  uint64_t unread_bytes() const;

 private:
  FeedStatus take(uint64_t published, FeedRecord* ret_record) const;
  FeedView view_;
  uint64_t position_ = 0, sequence_ = 0;
};

}  // namespace maru::shm
