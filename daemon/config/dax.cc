// The places of pools: settings of pools on DAX devices alone, and NUMA nodes of memory pools.
#include "daemon/config/config.h"
#include "daemon/config/table.h"
#include "daemon/memory/dax_device.h"

#include <bit>

namespace maru::daemon {

void read_dax(ConfigTable& table, PoolSpec& spec) {
  const bool is_dax = spec.backend == Backend::kDax;
  const char* control_key = is_dax ? "control_device" : "control_path";
  for (const char* key : {"readers", "reader_groups"})
    if (table.has(key) && spec.backend != Backend::kMemory && !table.has(control_key))
      table.wrong(key, control_key +
                           std::string(" beside it: who can write the control region of a pool in one piece can write "
                                       "its blocks"));
  if (auto value = table.one_of("after_power_loss", {"verify", "format"})) {
    spec.after_power_loss = *value == "verify" ? AfterPowerLoss::kVerify : AfterPowerLoss::kFormat;
    if (spec.backend == Backend::kMemory)
      table.wrong("after_power_loss", "nothing: a memory pool is gone with the power");
  }
  if (!is_dax) {
    for (const char* key : {"device", "control_device", "align", "format"})
      if (table.has(key)) table.wrong(key, "nothing: it is for pools with backend = \"dax\"");
    return;
  }
  if (auto value = table.text("device")) {
    spec.dax.device = *value;
    if (const auto expected = check_dax_wish(*value)) table.wrong("device", *expected);
  }
  if (!table.has("device"))
    table.missing("device", "the device, such as \"/dev/dax0.0\", \"uuid:...\", \"node:0\" or \"cxl:free\"");
  if (auto value = table.text("control_device")) {
    spec.dax.control_device = *value;
    if (const auto expected = check_dax_wish(*value)) table.wrong("control_device", *expected);
    if (*value == spec.dax.device && value->starts_with("/"))
      table.wrong("control_device", "another device than device, or nothing to have both on that one");
  }
  if (auto value = table.size("align")) {
    spec.dax.alignment = *value;
    if (!std::has_single_bit(*value) || *value < 4096 || *value > (1ull << 30))
      table.wrong("align", "a power of two from 4KiB to 1GiB, usually \"2MiB\"");
  }
  if (auto value = table.one_of("format", {"blank", "never"})) spec.dax.formats_blank = *value == "blank";
  if (table.has("path")) table.wrong("path", "nothing: a pool on a DAX device has device =");
  if (table.has("control_path")) table.wrong("control_path", "nothing: a pool on a DAX device has control_device =");
  if (table.has("size")) table.wrong("size", "nothing: a pool on a DAX device has the size of the device");
  if (table.has("huge_pages")) table.wrong("huge_pages", "nothing: the device's alignment says how it is mapped");
  for (const char* key : {"numa_node", "numa_nodes", "numa_policy", "first_touch"})
    if (table.has(key)) table.wrong(key, "nothing: the memory lies where its device is");
}

void read_numa(ConfigTable& table, PoolSpec& spec) {
  for (const int64_t node : table.integers("numa_nodes", 0, 1023)) spec.numa.nodes.push_back(int(node));
  if (auto value = table.integer("numa_node", 0, 1023)) {
    if (spec.numa.nodes.empty())
      spec.numa.nodes.push_back(int(*value));
    else
      table.wrong("numa_node", "nothing beside numa_nodes, which says the same of several");
  }
  if (auto value = table.one_of("numa_policy", {"bind", "interleave", "preferred"})) {
    spec.numa.policy = *value == "bind"         ? NumaPlacement::Policy::kBind
                       : *value == "interleave" ? NumaPlacement::Policy::kInterleave
                                                : NumaPlacement::Policy::kPreferred;
    if (spec.numa.nodes.empty()) table.wrong("numa_policy", "numa_nodes beside it");
  }
  if (auto value = table.boolean("first_touch")) spec.numa.first_touch = *value;
}

}  // namespace maru::daemon
