// The places of the rows of an adapter's matrices in its blocks.
//
// The unit is a rank's row: a row of A, with in_features weights, and a row of B transposed, with out_features. S-LoRA pages
// adapters by the same rows, since a page of such rows needs no neighbour. A row begins at a line of the cache and lies in one
// part. A part is a block of the pool, so an adapter needs no run of pages longer than a part. The manifest lies before the
// first row. All of this follows from the manifest and the size of a part: every process computes the same places.
#pragma once

#include "libmaru/adapters/manifest.h"

namespace maru::adapters {

struct RowsPlace {
  uint64_t first_part = 0;
  uint64_t first_offset = 0;
  uint64_t first_rows = 0;  // in first_part
  uint64_t rows_per_part = 0;
  uint64_t slot_bytes = 0;
  uint64_t rows = 0, columns = 0;

  struct Spot {
    uint64_t part, offset;
  };
  Spot spot(uint64_t row) const {
    if (row < first_rows) return {first_part, first_offset + row * slot_bytes};
    row -= first_rows;
    return {first_part + 1 + row / rows_per_part, row % rows_per_part * slot_bytes};
  }
  // How many rows from this one on lie in its part, one behind the other.
  uint64_t rows_beside(uint64_t row) const {
    const uint64_t here = row < first_rows ? first_rows - row : rows_per_part - (row - first_rows) % rows_per_part;
    return here < rows - row ? here : rows - row;
  }
};

struct ModulePlace {
  RowsPlace a, bt;
};

struct Placement {
  std::vector<ModulePlace> modules;
  std::vector<uint64_t> part_bytes;  // of each part, of which at least 64 are used
};

constexpr uint64_t scale_offset(uint64_t columns) { return (columns + 3) / 4 * 4; }

constexpr uint64_t slot_bytes_of(Element element, uint64_t columns) {
  const uint64_t bytes =
      element == Element::kInt8 ? scale_offset(columns) + sizeof(float) : columns * element_bytes(element);
  return (bytes + 63) / 64 * 64;
}

// Nothing when a row or the manifest is longer than a part: the caller needs longer parts.
std::optional<Placement> place(const Manifest& manifest, Element element, uint64_t manifest_bytes,
                               uint64_t part_bytes_max);

}  // namespace maru::adapters
