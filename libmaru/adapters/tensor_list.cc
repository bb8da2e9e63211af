#include "libmaru/adapters/tensor_list.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace maru::adapters {
namespace {

using Json = nlohmann::json;

// Takes the header apart while it is read. It builds no tree of values, so a header cannot cost more memory than its tensors
// do. It detects a name that comes twice.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(uint64_t data_bytes, maru_adapters_reason* reason) : data_bytes_(data_bytes), reason_(reason) {}

  int status() const { return status_; }
  std::vector<Tensor> take() { return std::move(tensors_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a number with a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) return unexpected("a number");
    if (numbers_.size() == 4) return refuse(EBADMSG, "more than 4 numbers in \"%s\"", field_.c_str());
    numbers_.push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype") return unexpected("a text");
    dtype_ = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside && !seen_) {
      seen_ = true;
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return unexpected("an object");
    place_ = tensor_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
    return true;
  }
  bool key(string_t& name) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ == Place::kTop) return begin_tensor(name);
    if (name != "dtype" && name != "shape" && name != "data_offsets")
      return refuse(EBADMSG, "an unknown field \"%s\"", shown(name).c_str());
    if (std::ranges::find(fields_, name) != fields_.end())
      return refuse(EBADMSG, "the field \"%s\" twice", name.c_str());
    fields_.push_back(name);
    field_ = name;
    return true;
  }
  bool end_object() override {
    const Place before = place_;
    place_ = before == Place::kTop ? Place::kOutside : Place::kTop;
    return before != Place::kTensor || end_tensor();
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return unexpected("an array");
    place_ = Place::kNumbers;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    place_ = Place::kTensor;
    (field_ == "shape" ? shape_ : offsets_) = numbers_;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    if (status_ == 0)
      status_ = fail(reason_, EBADMSG, "the header of the tensors is no JSON: look at its byte %zu", at);
    return false;
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kNumbers };

  [[gnu::format(printf, 3, 4)]] bool refuse(int code, const char* format, ...) {
    char what[200];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    status_ = fail(reason_, code, "tensor \"%s\" in the header: %s", shown(tensor_.name).c_str(), what);
    return false;
  }
  bool unexpected(const char* what) {
    return refuse(EBADMSG, "%s where the format has none (field \"%s\")", what, field_.c_str());
  }

  bool begin_tensor(const std::string& name) {
    tensor_ = Tensor{name, Element::kFloat32, 0, 0, 0, 0};
    field_.clear(), dtype_.clear();
    fields_.clear(), shape_.clear(), offsets_.clear();
    if (name.empty() || name.size() > kTensorNameBytesMax)
      return refuse(EBADMSG, "a name of %zu bytes; expected 1 to %llu", name.size(), ull{kTensorNameBytesMax});
    if (!names_.insert(name).second) return refuse(EBADMSG, "the name comes twice");
    if (names_.size() > kTensorsMax) return refuse(EBADMSG, "more than %llu tensors", ull{kTensorsMax});
    return true;
  }

  bool end_tensor() {
    if (fields_.size() != 3) return refuse(EBADMSG, "a field is missing; expected dtype, shape and data_offsets");
    if (dtype_ == "F32")
      tensor_.element = Element::kFloat32;
    else if (dtype_ == "F16")
      tensor_.element = Element::kFloat16;
    else if (dtype_ == "BF16")
      tensor_.element = Element::kBfloat16;
    else
      return refuse(EOPNOTSUPP, "dtype \"%s\"; expected F16, BF16 or F32", shown(dtype_).c_str());
    if (shape_.size() != 2)
      return refuse(EOPNOTSUPP, "%zu dimensions; the matrices of an adapter have 2", shape_.size());
    if (offsets_.size() != 2) return refuse(EBADMSG, "%zu data_offsets; expected 2", offsets_.size());
    tensor_.rows = shape_[0], tensor_.columns = shape_[1];
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(tensor_.rows, tensor_.columns, &bytes) ||
        __builtin_mul_overflow(bytes, element_bytes(tensor_.element), &bytes) || bytes == 0)
      return refuse(EBADMSG, "shape [%llu, %llu] has no elements, or too many", ull{tensor_.rows},
                    ull{tensor_.columns});
    if (offsets_[0] > offsets_[1] || offsets_[1] > data_bytes_)
      return refuse(EBADMSG, "data_offsets [%llu, %llu] lie outside of the %llu bytes of data", ull{offsets_[0]},
                    ull{offsets_[1]}, ull{data_bytes_});
    if (offsets_[1] - offsets_[0] != bytes)
      return refuse(EBADMSG, "%llu bytes between its data_offsets; shape and dtype need %llu",
                    ull{offsets_[1] - offsets_[0]}, ull{bytes});
    tensor_.offset = offsets_[0], tensor_.bytes = bytes;
    tensors_.push_back(tensor_);
    return true;
  }

  const uint64_t data_bytes_;
  maru_adapters_reason* const reason_;
  int status_ = 0;
  Place place_ = Place::kOutside;
  bool seen_ = false;
  Tensor tensor_ = {};
  std::string field_, dtype_;
  std::vector<std::string> fields_;
  std::vector<uint64_t> numbers_, shape_, offsets_;
  std::unordered_set<std::string> names_;
  std::vector<Tensor> tensors_;
};

}  // namespace

const char* element_name(Element element) {
  switch (element) {
    case Element::kFloat32: return "F32";
    case Element::kFloat16: return "F16";
    case Element::kBfloat16: return "BF16";
    case Element::kInt8: return "I8";
  }
  return "?";
}

int parse_tensor_list(std::span<const std::byte> json, uint64_t data_bytes, std::vector<Tensor>* ret_tensors,
                      maru_adapters_reason* reason) {
  const auto* text = reinterpret_cast<const char*>(json.data());
  if (json.empty() || text[0] != '{')
    return fail(reason, EBADMSG, "the header of the tensors does not begin with \"{\": this is no safetensors file");
  HeaderReader reader(data_bytes, reason);
  if (!Json::sax_parse(text, text + json.size(), &reader))
    return reader.status() != 0 ? reader.status() : fail(reason, EBADMSG, "the header of the tensors is no JSON");
  std::vector<Tensor> tensors = reader.take();
  std::ranges::sort(tensors, {}, &Tensor::offset);
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.offset != end)
      return fail(reason, EBADMSG, "tensor \"%s\" begins at byte %llu of the data; the one before ends at byte %llu",
                  shown(tensor.name).c_str(), ull{tensor.offset}, ull{end});
    end += tensor.bytes;
  }
  if (end != data_bytes)
    return fail(reason, EBADMSG, "the file has %llu bytes of data; its tensors have %llu", ull{data_bytes}, ull{end});
  *ret_tensors = std::move(tensors);
  return 0;
}

}  // namespace maru::adapters
