// A snapshot as text in the format that Prometheus reads. docs/metrics.md lists every family; a test compares.
#pragma once

#include "daemon/metrics/snapshot.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace maru::daemon::metrics {

inline constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

std::string text_of(const Snapshot& snapshot);

// One family after the other. The values of a label may be any bytes.
class TextWriter {
 public:
  using Labels = std::initializer_list<std::pair<const char*, std::string_view>>;

  void family(std::string_view name, const char* type, const char* help);
  void sample(Labels labels, double value) { sample("", labels, "", value); }
  void sample(Labels labels, uint64_t value) { sample_whole("", labels, "", value); }
  void histogram(Labels labels, const Histogram& histogram);
  std::string take() { return std::move(text_); }

 private:
  void begin(const char* suffix, Labels labels, std::string_view bound);
  void sample(const char* suffix, Labels labels, std::string_view bound, double value);
  void sample_whole(const char* suffix, Labels labels, std::string_view bound, uint64_t value);

  std::string text_;
  std::string name_;
};

}  // namespace maru::daemon::metrics
