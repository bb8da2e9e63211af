#include "daemon/config/table.h"

#include "daemon/base/size_text.h"
#include "daemon/config/toml.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

namespace maru::daemon {

// Never made: a toml::table behind another name.
struct ConfigTable::Node {};

namespace {

const toml::table& toml_of(const ConfigTable::Node* node) { return *reinterpret_cast<const toml::table*>(node); }
const toml::node* value_of(const ConfigTable::Value* value) { return reinterpret_cast<const toml::node*>(value); }
const ConfigTable::Node* node_of(const toml::table& table) {
  return reinterpret_cast<const ConfigTable::Node*>(&table);
}

int line_of(const toml::node& node) { return int(node.source().begin.line); }

// A number in the shortest form that means the same, in any locale; nothing for a node that is no scalar, or not finite.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (node.is_string()) return *node.value<std::string>();
  if (node.is_boolean()) return *node.value<bool>() ? "true" : "false";
  if (node.is_integer()) return std::to_string(*node.value<int64_t>());
  if (!node.is_floating_point() || !std::isfinite(*node.value<double>())) return std::nullopt;
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), *node.value<double>());
  return std::string(text, end.ptr);
}

// The value as TOML has it. A number that is no integer is in the shortest form that reads back the same, with a point.
std::string value_text(const toml::node& node) {
  if (node.is_floating_point())
    if (const auto text = scalar_text(node))
      return text->find_first_of(".e") == std::string::npos ? *text + ".0" : *text;
  std::ostringstream out;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_value<decltype(value)>) out << value;
  });
  return out.str();
}

// The value as the file has it, short.
std::string found(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "an array";
  std::string text = node.is_string() ? "\"" + *node.value<std::string>() + "\"" : value_text(node);
  constexpr size_t kBytesMax = 80;
  if (text.size() > kBytesMax) text = text.substr(0, kBytesMax) + "...";
  return printable(text);
}

// A value on one line.
std::string written_value(const toml::node& node) {
  if (node.is_string()) return "\"" + *node.value<std::string>() + "\"";
  std::ostringstream out;
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& element : *array) out << (out.tellp() == 0 ? "[" : ", ") << written_value(element);
    return array->empty() ? "[]" : out.str() + "]";
  }
  if (const toml::table* table = node.as_table()) {
    out << "{";
    for (const auto& [key, value] : *table) out << " " << key.str() << " = " << written_value(value);
    return out.str() + " }";
  }
  return value_text(node);
}

// How an element of an array of tables is called: by its name, or else by its place.
std::string element_name(const toml::table& element, size_t place) {
  const auto name = element["name"].value<std::string>();
  return name ? *name : std::to_string(place + 1);
}

void write_keys(const toml::table& table, const std::string& prefix, std::map<std::string, std::string>& keys) {
  for (const auto& [key, value] : table) {
    const std::string path = prefix + std::string(key.str());
    const toml::array* elements = value.as_array();
    if (const toml::table* inner = value.as_table()) {
      write_keys(*inner, path + ".", keys);
    } else if (elements != nullptr && elements->is_array_of_tables()) {
      for (size_t i = 0; i < elements->size(); ++i) {
        const toml::table& element = *elements->get(i)->as_table();
        write_keys(element, path + "." + element_name(element, i) + ".", keys);
      }
    } else {
      keys.emplace(path, written_value(value));
    }
  }
}

}  // namespace

WrittenTable ConfigTable::written() const {
  WrittenTable keys;
  write_keys(toml_of(node_), "", keys);
  return keys;
}

int ConfigTable::line() const { return line_of(toml_of(node_)); }
std::map<std::string, int, std::less<>> ConfigTable::lines() const {
  std::map<std::string, int, std::less<>> out;
  for (const auto& [key, node] : toml_of(node_)) out.emplace(key.str(), int(key.source().begin.line));
  return out;
}
bool ConfigTable::has(const char* key) const { return toml_of(node_).contains(key); }

const ConfigTable::Value* ConfigTable::ask(const char* key) {
  asked_.insert(key);
  return reinterpret_cast<const Value*>(toml_of(node_).get(key));
}

void ConfigTable::wrong(const char* key, const std::string& expected) {
  const toml::node* node = value_of(ask(key));
  problems_->push_back({node ? line_of(*node) : line(),
                        name_of(key) + ": found " + (node ? found(*node) : "nothing") + ", expected " + expected});
}

void ConfigTable::missing(const char* key, const std::string& expected) {
  problems_->push_back({line(), name_of(key) + ": found nothing, expected " + expected});
}

std::optional<std::string> ConfigTable::text(const char* key) {
  const toml::node* node = value_of(ask(key));
  if (!node) return std::nullopt;
  if (node->is_string() && !node->value<std::string>()->empty()) return node->value<std::string>();
  wrong(key, "a text that is not empty");
  return std::nullopt;
}

bool ConfigTable::is_text(const char* key, std::string_view value) const {
  const toml::node* node = toml_of(node_).get(key);
  return node && node->is_string() && *node->value<std::string>() == value;
}

std::vector<std::string> ConfigTable::texts(const char* key, const char* expected) {
  std::vector<std::string> out;
  const toml::node* node = value_of(ask(key));
  if (!node) return out;
  const toml::array* array = node->as_array();
  if (!array) {
    wrong(key, std::string("an array of ") + expected);
    return out;
  }
  for (const toml::node& element : *array) {
    if (element.is_string() && !element.value<std::string>()->empty()) {
      out.push_back(*element.value<std::string>());
      continue;
    }
    problems_->push_back({line_of(element), name_of(key) + ": found " + found(element) + ", expected " + expected});
  }
  return out;
}

std::optional<std::string> ConfigTable::one_of(const char* key, std::initializer_list<const char*> choices) {
  const toml::node* node = value_of(ask(key));
  if (!node) return std::nullopt;
  std::string expected;
  for (const char* choice : choices) {
    if (node->is_string() && *node->value<std::string>() == choice) return choice;
    expected += std::string(expected.empty() ? "" : ", ") + "\"" + choice + "\"";
  }
  wrong(key, "one of " + expected);
  return std::nullopt;
}

std::optional<int64_t> ConfigTable::integer(const char* key, int64_t least, int64_t most) {
  const toml::node* node = value_of(ask(key));
  if (!node) return std::nullopt;
  if (node->is_integer()) {
    const int64_t value = *node->value<int64_t>();
    if (value >= least && value <= most) return value;
  }
  wrong(key, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  return std::nullopt;
}

std::vector<int64_t> ConfigTable::integers(const char* key, int64_t least, int64_t most) {
  std::vector<int64_t> out;
  const toml::node* node = value_of(ask(key));
  if (!node) return out;
  if (const toml::array* array = node->as_array())
    for (const toml::node& element : *array)
      if (const auto value = element.value_exact<int64_t>(); value && *value >= least && *value <= most)
        out.push_back(*value);
  if (!node->is_array() || out.size() != node->as_array()->size() || out.empty())
    wrong(key, "an array of whole numbers from " + std::to_string(least) + " to " + std::to_string(most));
  return out;
}

std::optional<uint64_t> ConfigTable::size(const char* key) {
  return size_from(key, 1, "a size above zero, such as \"64KiB\", \"1GiB\" or a number of bytes");
}

std::optional<uint64_t> ConfigTable::size_or_zero(const char* key) {
  return size_from(key, 0, "a size such as \"64KiB\", \"1GiB\" or a number of bytes, or 0");
}

std::optional<uint64_t> ConfigTable::size_from(const char* key, uint64_t least, const char* expected) {
  const toml::node* node = value_of(ask(key));
  if (!node) return std::nullopt;
  if (node->is_integer() && *node->value<int64_t>() >= int64_t(least)) return uint64_t(*node->value<int64_t>());
  if (node->is_string())
    if (auto bytes = parse_size(*node->value<std::string>()); bytes && *bytes >= least) return bytes;
  wrong(key, expected);
  return std::nullopt;
}

std::optional<bool> ConfigTable::boolean(const char* key) {
  const toml::node* node = value_of(ask(key));
  if (!node) return std::nullopt;
  if (node->is_boolean()) return node->value<bool>();
  wrong(key, "true or false");
  return std::nullopt;
}

std::optional<double> ConfigTable::fraction(const char* key) {
  const toml::node* node = value_of(ask(key));
  if (!node) return std::nullopt;
  if (node->is_number())
    if (const double value = *node->value<double>(); value > 0 && value <= 1) return value;
  wrong(key, "a number above 0 and up to 1, such as 0.8");
  return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> ConfigTable::scalars(const char* key, size_t most) {
  std::vector<std::pair<std::string, std::string>> out;
  const toml::node* node = value_of(ask(key));
  if (!node) return out;
  const toml::table* inner = node->as_table();
  if (!inner || inner->size() > most) {
    wrong(key, "a table of at most " + std::to_string(most) + " options, such as { name = 0.5 }");
    return out;
  }
  for (const auto& [name, value] : *inner) {
    if (auto text = scalar_text(value)) {
      out.emplace_back(std::string(name.str()), *text);
      continue;
    }
    problems_->push_back({line_of(value), name_of(key) + "." + printable(name.str()) + ": found " + found(value) +
                                              ", expected a number, true or false, or a text"});
  }
  return out;
}

std::optional<uint32_t> ConfigTable::resolve_one(const void* value, const char* key, const char* expected,
                                                 Resolve resolve) {
  const toml::node& node = *static_cast<const toml::node*>(value);
  if (node.is_integer()) {
    const int64_t number = *node.value<int64_t>();
    if (number >= 0 && number < int64_t(UINT32_MAX)) return uint32_t(number);
  } else if (node.is_string()) {
    if (auto number = resolve(*node.value<std::string>())) return number;
  }
  problems_->push_back({line_of(node), name_of(key) + ": found " + found(node) + ", expected " + expected});
  return std::nullopt;
}

std::optional<uint32_t> ConfigTable::name_or_number(const char* key, const char* expected, Resolve resolve) {
  const toml::node* node = value_of(ask(key));
  return node ? resolve_one(node, key, expected, resolve) : std::nullopt;
}

std::vector<uint32_t> ConfigTable::names_or_numbers(const char* key, const char* expected, Resolve resolve) {
  std::vector<uint32_t> out;
  const toml::node* node = value_of(ask(key));
  if (!node) return out;
  const toml::array* array = node->as_array();
  if (!array) {
    wrong(key, std::string("an array of ") + expected);
    return out;
  }
  for (const toml::node& element : *array)
    if (auto number = resolve_one(&element, key, expected, resolve)) out.push_back(*number);
  return out;
}

std::vector<std::string> ConfigTable::texts(const char* key) {
  std::vector<std::string> out;
  const toml::node* node = value_of(ask(key));
  if (!node) return out;
  const toml::array* array = node->as_array();
  bool is_good = array != nullptr && !array->empty();
  if (is_good)
    for (const toml::node& element : *array) {
      out.push_back(element.value_or(std::string()));
      is_good &= !out.back().empty();
    }
  if (is_good) return out;
  wrong(key, "an array of texts that are not empty");
  return {};
}

std::optional<ConfigTable> ConfigTable::table(const char* key) {
  const toml::node* node = value_of(ask(key));
  if (!node) return std::nullopt;
  if (node->is_table()) return ConfigTable(name_of(key), node_of(*node->as_table()), problems_);
  wrong(key, "a table, [" + name_of(key) + "]");
  return std::nullopt;
}

std::vector<ConfigTable> ConfigTable::tables(const char* key) {
  std::vector<ConfigTable> out;
  const toml::node* node = value_of(ask(key));
  if (!node) return out;
  const toml::array* array = node->as_array();
  if (!array) {
    wrong(key, "an array of tables, [[" + name_of(key) + "]]");
    return out;
  }
  for (const toml::node& element : *array) {
    if (element.is_table()) {
      out.emplace_back(name_of(key), node_of(*element.as_table()), problems_);
    } else {
      problems_->push_back({line_of(element), name_of(key) + ": found " + found(element) + ", expected a table"});
    }
  }
  return out;
}

void ConfigTable::refuse_unknown() {
  for (const auto& [key, node] : toml_of(node_)) {
    if (asked_.contains(key.str())) continue;
    std::string expected;
    for (const std::string& known : asked_) expected += (expected.empty() ? "" : ", ") + known;
    problems_->push_back({int(key.source().begin.line),
                          name_of(printable(key.str())) + ": found an unknown key, expected one of: " + expected});
  }
}

std::optional<std::string> read_config_text(const std::string& path, std::vector<ConfigProblem>& problems) {
  constexpr size_t kConfigBytesMax = 1u << 20;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    text.resize(kConfigBytesMax + 1);
    file.read(text.data(), std::streamsize(text.size()));
    text.resize(size_t(file.gcount()));
  }
  if (!file && !file.eof()) {
    problems.push_back({0, "cannot read the file: " + std::string(std::strerror(errno))});
    return std::nullopt;
  }
  if (text.size() > kConfigBytesMax) {
    problems.push_back({0, "the file has more than 1 MiB"});
    return std::nullopt;
  }
  return text;
}

void parse_toml(std::string_view text, std::vector<ConfigProblem>& problems,
                const std::function<void(ConfigTable)>& read) {
  const toml::parse_result result = toml::parse(text);
  if (!result) {
    problems.push_back(
        {int(result.error().source().begin.line), "not TOML: " + printable(result.error().description())});
    return;
  }
  read(ConfigTable("", node_of(result.table()), &problems));
}

}  // namespace maru::daemon
