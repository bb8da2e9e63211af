// Fills the pages of a form: from the tensors of the file, or from the HOT form. The 8-bit form is always made from weights
// as the file has them, never from 8 bits; so no number of moves between the forms adds an error.
#pragma once

#include "libmaru/adapters/pool_form.h"

namespace maru::adapters {

class FormWriter {
 public:
  // `source`: the type of the weights that will come. All must outlive this.
  FormWriter(const Manifest& manifest, const Placement& placement, Element source, const NewParts& parts)
      : manifest_(manifest), placement_(placement), source_(source), parts_(parts) {}

  // A, as the file has it: rank rows.
  void write_a(size_t module, std::span<const std::byte> bytes);
  // B, as the file has it: out_features rows of rank weights.
  void write_b(size_t module, std::span<const std::byte> bytes);
  // Both, from the parts of another form whose weights have the source's type.
  void write_from(size_t module, const Placement& other, const std::vector<const void*>& other_parts);
  // Last, when the checksum is known.
  void write_manifest();

 private:
  void write_row(const RowsPlace& place, uint64_t row, const std::byte* weights);

  const Manifest& manifest_;  // manifest_.element is the form's
  const Placement& placement_;
  const Element source_;
  const NewParts& parts_;
  std::vector<std::byte> transposed_;
  std::vector<std::byte*> to_rows_;
  std::vector<float> scratch_;
};

}  // namespace maru::adapters
