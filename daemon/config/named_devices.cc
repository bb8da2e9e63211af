#include "daemon/config/named_devices.h"

#include "daemon/config/table.h"

#include <algorithm>

namespace maru::daemon {
namespace {

// No device has a name that is more than one line.
bool is_one_line(const std::string& path) {
  return std::none_of(path.begin(), path.end(), [](unsigned char c) { return c < ' ' || c == 0x7F; });
}

}  // namespace

std::vector<std::string> named_devices(const std::string& config_path, std::vector<ConfigProblem>& problems) {
  std::vector<std::string> paths;
  const auto text = read_config_text(config_path, problems);
  if (!text) return paths;
  parse_toml(*text, problems, [&](ConfigTable root) {
    for (ConfigTable& pool : root.tables("pool")) {
      if (pool.text("backend") != "dax") continue;
      for (const char* key : {"device", "control_device"}) {
        std::string path = normal_path(pool.text(key).value_or(""));
        if (path.ends_with('/')) path.pop_back();
        const bool is_device = path.starts_with("/dev/") && path.size() > 5 && is_one_line(path);
        if (is_device && std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
      }
    }
  });
  return paths;
}

}  // namespace maru::daemon
