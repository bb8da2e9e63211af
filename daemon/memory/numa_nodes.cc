#include "daemon/memory/numa_nodes.h"

#include <fstream>
#include <numa.h>
#include <optional>
#include <sstream>
#include <string_view>

namespace maru::daemon {
namespace {

constexpr int kNodesMax = 1024;  // of the kernel, CONFIG_NODES_SHIFT

// A list of the kernel's, such as "0-1,3".
std::set<int> numbers_in(const std::string& list) {
  std::set<int> numbers;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream ends(part);
    int first = 0;
    if (!(ends >> first)) continue;
    int last = first;
    if (ends.peek() == '-') ends.ignore() >> last;
    for (int number = first; number <= last && number < kNodesMax; ++number) numbers.insert(number);
  }
  return numbers;
}

// The rest of the line that begins with `key`, or of the first line.
std::optional<std::string> line_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return line.substr(key.size());
  return std::nullopt;
}

}  // namespace

std::set<int> nodes_with_memory(const std::string& machine, const std::string& process) {
  std::set<int> nodes;
  if (const auto list = line_in(machine, "")) {
    nodes = numbers_in(*list);
  } else if (::numa_available() >= 0) {
    for (int node = 0; node <= ::numa_max_node(); ++node)
      if (numa_bitmask_isbitset(numa_all_nodes_ptr, unsigned(node))) nodes.insert(node);
  }
  if (const auto list = line_in(process, "Mems_allowed_list:")) {
    const std::set<int> allowed = numbers_in(*list);
    std::erase_if(nodes, [&](int node) { return !allowed.contains(node); });
  }
  return nodes;
}

std::string no_memory_text(int node, const std::set<int>& nodes) {
  std::string text;
  for (const int one : nodes) text += (text.empty() ? "" : ", ") + std::to_string(one);
  return "found no memory on node " + std::to_string(node) + ", expected one of the nodes " + text;
}

}  // namespace maru::daemon
