// The configuration's wishes for the machine's memory, one [[provision]] table each. marud reads and checks these tables with
// the rest of its file; marud-provision carries them out.
//
//   [[provision]]                 a namespace on persistent memory, found again by its name
//   name = "kv"                   kind = "namespace"
//   region = "region0"            or "node:1", "cxl:NAME of a table", "any" (default)
//   size = "64GiB"                or "all" (default): all free memory, in one piece
//   align = "2MiB"                or "1GiB", "4KiB"
//
//   [[provision]]                 a DAX device in a region that has several ("dax0" has dax0.0, dax0.1 ...)
//   name = "hot"                  kind = "device"
//   region = "dax0"               or "node:1", "cxl:NAME" of a table, "any"
//                                 or device = "dax0.0": this device, resized and switched
//   size = "16GiB"                align = "2MiB"              mode = "devdax" (default) or "system-ram"
//   replace = ["dax0.0"]          devices that may be given back for it
//
//   [[provision]]                 CXL memory made reachable
//   name = "expander"             kind = "cxl-region"
//   memory = ["mem0"]             all free memories when missing
//   type = "persistent"           or "volatile"               size = "all"
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace maru::daemon {
class ConfigTable;
struct ConfigProblem;
}  // namespace maru::daemon

namespace maru::daemon::provision {

enum class WishKind : uint8_t { kNamespace, kDevice, kCxlRegion };

struct Wish {
  std::string name;
  WishKind kind = WishKind::kNamespace;
  std::string region;                 // empty: any
  std::string device;                 // kDevice: this one
  uint64_t bytes = 0;                 // 0: all free bytes
  uint64_t align = 0;                 // 0: the kernel's default
  bool is_system_ram = false;         // kDevice
  bool is_persistent = true;          // kCxlRegion
  std::vector<std::string> memories;  // kCxlRegion; empty: all free memories
  std::vector<std::string> replace;   // kDevice
  int line = 0;
  std::map<std::string, int, std::less<>> lines;  // of each key in the table

  int line_of(const char* key) const;
};

inline constexpr size_t kWishesMax = 256;    // far more than a machine has devices
inline constexpr size_t kNameBytesMax = 63;  // the room in a namespace's label
inline constexpr const char* kNodePrefix = "node:";
inline constexpr const char* kCxlPrefix = "cxl:";

Wish read_wish(ConfigTable table);
// Finds contradictions between tables: a name twice, a device twice, a region that no table makes.
void check_wishes(const std::vector<Wish>& wishes, std::vector<ConfigProblem>& problems);

}  // namespace maru::daemon::provision
