// The label of pages that lie in a piece of their own.
#pragma once

#include "maru/format/atomic_word.h"
#include "maru/format/data_label.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace maru::shm {

// The right checksum: a label with another checksum was not written whole, or is damaged.
inline uint64_t data_label_checksum(const format::DataLabel& label) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&label);
  for (size_t i = 0; i < offsetof(format::DataLabel, checksum); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

// `is_shared`: by several hosts.
inline format::DataLabel make_data_label(const uint8_t (&uuid)[16], uint64_t data_bytes, uint64_t pages_offset,
                                         bool is_shared = false) {
  const uint64_t hosts = is_shared ? format::kDataLabelHosts : 0;
  format::DataLabel label = {format::kDataLabelMagic, {}, data_bytes, pages_offset, 0, hosts};
  std::memcpy(label.uuid, uuid, sizeof(label.uuid));
  label.checksum = data_label_checksum(label);
  return label;
}

// Writes it over zeros, or over a part of it. The uuid comes first, since it identifies a part, and the magic number last: a
// part is no label yet. The caller flushes it.
inline void write_data_label(void* memory, const format::DataLabel& label) {
  uint64_t words[sizeof(label) / 8];
  std::memcpy(words, &label, sizeof(words));
  auto* to = static_cast<AtomicU64*>(memory);
  for (size_t i = 1; i < sizeof(words) / 8; ++i) to[i].store_release(words[i]);
  to[0].store_release(words[0]);
}
static_assert(offsetof(format::DataLabel, uuid) == 8, "the second word");

// Whether the found bytes are a part of this label, as a death during the writing leaves it. Then some of its words are there,
// the uuid among them, and the others are zero.
inline bool is_part_of(const format::DataLabel& found, const format::DataLabel& whole) {
  uint64_t has[sizeof(found) / 8], wanted[sizeof(whole) / 8];
  std::memcpy(has, &found, sizeof(has));
  std::memcpy(wanted, &whole, sizeof(wanted));
  for (size_t i = 0; i < sizeof(found) / 8; ++i)
    if (has[i] != 0 && has[i] != wanted[i]) return false;
  constexpr size_t kUuid = offsetof(format::DataLabel, uuid) / 8;
  return has[kUuid] != 0 || has[kUuid + 1] != 0;
}

}  // namespace maru::shm
