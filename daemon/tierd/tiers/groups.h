// The groups of maru/tier.h: which one a key names, and the form in which a tier tells of them.
#pragma once

#include "maru/tier.h"

#include <cstdint>
#include <cstring>
#include <string_view>

namespace maru::tierd {

// A key that is shorter than it says is of no group.
inline std::string_view group_of(std::string_view key) {
  const size_t bytes = key.size() < 2 ? 0 : static_cast<unsigned char>(key[1]);
  return key.size() < 2 + bytes ? std::string_view() : key.substr(2, bytes);
}

inline void write_group(std::string_view name, uint64_t entries, uint64_t entry_bytes, maru_tier_group& ret_group) {
  ret_group = {};
  ret_group.entries = entries;
  ret_group.entry_bytes = entry_bytes;
  ret_group.name_bytes = uint32_t(name.size());
  if (!name.empty()) std::memcpy(ret_group.name, name.data(), name.size());
}

inline std::string_view name_of(const maru_tier_group& group) {
  return {reinterpret_cast<const char*>(group.name), group.name_bytes};
}

}  // namespace maru::tierd
