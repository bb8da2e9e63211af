#include "libmaru/shm/region/format_claim.h"

#include "libmaru/shm/region/flush.h"
#include "maru/format/atomic_word.h"
#include "maru/format/control_region.h"

#include <cstring>

namespace maru::shm {
namespace {

constexpr size_t kUuidAt = offsetof(format::Header, uuid);
static_assert(kUuidAt % 8 == 0 && kUuidAt + 16 <= 64, "words of the line that the claim is in");

}  // namespace

FormatClaim claim_in(std::span<const std::byte> begin) {
  FormatClaim found;
  if (begin.size() >= sizeof(found.bits)) std::memcpy(&found.bits, begin.data(), sizeof(found.bits));
  return found;
}

bool claim_format(std::span<std::byte> memory, uint32_t machine, FormatClaim* ret_found) {
  auto& word = *reinterpret_cast<AtomicU64*>(memory.data());
  const FormatClaim own = FormatClaim::of(machine);
  uint64_t found = 0;
  if (word.cas_seq_cst(found, own.bits)) found = own.bits;
  *ret_found = {found};
  flush_lines(&word, sizeof(word));  // another host must not find the memory blank again
  return found == own.bits;
}

std::array<uint8_t, 16> claimed_uuid(std::span<const std::byte> begin) {
  std::array<uint8_t, 16> uuid = {};
  if (begin.size() >= kUuidAt + uuid.size()) std::memcpy(uuid.data(), begin.data() + kUuidAt, uuid.size());
  return uuid;
}

void settle_uuid(std::span<std::byte> memory, uint8_t (&uuid)[16]) {
  auto* words = reinterpret_cast<AtomicU64*>(memory.data() + kUuidAt);
  uint64_t found[2] = {words[0].load_relaxed(),
                       words[1].load_relaxed()};  // there is no other writer: the claim is the caller's
  if (found[0] == 0 || found[1] == 0) {           // none, or half of a uuid, before there was a label
    std::memcpy(found, uuid, sizeof(found));
    words[0].store_relaxed(found[0]);
    words[1].store_release(found[1]);
    flush_lines(words, sizeof(found));  // before the label, which is known by it
  }
  std::memcpy(uuid, found, sizeof(found));
}

void give_up_pool(std::span<std::byte> memory) {
  auto& word = *reinterpret_cast<AtomicU64*>(memory.data());
  word.store_release(FormatClaim::of(0).bits);
  flush_lines(&word, sizeof(word));
}

ClearingMark clearing_mark_in(std::span<const std::byte> begin) { return {claim_in(begin).bits}; }

namespace {

// Writes the words of the line, each in memory before the next word: there is no other writer.
void put_word(std::span<std::byte> memory, size_t offset, uint64_t bits) {
  auto& word = *reinterpret_cast<AtomicU64*>(memory.data() + offset);
  word.store_release(bits);
  flush_lines(&word, sizeof(word));
}

}  // namespace

void begin_clearing(std::span<std::byte> memory, bool is_of_pages, const uint8_t (&uuid)[16], bool is_shared) {
  uint64_t words[2];
  std::memcpy(words, uuid, sizeof(words));
  put_word(memory, 0, ClearingMark::of(is_of_pages, false, is_shared).bits);
  for (size_t i = 0; i < 2; ++i) put_word(memory, kUuidAt + 8 * i, words[i]);
  put_word(memory, 0, ClearingMark::of(is_of_pages, true, is_shared).bits);
}

void end_clearing(std::span<std::byte> memory) {
  const ClearingMark mark = clearing_mark_in(memory);
  put_word(memory, 0, ClearingMark::of(mark.is_of_pages(), false, mark.is_shared()).bits);
  for (size_t at = sizeof(uint64_t); at < kMarkedBytes; at += sizeof(uint64_t)) put_word(memory, at, 0);
  put_word(memory, 0, 0);
}

}  // namespace maru::shm
