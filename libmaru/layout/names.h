// The names of the numbers in a layout, as its JSON and Python have them.
#pragma once

#include "maru/layout.h"

#include <optional>
#include <span>
#include <string_view>

namespace maru::layout {

struct Name {
  const char* text;
  uint32_t number;
};

inline constexpr Name kKinds[] = {{"contiguous", MARU_LAYOUT_CONTIGUOUS},
                                  {"separate_outer", MARU_LAYOUT_SEPARATE_OUTER},
                                  {"separate_block", MARU_LAYOUT_SEPARATE_BLOCK}};
inline constexpr Name kOrders[] = {{"nhd", MARU_LAYOUT_NHD}, {"hnd", MARU_LAYOUT_HND}};
inline constexpr Name kDtypes[] = {
    {"uint8", MARU_LAYOUT_UINT8},
    {"int8", MARU_LAYOUT_INT8},
    {"float8_e4m3fn", MARU_LAYOUT_FLOAT8_E4M3FN},
    {"float8_e5m2", MARU_LAYOUT_FLOAT8_E5M2},
    {"float16", MARU_LAYOUT_FLOAT16},
    {"bfloat16", MARU_LAYOUT_BFLOAT16},
    {"float32", MARU_LAYOUT_FLOAT32},
    {"float64", MARU_LAYOUT_FLOAT64},
};

// A number that a checked layout has.
inline const char* text_of(std::span<const Name> names, uint32_t number) {
  for (const Name& name : names)
    if (name.number == number) return name.text;
  return "";
}

inline std::optional<uint32_t> number_of(std::span<const Name> names, std::string_view text) {
  for (const Name& name : names)
    if (text == name.text) return name.number;
  return std::nullopt;
}

}  // namespace maru::layout
