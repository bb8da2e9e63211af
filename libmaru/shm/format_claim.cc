#include "libmaru/shm/format_claim.h"

#include "libmaru/shm/flush.h"
#include "maru/format/atomic_word.h"

#include <cstring>

namespace maru::shm {

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

}  // namespace maru::shm
