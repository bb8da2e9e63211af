// Metadata in the world: words in the line behind a page's payload, of which each says whose it is.
#include "world.h"

#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/region/flush.h"

#include <array>
#include <cinttypes>
#include <cstring>

namespace maru::sim {

static uint64_t metadata_word(uint32_t key, uint32_t version, uint32_t i) {
  return uint64_t(key) << 32 | uint64_t(version) << 8 | 0x80 | i;
}

uint64_t metadata_bytes(uint32_t key, uint32_t version) { return (key + version) % (kMetadataWordsMax + 1) * 8; }

static std::span<AtomicU64> metadata_words(uint32_t page) {
  constexpr size_t kFirst = format::metadata_offset(kPayloadWords * 8) / 8;
  static_assert(kFirst + kMetadataWordsMax <= kPayloadStride);
  return payload_words(page).subspan(kFirst, kMetadataWordsMax);
}

void write_metadata(uint32_t page, uint32_t key, uint32_t version) {
  for (uint32_t i = 0; i < metadata_bytes(key, version) / 8; ++i)
    metadata_words(page)[i].store_relaxed(metadata_word(key, version, i));
}

void flush_metadata(uint32_t page) { shm::flush(world(), metadata_words(page)[0]); }

void check_metadata(uint32_t page, uint32_t key, const char* who) {
  const auto version = uint32_t(payload_words(page)[0].load_relaxed() >> 8 & 0xff'ffff);
  const shm::MetadataPlace place = shm::metadata_of(world(), page);
  if (!place.fits || place.bytes != metadata_bytes(key, version))
    fail("%s finds %" PRIu64 " bytes of metadata in page %u, which has %" PRIu64 " for key %u", who, place.bytes, page,
         metadata_bytes(key, version), key);
  for (uint32_t i = 0; i < place.bytes / 8; ++i) {
    const uint64_t found = metadata_words(page)[i].load_relaxed();
    if (found != metadata_word(key, version, i))
      fail("%s reads foreign or unfinished metadata in page %u: 0x%" PRIx64 " for key %u", who, page, found, key);
  }
}

void list_metadata(uint32_t page) {
  const PageWord word{world().block(page).word.load_acquire()};
  if (!word.is(PageState::kReady)) return;
  const PageRef ref = PageRef::of(page, word.generation());
  const shm::MetadataPlace place = shm::metadata_of(world(), page);
  if (!place.fits) return;
  std::array<std::byte, kMetadataWordsMax * 8> bytes;
  if (place.bytes > bytes.size() ||
      !shm::read_metadata(world(), ref, place, metadata_words(page), std::span(bytes).first(place.bytes)))
    return;
  const uint32_t key = key_of_life(ref);
  if (key == kWorldKeys) fail("page %u shows metadata in a life in which it was no block", page);
  if (place.bytes != metadata_bytes(key, ref.generation()))
    fail("a listing finds %" PRIu64 " bytes of metadata in page %u for key %u", place.bytes, page, key);
  for (uint32_t i = 0; i < place.bytes / 8; ++i) {
    uint64_t found = 0;
    std::memcpy(&found, bytes.data() + i * 8, 8);
    if (found != metadata_word(key, ref.generation(), i))
      fail("a listing reads other metadata in page %u: 0x%" PRIx64 " for key %u", page, found, key);
  }
}

}  // namespace maru::sim
