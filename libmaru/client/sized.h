// Structures of the C interface that begin with their size: callers may have been built with a smaller or a larger one.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace maru::client {

// 0 or -EINVAL; null stands for the defaults.
template <typename T>
int read_options(const T* given, T* ret_options) {
  *ret_options = T{};
  if (given == nullptr) return 0;
  if (given->size < sizeof(size_t) || given->size > 4096) return -EINVAL;
  std::memcpy(ret_options, given, std::min(sizeof(T), given->size));
  // A newer caller's fields beyond our structure must be zero: they would be ignored.
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < given->size; ++i)
    if (bytes[i] != 0) return -EINVAL;
  for (const uint64_t word : ret_options->reserved)
    if (word != 0) return -EINVAL;
  return 0;
}

template <typename T>
int write_sized(const T& value, T* ret_value) {
  const size_t size = ret_value->size;
  if (size < sizeof(size_t) || size > 4096) return -EINVAL;
  std::memcpy(reinterpret_cast<char*>(ret_value) + sizeof(size_t),
              reinterpret_cast<const char*>(&value) + sizeof(size_t), std::min(size, sizeof(T)) - sizeof(size_t));
  return 0;
}

}  // namespace maru::client
