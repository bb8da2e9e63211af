#include "daemon/tools/provision/wish.h"

#include "daemon/base/size_text.h"
#include "daemon/config/table.h"
#include "libmaru/wire/codec.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <set>

namespace maru::daemon::provision {
namespace {

constexpr uint64_t kSmallPage = 4096;  // the least alignment of a DAX device

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "dax0", "region12": the letters, then a number.
bool is_kernel_name(std::string_view text, std::string_view letters) {
  return text.starts_with(letters) && is_number(text.substr(letters.size()));
}
bool is_device_name(std::string_view text) {
  const size_t point = text.find('.');
  return point != text.npos && is_kernel_name(text.substr(0, point), "dax") && is_number(text.substr(point + 1));
}

void read_region(ConfigTable& table, Wish& wish) {
  auto region = table.text("region");
  if (!region || *region == "any") return;
  const bool is_device = wish.kind == WishKind::kDevice;
  const bool fits = is_kernel_name(*region, is_device ? "dax" : "region") || is_kernel_name(*region, kNodePrefix) ||
                    region->starts_with(kCxlPrefix);
  if (!fits)
    table.wrong("region", is_device ? "\"dax0\" for the devices dax0.0, dax0.1 ..., \"node:1\", \"cxl:NAME\" of "
                                      "another table, or \"any\""
                                    : "\"region0\", \"node:1\", \"cxl:NAME\" of another table, or \"any\"");
  wish.region = *region;
}

void read_size(ConfigTable& table, Wish& wish) {
  if (table.is_text("size", "all")) {
    table.text("size");
  } else if (auto value = table.size("size")) {
    wish.bytes = *value;
  }
  if (wish.kind == WishKind::kCxlRegion) return;
  if (auto value = table.size("align")) {
    wish.align = *value;
    if (!std::has_single_bit(wish.align) || wish.align < kSmallPage)
      table.wrong("align", "\"4KiB\", \"2MiB\" or \"1GiB\"");
    else if (wish.bytes % wish.align != 0)
      table.wrong("size", "a multiple of align, " + size_text(wish.align));
  }
}

}  // namespace

int Wish::line_of(const char* key) const {
  const auto found = lines.find(key);
  return found == lines.end() ? line : found->second;
}

Wish read_wish(ConfigTable table) {
  Wish wish;
  wish.line = table.line();
  wish.lines = table.lines();
  if (auto name = table.text("name")) {
    wish.name = *name;
    if (!wire::is_pool_name(wish.name)) table.wrong("name", "1 to 63 letters, digits, '-', '_' or '.'");
  } else if (!table.has("name")) {
    table.missing("name", "a name of its own, such as \"kv\"");
  }
  const auto kind = table.one_of("kind", {"namespace", "device", "cxl-region"});
  if (!kind) {
    // Which keys may stand here is known once the kind is.
    if (!table.has("kind")) table.missing("kind", "\"namespace\", \"device\" or \"cxl-region\"");
    return wish;
  }
  wish.kind = *kind == "device"       ? WishKind::kDevice
              : *kind == "cxl-region" ? WishKind::kCxlRegion
                                      : WishKind::kNamespace;
  read_size(table, wish);
  if (wish.kind != WishKind::kCxlRegion) read_region(table, wish);
  if (wish.kind == WishKind::kDevice) {
    if (auto device = table.text("device")) {
      wish.device = *device;
      if (!is_device_name(wish.device)) table.wrong("device", "the name of a DAX device, such as \"dax0.0\"");
      if (table.has("region")) table.wrong("region", "nothing: device says which one");
      if (table.has("replace")) table.wrong("replace", "nothing: device is there already");
    }
    if (auto mode = table.one_of("mode", {"devdax", "system-ram"})) wish.is_system_ram = *mode == "system-ram";
    wish.replace = table.texts("replace", "names of DAX devices, such as \"dax0.0\"");
    if (!std::all_of(wish.replace.begin(), wish.replace.end(), is_device_name))
      table.wrong("replace", "names of DAX devices, such as \"dax0.0\"");
  }
  if (wish.kind == WishKind::kCxlRegion) {
    if (auto type = table.one_of("type", {"persistent", "volatile"})) wish.is_persistent = *type == "persistent";
    wish.memories = table.texts("memory", "names of CXL memory devices, such as \"mem0\"");
    if (!std::all_of(wish.memories.begin(), wish.memories.end(),
                     [](const std::string& name) { return is_kernel_name(name, "mem"); }))
      table.wrong("memory", "names of CXL memory devices, such as \"mem0\"");
  }
  table.refuse_unknown();
  return wish;
}

void check_wishes(const std::vector<Wish>& wishes, std::vector<ConfigProblem>& problems) {
  std::set<std::string> names;
  std::map<std::string, std::string> devices, memories;
  const auto refuse = [&](const Wish& wish, const char* key, const std::string& text) {
    problems.push_back({wish.line_of(key), std::string("provision.") + key + ": found " + text});
  };
  const auto claim = [&](const Wish& wish, const char* key, std::map<std::string, std::string>& owners,
                         const std::string& what) {
    const auto [at, is_new] = owners.emplace(what, wish.name);
    if (!is_new) refuse(wish, key, "\"" + what + "\", which \"" + at->second + "\" has already, expected another one");
  };
  for (const Wish& wish : wishes) {
    if (!names.insert(wish.name).second)
      refuse(wish, "name", "\"" + printable(wish.name) + "\" a second time, expected a name of its own");
    if (!wish.device.empty()) claim(wish, "device", devices, wish.device);
    for (const std::string& device : wish.replace) claim(wish, "replace", devices, device);
    for (const std::string& memory : wish.memories) claim(wish, "memory", memories, memory);
    if (!wish.region.starts_with(kCxlPrefix)) continue;
    // Namespaces lie on persistent memory, devices that can be divided are volatile.
    const bool is_persistent = wish.kind == WishKind::kNamespace;
    const bool is_made = std::any_of(wishes.begin(), wishes.end(), [&](const Wish& other) {
      return other.kind == WishKind::kCxlRegion && other.is_persistent == is_persistent &&
             kCxlPrefix + other.name == wish.region;
    });
    if (!is_made)
      refuse(wish, "region",
             "\"" + printable(wish.region) + "\", expected a table of kind \"cxl-region\" and type \"" +
                 (is_persistent ? "persistent" : "volatile") + "\" of that name");
  }
  if (wishes.size() > kWishesMax)
    problems.push_back({wishes.back().line, "provision: found " + std::to_string(wishes.size()) +
                                                ", expected at most " + std::to_string(kWishesMax)});
}

}  // namespace maru::daemon::provision
