#include "libmaru/adapters/form_writer.h"

#include "libmaru/adapters/transpose.h"
#include "libmaru/adapters/weights.h"

#include <cstring>

namespace maru::adapters {

void FormWriter::write_row(const RowsPlace& place, uint64_t row, const std::byte* weights) {
  std::byte* const to = parts_.row(place, row);
  uint64_t used = place.columns * element_bytes(source_);
  if (manifest_.element == Element::kInt8) {
    compress_row(weights, source_, place.columns, scratch_, to);
    used = scale_offset(place.columns) + sizeof(float);
  } else {
    std::memcpy(to, weights, used);
  }
  if (used < place.slot_bytes) std::memset(to + used, 0, place.slot_bytes - used);
}

void FormWriter::write_a(size_t module, std::span<const std::byte> bytes) {
  const RowsPlace& place = placement_.modules[module].a;
  const uint64_t row_bytes = place.columns * element_bytes(source_);
  for (uint64_t row = 0; row < place.rows; ++row) write_row(place, row, bytes.data() + row * row_bytes);
}

void FormWriter::write_b(size_t module, std::span<const std::byte> bytes) {
  const RowsPlace& place = placement_.modules[module].bt;
  const uint64_t size = element_bytes(source_), row_bytes = place.columns * size;
  const auto from_row = [&](uint64_t row) { return bytes.data() + row * place.rows * size; };
  if (manifest_.element == Element::kInt8) {
    transposed_.resize(bytes.size());
    transpose(size, from_row, place.columns, place.rows,
              [&](uint64_t row) { return transposed_.data() + row * row_bytes; });
    for (uint64_t row = 0; row < place.rows; ++row) write_row(place, row, transposed_.data() + row * row_bytes);
    return;
  }
  to_rows_.clear();
  for (uint64_t row = 0; row < place.rows; ++row) to_rows_.push_back(parts_.row(place, row));
  transpose(size, from_row, place.columns, place.rows, [&](uint64_t row) { return to_rows_[row]; });
  for (std::byte* const row : to_rows_) std::memset(row + row_bytes, 0, place.slot_bytes - row_bytes);
}

void FormWriter::write_from(size_t module, const Placement& other, const std::vector<const void*>& other_parts) {
  const auto write = [&](const RowsPlace& to, const RowsPlace& from) {
    for (uint64_t row = 0; row < to.rows; ++row) {
      const RowsPlace::Spot spot = from.spot(row);
      write_row(to, row, static_cast<const std::byte*>(other_parts[spot.part]) + spot.offset);
    }
  };
  write(placement_.modules[module].a, other.modules[module].a);
  write(placement_.modules[module].bt, other.modules[module].bt);
}

void FormWriter::write_manifest() {
  const std::vector<std::byte> encoded = encode_manifest(manifest_);
  std::memcpy(parts_.first(), encoded.data(), encoded.size());
}

}  // namespace maru::adapters
