// One table of a TOML file, read key by key: each reader names the type and range that it expects, and a misfit becomes
// a problem with its line. Keys that no reader asked for are unknown.
#pragma once

#include "daemon/config/config.h"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru::daemon {

class ConfigTable {
 public:
  struct Node;   // a toml++ table, kept out of this header
  struct Value;  // any value of a table, likewise
  ConfigTable(std::string path, const Node* node, std::vector<ConfigProblem>* problems)
      : path_(std::move(path)), node_(node), problems_(problems) {}

  int line() const;
  std::map<std::string, int, std::less<>> lines() const;  // of each key
  bool has(const char* key) const;
  WrittenTable written() const;
  std::optional<std::string> text(const char* key);
  bool is_text(const char* key, std::string_view value) const;
  std::vector<std::string> texts(const char* key, const char* expected);  // an array of them
  std::optional<std::string> one_of(const char* key, std::initializer_list<const char*> choices);
  std::optional<int64_t> integer(const char* key, int64_t least, int64_t most);
  std::vector<int64_t> integers(const char* key, int64_t least, int64_t most);
  std::optional<uint64_t> size(const char* key);
  std::optional<uint64_t> size_or_zero(const char* key);
  std::optional<bool> boolean(const char* key);
  // An array of texts that are not empty.
  std::vector<std::string> texts(const char* key);
  // From 0 to 1, 0 excluded.
  std::optional<double> fraction(const char* key);
  // A table of numbers, booleans and texts: each as text, in the order of the names.
  std::vector<std::pair<std::string, std::string>> scalars(const char* key, size_t most);
  using Resolve = std::optional<uint32_t> (*)(const std::string& name);
  std::optional<uint32_t> name_or_number(const char* key, const char* expected, Resolve resolve);
  std::vector<uint32_t> names_or_numbers(const char* key, const char* expected, Resolve resolve);
  std::optional<ConfigTable> table(const char* key);
  std::vector<ConfigTable> tables(const char* key);

  // The key has a value that does not fit; names the values that would.
  void wrong(const char* key, const std::string& expected);
  void missing(const char* key, const std::string& expected);
  void refuse_unknown();

 private:
  std::string name_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }
  // The value, or none; from now on the key is a known one.
  const Value* ask(const char* key);
  std::optional<uint64_t> size_from(const char* key, uint64_t least, const char* expected);
  std::optional<uint32_t> resolve_one(const void* value, const char* key, const char* expected, Resolve resolve);

  std::string path_;
  const Node* node_;
  std::vector<ConfigProblem>* problems_;
  std::set<std::string, std::less<>> asked_;
};

// config/http.cc
void read_http(ConfigTable table, HttpConfig& http);

// The content of the file; nothing when it cannot be read.
std::optional<std::string> read_config_text(const std::string& path, std::vector<ConfigProblem>& problems);

// Parses and calls `read` with the root. Syntax errors become a problem, and `read` is not called.
void parse_toml(std::string_view text, std::vector<ConfigProblem>& problems,
                const std::function<void(ConfigTable)>& read);

}  // namespace maru::daemon
