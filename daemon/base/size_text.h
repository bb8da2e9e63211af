// Sizes as people write them: "4096", "64KiB", "1.5GiB", "2TiB".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace maru::daemon {

// Bytes, or nothing when it is not a size. Suffixes KiB, MiB, GiB, TiB (also K, M, G, T, all powers of 1024).
std::optional<uint64_t> parse_size(std::string_view text);

// With the largest suffix that leaves a number of at least 1: "64 KiB", "1.5 GiB".
std::string size_text(uint64_t bytes);

}  // namespace maru::daemon
