// The label of pages that lie in a piece of their own.
#pragma once

#include "maru/format/data_label.h"

#include <cstddef>

namespace maru::shm {

// What its checksum must be: a label with another one was not written whole, or is damaged.
inline uint64_t data_label_checksum(const format::DataLabel& label) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&label);
  for (size_t i = 0; i < offsetof(format::DataLabel, checksum); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

}  // namespace maru::shm
