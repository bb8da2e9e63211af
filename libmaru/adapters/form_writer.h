// Fills the pages of a form: from the tensors of the file, or from the HOT form. The 8-bit form is always made from weights
// as the file has them, never from 8 bits; so no number of moves between the forms adds an error.
#pragma once

#include "libmaru/adapters/adapter_file.h"
#include "libmaru/adapters/pool_form.h"

namespace maru::adapters {

// The input that all writers of a form share.
struct FormPlan {
  const Manifest& manifest;  // manifest.element is the form's
  const Placement& placement;
  Element source;  // the type of the weights that will come
  const NewParts& parts;
};

// Writes rows from the file into a form. A of HOT is read right into its place. B comes as out_features rows of rank weights,
// and is turned over.
class FormSink : public TensorSink {
 public:
  // roles[tensor]: its module, and whether it is A.
  FormSink(const FormPlan& plan, const std::vector<std::pair<size_t, bool>>& roles) : plan_(plan), roles_(roles) {}

  std::byte* place(size_t tensor, uint64_t first, uint64_t* rows) override;
  void take(size_t tensor, uint64_t first, uint64_t rows) override;

 private:
  bool is_read_in_place(bool is_a, const RowsPlace& place) const;
  void begin(bool is_a, const RowsPlace& place);
  void take_b(const RowsPlace& place, uint64_t first, uint64_t rows);

  const FormPlan plan_;
  const std::vector<std::pair<size_t, bool>>& roles_;
  std::vector<std::byte> piece_;
  std::vector<std::byte*> to_rows_;  // of the B under way: in the form, or in turned_
  std::vector<std::byte> turned_;    // of an 8-bit form: its B whole, since a row's scale needs all of the row
  std::vector<float> scratch_;
};

// All rows from the parts of another form, whose weights have the source's type.
void write_form(const FormPlan& plan, const Placement& other, const std::vector<const void*>& other_parts);

// Writes the manifest, last, when the checksum is known.
void write_manifest(const FormPlan& plan);

}  // namespace maru::adapters
