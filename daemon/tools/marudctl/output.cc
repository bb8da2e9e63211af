#include "daemon/tools/marudctl/output.h"

#include "daemon/base/json_text.h"
#include "daemon/base/plain_text.h"
#include "daemon/base/size_text.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

namespace maru::marudctl {
namespace {

using daemon::plain_text;  // replies hold texts of clients, keys above all
using nlohmann::json;

bool ends_with(std::string_view name, std::string_view end) {
  return name.size() > end.size() && name.substr(name.size() - end.size()) == end;
}

std::string duration_text(uint64_t milliseconds) {
  char text[64];
  const uint64_t seconds = milliseconds / 1000;
  if (milliseconds < 10'000)
    std::snprintf(text, sizeof(text), "%.1f s", double(milliseconds) / 1000);
  else if (seconds < 120)
    std::snprintf(text, sizeof(text), "%llu s", static_cast<unsigned long long>(seconds));
  else if (seconds < 7200)
    std::snprintf(text, sizeof(text), "%llu min", static_cast<unsigned long long>(seconds / 60));
  else
    std::snprintf(text, sizeof(text), "%llu h", static_cast<unsigned long long>(seconds / 3600));
  return text;
}

std::string short_duration_text(uint64_t microseconds) {
  if (microseconds >= 10'000'000) return duration_text(microseconds / 1000);
  char text[32];
  if (microseconds < 1000)
    std::snprintf(text, sizeof(text), "%u us", unsigned(microseconds));
  else
    std::snprintf(text, sizeof(text), "%.1f ms", double(microseconds) / 1000);
  return text;
}

std::string time_text(uint64_t unix_ms) {
  const time_t seconds = time_t(unix_ms / 1000);
  tm parts = {};
  char text[64] = "";
  if (::localtime_r(&seconds, &parts)) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

constexpr uint64_t kFirstTimeMs = 1'000'000'000'000;  // 2001

std::string value_text(const std::string& name, const json& value) {
  if (value.is_string()) return plain_text(value.get<std::string>());
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0)) {
    const uint64_t number = value.get<uint64_t>();
    if (ends_with(name, "_bytes") || name == "bytes") return daemon::size_text(number);
    if (ends_with(name, "_ms")) return number >= kFirstTimeMs ? time_text(number) : duration_text(number);
    if (ends_with(name, "_us")) return short_duration_text(number);
    if (ends_with(name, "_percent")) return std::to_string(number) + " %";
    return std::to_string(number);
  }
  return plain_text(daemon::json_text(value));
}

// "attached_ms" gets the heading "attached": the value shows its unit. "rents_us" becomes "rents time": "rents" is a count.
std::string heading(std::string name) {
  if (ends_with(name, "_us")) name.replace(name.size() - 3, 3, "_time");
  for (const char* unit : {"_bytes", "_ms", "_percent"})
    if (ends_with(name, unit)) name.resize(name.size() - std::string_view(unit).size());
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// The fields in `first` that at least one row has, then, if `with_others`, the other fields.
std::vector<std::string> columns_of(const json& rows, std::initializer_list<const char*> first, bool with_nested,
                                    bool with_others) {
  std::set<std::string> names;
  for (const json& row : rows)
    if (row.is_object())
      for (const auto& [name, value] : row.items())
        if (with_nested || !value.is_structured()) names.insert(name);
  std::vector<std::string> columns;
  for (const char* name : first)
    if (names.erase(name) > 0) columns.emplace_back(name);
  if (with_others) columns.insert(columns.end(), names.begin(), names.end());
  return columns;
}

// Width on the screen: bytes that continue a UTF-8 character have none.
bool begins_character(char c) { return (c & 0xC0) != 0x80; }
size_t width_of(const std::string& text) { return size_t(std::count_if(text.begin(), text.end(), begins_character)); }

// Where the character with this number begins.
size_t offset_of(const std::string& text, size_t character) {
  size_t at = 0;
  for (; at < text.size(); ++at)
    if (begins_character(text[at]) && character-- == 0) break;
  return at;
}

// Takes from the widest columns of text until the line fits.
void fit(std::vector<size_t>& widths, const std::vector<bool>& is_number, size_t line_width) {
  constexpr size_t kTextWidthMin = 8;
  size_t total = widths.empty() ? 0 : 2 * (widths.size() - 1);
  for (size_t width : widths) total += width;
  while (total > line_width) {
    size_t widest = widths.size();
    for (size_t i = 0; i < widths.size(); ++i)
      if (!is_number[i] && widths[i] > kTextWidthMin && (widest == widths.size() || widths[i] > widths[widest]))
        widest = i;
    if (widest == widths.size()) return;
    --widths[widest];
    --total;
  }
}

// In a table a time is read faster as how long ago it was.
std::string cell_text(const std::string& name, const json& value) {
  if (ends_with(name, "_ms") && value.is_number_unsigned() && value.get<uint64_t>() >= kFirstTimeMs) {
    const uint64_t now_ms = uint64_t(std::time(nullptr)) * 1000, then_ms = value.get<uint64_t>();
    return duration_text(now_ms > then_ms ? now_ms - then_ms : 0);
  }
  return value_text(name, value);
}

}  // namespace

std::string shortened(const std::string& text, size_t width) {
  const size_t has = width_of(text);
  if (has <= width) return text;
  const size_t tail = (width - 2) / 2, head = width - 2 - tail;
  return text.substr(0, offset_of(text, head)) + ".." + text.substr(offset_of(text, has - tail));
}

std::string column(const std::string& text, size_t width) {
  const size_t has = width_of(text);
  return has < width ? text + std::string(width - has, ' ') : text.substr(0, offset_of(text, width));
}

std::string table_text(const json& rows, std::initializer_list<const char*> wanted, const char* when_empty,
                       size_t line_width) {
  if (!rows.is_array() || rows.empty()) return std::string(when_empty) + "\n";
  const std::vector<std::string> columns = columns_of(rows, wanted, false, wanted.size() == 0);
  std::vector<std::vector<std::string>> cells(1);
  std::vector<bool> is_number(columns.size(), true);
  for (const std::string& column : columns) {
    std::string head = heading(column);
    std::transform(head.begin(), head.end(), head.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? char(c - 32) : c; });
    cells.front().push_back(head);
  }
  for (const json& row : rows) {
    auto& line = cells.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto found = row.find(columns[i]);
      line.push_back(found == row.end() ? "-" : cell_text(columns[i], *found));
      if (found != row.end() && !found->is_number() && !found->is_null()) is_number[i] = false;
    }
  }
  std::vector<size_t> widths(columns.size(), 0);
  for (const auto& line : cells)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width_of(line[i]));
  if (line_width != 0) fit(widths, is_number, line_width);
  std::string out;
  for (auto& line : cells) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      line[i] = shortened(line[i], widths[i]);
      const std::string padding(widths[i] - width_of(line[i]), ' ');
      text += (i == 0 ? "" : "  ") + (is_number[i] ? padding + line[i] : line[i] + padding);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

std::string wrapped(const std::string& text, const std::string& indent, size_t width) {
  std::string out, line = indent;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (line.size() > indent.size() && width_of(line) + 1 + width_of(text.substr(at, end - at)) > width) {
      out += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + text.substr(at, end - at);
    at = end + 1;
  }
  return out + line + "\n";
}

std::string fields_text(const json& object, std::initializer_list<const char*> first, size_t line_width) {
  const std::vector<std::string> names = columns_of(json::array({object}), first, true, true);
  size_t width = 0;
  for (const std::string& name : names)
    if (!object[name].is_structured()) width = std::max(width, heading(name).size());
  std::string out;
  for (const std::string& name : names) {
    const json& value = object[name];
    const std::string head = heading(name);
    if (value.is_structured() && value.empty()) {
      out += head + std::string(width > head.size() ? width - head.size() : 0, ' ') + "  none\n";
    } else if (value.is_object() || (value.is_array() && value.front().is_object())) {
      std::string inner = value.is_object() ? fields_text(value, {}, line_width > 2 ? line_width - 2 : line_width)
                                            : table_text(value, {}, "none");
      out += head + "\n";
      size_t at = 0;
      while (at < inner.size()) {
        const size_t end = inner.find('\n', at);
        out += "  " + inner.substr(at, end - at) + "\n";
        at = end + 1;
      }
    } else if (value.is_array()) {
      for (const json& element : value) out += head + "  " + value_text(name, element) + "\n";
    } else {
      const std::string start = head + std::string(width - head.size(), ' ') + "  ", shown = value_text(name, value);
      const bool fits = line_width == 0 || start.size() + width_of(shown) <= line_width;
      out += start +
             (fits ? shown + "\n" : wrapped(shown, std::string(start.size(), ' '), line_width).substr(start.size()));
    }
  }
  return out;
}

}  // namespace maru::marudctl
