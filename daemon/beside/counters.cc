#include "daemon/beside/counters.h"

#include "libmaru/base/check.h"

#include <charconv>
#include <cmath>

namespace maru::daemon::beside {
namespace {

std::string text_of(const Counters::Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += (text.empty() ? "" : ",") + name + "=\"";
    for (const char c : value) {
      if (c == '\n')
        text += "\\n";
      else if (c == '\\' || c == '"')
        text += std::string("\\") + c;
      else
        text += c;
    }
    text += '"';
  }
  return text;
}

// The shortest text that means this number, in any locale.
std::string text_of(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

std::string in_braces(const std::string& labels) { return labels.empty() ? " " : "{" + labels + "} "; }

void append_durations(std::string& text, const std::string& name, const std::string& labels, const Durations& all) {
  const std::string before = labels.empty() ? "" : labels + ",";
  const auto append_bucket = [&](const std::string& bound, uint64_t count) {
    text += name + "_bucket{" + before + "le=\"" + bound + "\"} " + std::to_string(count) + "\n";
  };
  uint64_t count = 0;
  for (size_t i = 0; i < Durations::kBoundsSeconds.size(); ++i) {
    count += all.count(i);
    append_bucket(text_of(Durations::kBoundsSeconds[i]), count);
  }
  count += all.count(Durations::kBoundsSeconds.size());
  append_bucket("+Inf", count);
  text += name + "_sum" + in_braces(labels) + text_of(all.sum_seconds()) + "\n";
  text += name + "_count" + in_braces(labels) + std::to_string(count) + "\n";
}

}  // namespace

void Durations::add(double seconds) {
  size_t bucket = 0;
  while (bucket < kBoundsSeconds.size() && seconds > kBoundsSeconds[bucket]) ++bucket;
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(seconds > 0 ? uint64_t(seconds * 1e9) : 0, std::memory_order_relaxed);
}

Counters::Member& Counters::member(std::string_view name, const char* type, std::string_view help,
                                   const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Family* family = nullptr;
  for (Family& one : families_)
    if (one.name == name) family = &one;
  if (family == nullptr) {
    family = &families_.emplace_back();
    family->name = name;
    family->help = help;
    family->type = type;
  }
  MARU_CHECK(std::string_view(family->type) == type, "one name would be two kinds of numbers");
  std::string text = text_of(labels);
  for (Member& one : family->members)
    if (one.labels == text) return one;
  Member& made = family->members.emplace_back();
  made.labels = std::move(text);
  return made;
}

Sample& Counters::counter(std::string_view name, std::string_view help, const Labels& labels) {
  return member(name, "counter", help, labels).sample;
}
Sample& Counters::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  return member(name, "gauge", help, labels).sample;
}
Durations& Counters::durations(std::string_view name, std::string_view help, const Labels& labels) {
  return member(name, "histogram", help, labels).durations;
}

std::string Counters::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Family& family : families_) {
    text += "# HELP " + family.name + " " + family.help + "\n# TYPE " + family.name + " " + family.type + "\n";
    for (const Member& one : family.members) {
      if (std::string_view(family.type) == "histogram")
        append_durations(text, family.name, one.labels, one.durations);
      else
        text += family.name + in_braces(one.labels) + std::to_string(one.sample.value()) + "\n";
    }
  }
  return text;
}

}  // namespace maru::daemon::beside
