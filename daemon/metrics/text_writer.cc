#include "daemon/metrics/text.h"

#include <charconv>
#include <cmath>

namespace maru::daemon::metrics {
namespace {

// The shortest text that means this number, in any locale.
std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

void append_label(std::string& text, std::string_view name, std::string_view value, bool& is_first) {
  text += is_first ? '{' : ',';
  is_first = false;
  text += name;
  text += "=\"";
  for (const char c : value) {
    if (c == '\\')
      text += "\\\\";
    else if (c == '"')
      text += "\\\"";
    else if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  text += '"';
}

}  // namespace

void TextWriter::family(std::string_view name, const char* type, const char* help) {
  name_ = name;
  text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
}

void TextWriter::begin(const char* suffix, Labels labels, std::string_view bound) {
  text_ += name_;
  text_ += suffix;
  bool is_first = true;
  for (const auto& [label, value] : labels) append_label(text_, label, value, is_first);
  if (!bound.empty()) append_label(text_, "le", bound, is_first);
  text_ += is_first ? " " : "} ";
}

void TextWriter::sample(const char* suffix, Labels labels, std::string_view bound, double value) {
  begin(suffix, labels, bound);
  text_ += number_text(value) + "\n";
}

void TextWriter::sample_whole(const char* suffix, Labels labels, std::string_view bound, uint64_t value) {
  begin(suffix, labels, bound);
  text_ += std::to_string(value) + "\n";
}

void TextWriter::histogram(Labels labels, const Histogram& histogram) {
  uint64_t sum = 0;
  for (size_t i = 0; i < Histogram::kBoundsNs.size(); ++i) {
    sum += histogram.count(i);
    sample_whole("_bucket", labels, number_text(double(Histogram::kBoundsNs[i]) / 1e9), sum);
  }
  sum += histogram.count(Histogram::kBoundsNs.size());
  sample_whole("_bucket", labels, "+Inf", sum);
  sample("_sum", labels, "", double(histogram.sum_ns()) / 1e9);
  sample_whole("_count", labels, "", sum);
}

}  // namespace maru::daemon::metrics
