// The label in front of the pages of a pool in two pieces, when these lie on a device or in a file of their own: it names the
// pool. Pages in memory have none. Page 0 lies behind it, as a huge page does; all integers are little-endian.
//
// Written once, when the pool is formatted, before its control region has a valid header: so a control region that is there
// has its pages. Clients may write the label, as all of that piece. So the label names the
// pool, and the control region proves it.
#pragma once

#include <cstdint>
#include <type_traits>

namespace maru::format {

inline constexpr uint64_t kDataLabelMagic = 0x315441445552414d;  // "MARUDAT1" when read as bytes
inline constexpr uint64_t kDataLabelRoom = 2ull << 20;           // before page 0
inline constexpr uint64_t kDataLabelHosts = 0x54534f485552414d;  // "MARUHOST" when read as bytes

struct DataLabel {
  uint64_t magic;
  uint8_t uuid[16];       // of the pool
  uint64_t data_bytes;    // of this piece
  uint64_t pages_offset;  // of page 0
  uint64_t checksum;      // FNV-1a (64 bits) of all bytes before it
  uint64_t hosts;  // kDataLabelHosts: several reach these pages; 0: one does, or an older marud has written the label
};
static_assert(sizeof(DataLabel) == 56);
static_assert(sizeof(DataLabel) <= 64, "one cache line, which reaches the memory as a whole");
static_assert(std::has_unique_object_representations_v<DataLabel>);

}  // namespace maru::format
