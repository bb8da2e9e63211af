#include "daemon/tools/marudctl/near_match.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace maru::marudctl {
namespace {

std::string plain(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = char(c + ('a' - 'A'));
    out += c == '-' || c == '_' ? ' ' : c;
  }
  const size_t first = out.find_first_not_of(' ');
  return first == std::string::npos ? "" : out.substr(first, out.find_last_not_of(' ') - first + 1);
}

// Letters put in, left out, exchanged for another or with their neighbour.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> least(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& here = least[i][j];
      if (i == 0 || j == 0) {
        here = i + j;
        continue;
      }
      here = std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        here = std::min(here, least[i - 2][j - 2] + 1);
    }
  return least[a.size()][b.size()];
}

constexpr size_t kWordMax = 64;  // a longer one is no slip of the finger
constexpr size_t kMatchesMax = 3;
constexpr size_t kBeginningMin = 3;

}  // namespace

std::vector<std::string> near_matches(const std::string& word, const std::vector<std::string>& known) {
  const std::string wanted = plain(word);
  std::vector<std::pair<size_t, std::string>> found;
  if (wanted.empty() || wanted.size() > kWordMax) return {};
  for (const std::string& name : known) {
    const std::string there = plain(name);
    const size_t far = distance(wanted, there);
    const bool begins_so = wanted.size() >= kBeginningMin && there.starts_with(wanted);
    if (far * 3 <= std::max(wanted.size(), there.size()) || begins_so) found.emplace_back(begins_so ? 1 : far, name);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (const auto& [far, name] : found)
    if (out.size() < kMatchesMax && far <= found.front().first + 1) out.push_back(name);
  return out;
}

}  // namespace maru::marudctl
