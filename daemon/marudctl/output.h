// Tables for people. What is shown depends on the reply: a column for every field that some row has, the known ones first.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace maru::marudctl {

// Rows are objects. Columns named in `first` come first and in that order, others after them by name; nested values have no column. Numbers are aligned
// to the right; fields ending in _bytes are shown as sizes, those ending in _ms as durations or, from the year 2001 on, as
// times. An empty array prints `when_empty`.
std::string table_text(const nlohmann::json& rows, std::initializer_list<const char*> first, const char* when_empty);

// One "name  value" line per field; nested objects are indented.
std::string fields_text(const nlohmann::json& object, std::initializer_list<const char*> first);

}  // namespace maru::marudctl
