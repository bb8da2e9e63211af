// The options of a plug-in, read one by one: each is known, used once, and of the right kind.
#pragma once

#include "maru/tier.h"

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace maru::tierd {

class OptionReader {
 public:
  OptionReader(const maru_tier_option* options, size_t n) {
    for (size_t i = 0; i < n; ++i) given_[options[i].name] = options[i].value;
  }

  bool has(const char* name) const { return given_.contains(name); }

  std::string text(const char* name, std::string otherwise) {
    const auto found = given_.find(name);
    if (found == given_.end()) return otherwise;
    std::string value = found->second;
    given_.erase(found);
    return value;
  }

  // Digits, with KiB, MiB, GiB or TiB behind them or not.
  uint64_t number(const char* name, uint64_t otherwise, uint64_t least, uint64_t most) {
    const std::string value = text(name, {});
    if (value.empty()) return otherwise;
    char* end = nullptr;
    uint64_t result = std::strtoull(value.c_str(), &end, 10);
    unsigned shift = 0;
    if (const std::string_view unit(end); !unit.empty()) {
      shift = unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : unit == "TiB" ? 40 : 64;
    }
    if (shift == 64 || value[0] < '0' || value[0] > '9' || result > (UINT64_MAX >> shift) ||
        (result << shift) < least || (result << shift) > most) {
      complain(std::string(name) + ": found \"" + value + "\", expected a number from " + std::to_string(least) +
               " to " + std::to_string(most) + ", such as \"" + std::to_string(otherwise) + "\"");
      return otherwise;
    }
    return result << shift;
  }

  bool flag(const char* name, bool otherwise) {
    const std::string value = text(name, otherwise ? "true" : "false");
    if (value != "true" && value != "false")
      complain(std::string(name) + ": found \"" + value + "\", expected true or false");
    return value == "true";
  }

  // The first mistake; empty: there is none. Options that are left over are mistakes. `known`: for people.
  std::string mistake(const char* known) {
    if (!given_.empty()) complain("option \"" + given_.begin()->first + "\" is unknown, expected " + known);
    return mistake_;
  }

 private:
  void complain(std::string text) {
    if (mistake_.empty()) mistake_ = std::move(text);
  }

  std::map<std::string, std::string> given_;
  std::string mistake_;
};

}  // namespace maru::tierd
