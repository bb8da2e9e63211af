#include "daemon/policy/option_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <sstream>

namespace maru::daemon {

namespace {

template <typename T>
std::optional<T> parsed(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <typename T>
std::string range(const char* kind, T min, T max) {
  std::ostringstream text;
  text << kind << " from " << min << " to " << max;
  return text.str();
}

}  // namespace

const std::string* OptionReader::find(std::string_view name) {
  asked_.push_back(name);
  for (const auto& [option, value] : *options_)
    if (option == name) return &value;
  return nullptr;
}

void OptionReader::complain(std::string problem) {
  if (!problem_) problem_ = "policy " + std::string(policy_) + ": " + std::move(problem);
}

void OptionReader::complain_of(std::string_view name, std::string_view value, const std::string& expected) {
  complain("option " + std::string(name) + " is '" + std::string(value) + "', expected " + expected +
           "; correct or remove it in policy_options");
}

double OptionReader::number(std::string_view name, double fallback, double min, double max) {
  const std::string* text = find(name);
  if (text == nullptr) return fallback;
  const std::optional<double> value = parsed<double>(*text);
  if (value && std::isfinite(*value) && *value >= min && *value <= max) return *value;
  complain_of(name, *text, range("a number", min, max));
  return fallback;
}

uint64_t OptionReader::whole_number(std::string_view name, uint64_t fallback, uint64_t min, uint64_t max) {
  const std::string* text = find(name);
  if (text == nullptr) return fallback;
  const std::optional<uint64_t> value = parsed<uint64_t>(*text);
  if (value && *value >= min && *value <= max) return *value;
  complain_of(name, *text, range("a whole number", min, max));
  return fallback;
}

bool OptionReader::flag(std::string_view name, bool fallback) {
  const std::string* text = find(name);
  if (text == nullptr) return fallback;
  if (*text == "true" || *text == "false") return *text == "true";
  complain_of(name, *text, "true or false");
  return fallback;
}

Result<void> OptionReader::finish() {
  for (auto each = options_->begin(); each != options_->end(); ++each) {
    const std::string& name = each->first;
    if (std::find(asked_.begin(), asked_.end(), name) == asked_.end()) {
      std::string known;
      for (const std::string_view one : asked_) known += (known.empty() ? "" : ", ") + std::string(one);
      complain("option '" + name + "' is not known, expected " + (known.empty() ? "none" : "one of: " + known) +
               "; remove it from policy_options");
    }
    if (std::any_of(options_->begin(), each, [&](const auto& before) { return before.first == name; }))
      complain("option '" + name + "' is given twice, expected once; remove one from policy_options");
  }
  if (problem_) return failure(EINVAL, *problem_);
  return {};
}

}  // namespace maru::daemon
