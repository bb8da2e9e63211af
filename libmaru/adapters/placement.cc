#include "libmaru/adapters/placement.h"

#include <algorithm>

namespace maru::adapters {
namespace {

class Cursor {
 public:
  Cursor(uint64_t offset, uint64_t part_bytes_max) : offset_(offset), max_(part_bytes_max) {}

  RowsPlace take(Element element, uint64_t rows, uint64_t columns) {
    RowsPlace place;
    place.slot_bytes = slot_bytes_of(element, columns);
    place.rows = rows, place.columns = columns;
    place.rows_per_part = max_ / place.slot_bytes;
    if (max_ - offset_ < place.slot_bytes) end_part();
    place.first_part = parts_.size();
    place.first_offset = offset_;
    place.first_rows = std::min(rows, (max_ - offset_) / place.slot_bytes);
    offset_ += place.first_rows * place.slot_bytes;
    for (uint64_t left = rows - place.first_rows; left > 0;) {
      end_part();
      const uint64_t here = std::min(left, place.rows_per_part);
      offset_ = here * place.slot_bytes;
      left -= here;
    }
    return place;
  }
  std::vector<uint64_t> finish() {
    end_part();
    return std::move(parts_);
  }

 private:
  void end_part() {
    parts_.push_back(offset_);
    offset_ = 0;
  }

  std::vector<uint64_t> parts_;
  uint64_t offset_;
  const uint64_t max_;
};

}  // namespace

std::optional<Placement> place(const Manifest& manifest, Element element, uint64_t manifest_bytes,
                               uint64_t part_bytes_max) {
  if (manifest_bytes > part_bytes_max) return {};
  for (const Module& module : manifest.modules)
    if (slot_bytes_of(element, std::max(module.in_features, module.out_features)) > part_bytes_max) return {};
  Placement placement;
  Cursor cursor(manifest_bytes, part_bytes_max);
  for (const Module& module : manifest.modules) {
    ModulePlace own;
    own.a = cursor.take(element, module.rank, module.in_features);
    own.bt = cursor.take(element, module.rank, module.out_features);
    placement.modules.push_back(own);
  }
  placement.part_bytes = cursor.finish();
  return placement;
}

}  // namespace maru::adapters
