// The header of a safetensors file: the names, types, shapes and places of its tensors.
//
//   8 bytes   how many bytes of JSON follow, little endian
//   JSON      {"NAME": {"dtype": "F16", "shape": [8, 4096], "data_offsets": [0, 65536]}, ..., "__metadata__": {...}}
//   data      all tensors, one behind the other; the offsets count from here
//
// The file comes from a stranger. The parser has a bound for everything, and accepts only what the format's own reader
// accepts: the tensors cover the data without gap, overlap or rest.
#pragma once

#include "libmaru/adapters/reason.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace maru::adapters {

inline constexpr uint64_t kTensorHeaderBytesMax = 16u << 20;  // a model with 10^5 tensors has about 10 MB
inline constexpr uint64_t kTensorsMax = 1u << 17;
inline constexpr uint64_t kTensorNameBytesMax = 512;

// The type of an element, among the types that adapters have.
enum class Element : uint8_t { kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3, kInt8 = 4 };

constexpr uint64_t element_bytes(Element element) {
  return element == Element::kFloat32 ? 4 : element == Element::kInt8 ? 1 : 2;
}
const char* element_name(Element element);

struct Tensor {
  std::string name;
  Element element;
  uint64_t rows, columns;  // adapters have matrices alone
  uint64_t offset, bytes;  // in the data
};

// `json`: the header's bytes; `data_bytes`: the bytes behind it in the file. The tensors come in the order of their data.
// Errors: -EBADMSG the header is wrong, and the reason says where; -EOPNOTSUPP a tensor does not belong to an adapter.
int parse_tensor_list(std::span<const std::byte> json, uint64_t data_bytes, std::vector<Tensor>* ret_tensors,
                      maru_adapters_reason* reason);

}  // namespace maru::adapters
