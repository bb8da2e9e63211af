#include "libmaru/adapters/form_writer.h"

#include "libmaru/adapters/transpose.h"
#include "libmaru/adapters/weights.h"

#include <cstring>

namespace maru::adapters {
namespace {

void write_row(const FormPlan& plan, const RowsPlace& place, uint64_t row, const std::byte* weights,
               std::vector<float>& scratch) {
  std::byte* const to = plan.parts.row(place, row);
  uint64_t used = place.columns * element_bytes(plan.source);
  if (plan.manifest.element == Element::kInt8) {
    compress_row(weights, plan.source, place.columns, scratch, to);
    used = scale_offset(place.columns) + sizeof(float);
  } else {
    std::memcpy(to, weights, used);
  }
  if (used < place.slot_bytes) std::memset(to + used, 0, place.slot_bytes - used);
}

}  // namespace

bool FormSink::is_read_in_place(bool is_a, const RowsPlace& place) const {
  return is_a && plan_.manifest.element == plan_.source &&
         place.slot_bytes == place.columns * element_bytes(plan_.source);
}

std::byte* FormSink::place(size_t tensor, uint64_t first, uint64_t* rows) {
  const auto [module, is_a] = roles_[tensor];
  const ModulePlace& own = plan_.placement.modules[module];
  const RowsPlace& place = is_a ? own.a : own.bt;
  if (first == 0) begin(is_a, place);
  if (is_read_in_place(is_a, place)) {
    *rows = std::min(*rows, place.rows_beside(first));
    return plan_.parts.row(place, first);
  }
  const uint64_t bytes = *rows * (is_a ? place.columns : place.rows) * element_bytes(plan_.source);
  if (piece_.size() < bytes) piece_.resize(bytes);
  return piece_.data();
}

void FormSink::begin(bool is_a, const RowsPlace& place) {
  for (uint64_t row = 0, count = 0; row < place.rows; row += count) {
    count = place.rows_beside(row);
    plan_.parts.touch(place, row, count);
  }
  if (is_a) return;
  to_rows_.resize(place.rows);
  const bool is_small = plan_.manifest.element == Element::kInt8;
  const uint64_t row_bytes = (place.columns * element_bytes(plan_.source) + kLineBytes - 1) / kLineBytes * kLineBytes;
  if (is_small && turned_.size() < place.rows * row_bytes) turned_.resize(place.rows * row_bytes);
  for (uint64_t row = 0; row < place.rows; ++row)
    to_rows_[row] = is_small ? turned_.data() + row * row_bytes : plan_.parts.row(place, row);
}

void FormSink::take(size_t tensor, uint64_t first, uint64_t rows) {
  const auto [module, is_a] = roles_[tensor];
  const ModulePlace& own = plan_.placement.modules[module];
  if (!is_a) return take_b(own.bt, first, rows);
  if (is_read_in_place(is_a, own.a)) return;
  const uint64_t row_bytes = own.a.columns * element_bytes(plan_.source);
  for (uint64_t row = 0; row < rows; ++row)
    write_row(plan_, own.a, first + row, piece_.data() + row * row_bytes, scratch_);
}

void FormSink::take_b(const RowsPlace& place, uint64_t first, uint64_t rows) {
  const uint64_t size = element_bytes(plan_.source);
  const bool is_small = plan_.manifest.element == Element::kInt8, is_last = first + rows == place.columns;
  const auto from_row = [&](uint64_t row) { return piece_.data() + row * place.rows * size; };
  const auto to_row = [&](uint64_t row) { return to_rows_[row] + first * size; };
  if (is_small || first * size % kLineBytes != 0)
    transpose(size, from_row, rows, place.rows, to_row);
  else
    transpose<true>(size, from_row, rows, place.rows, to_row);
  if (!is_last) return;
  const uint64_t row_bytes = place.columns * size;
  for (uint64_t row = 0; row < place.rows; ++row)
    if (is_small)
      write_row(plan_, place, row, to_rows_[row], scratch_);
    else if (row_bytes < place.slot_bytes)
      std::memset(to_rows_[row] + row_bytes, 0, place.slot_bytes - row_bytes);
}

void write_form(const FormPlan& plan, const Placement& other, const std::vector<const void*>& other_parts) {
  std::vector<float> scratch;
  const auto write = [&](const RowsPlace& to, const RowsPlace& from) {
    for (uint64_t row = 0; row < to.rows; ++row) {
      const RowsPlace::Spot spot = from.spot(row);
      write_row(plan, to, row, static_cast<const std::byte*>(other_parts[spot.part]) + spot.offset, scratch);
    }
  };
  for (size_t module = 0; module < plan.manifest.modules.size(); ++module) {
    write(plan.placement.modules[module].a, other.modules[module].a);
    write(plan.placement.modules[module].bt, other.modules[module].bt);
  }
}

void write_manifest(const FormPlan& plan) {
  const std::vector<std::byte> encoded = encode_manifest(plan.manifest);
  std::memcpy(plan.parts.first(), encoded.data(), encoded.size());
}

}  // namespace maru::adapters
