// Tables for people: a line fits the terminal; everything that a reply says is there with --json.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace maru::marudctl {

// Text of at most so many characters. The ends of long keys tell them apart as often as their beginnings do, so the
// middle goes. `width`: 2 or more.
std::string shortened(const std::string& text, size_t width);

// Text of exactly so many characters: cut at its end, or with spaces behind it.
std::string column(const std::string& text, size_t width);

// Rows are objects. Columns are the fields in `wanted` that at least one row has, in that order. An empty `wanted` means all
// fields, by name. Nested values have no column. Numbers are aligned to the right. The end of a field's name chooses the form:
// _bytes a size, _ms and _us a duration, _percent a sign. Times from the year 2001 on are shown as their age. Text is shortened
// in its middle until a line has `line_width` characters; 0: text keeps its length. An empty array prints `when_empty`.
std::string table_text(const nlohmann::json& rows, std::initializer_list<const char*> wanted, const char* when_empty,
                       size_t line_width = 0);

// Sentences in lines of `width` characters that begin with `indent`, broken where a word ends.
std::string wrapped(const std::string& text, const std::string& indent, size_t width);

// One "name value" line per field, times as they are; nested objects are indented. Fields named in `first` come first.
// Text that is too long for a line of `line_width` characters goes on below itself; 0: it does not.
std::string fields_text(const nlohmann::json& object, std::initializer_list<const char*> first, size_t line_width = 0);

}  // namespace maru::marudctl
