// Machines described as data, and short ways to plan on them.
#pragma once

#include "daemon/tools/provision/plan.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace maru::daemon::provision {

inline constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;

inline NvdimmRegion nvdimm_region(const std::string& name, uint64_t bytes, int node = 0) {
  NvdimmRegion region;
  region.name = name;
  region.provider = "ACPI.NFIT";
  region.bytes = region.free_bytes = region.free_extent_bytes = bytes;
  region.align = 16 * kMiB;
  region.numa_node = node;
  region.is_enabled = region.has_labels = region.can_have_labels = region.is_blank = true;
  region.health = "ok";
  return region;
}

inline Namespace devdax_namespace(const std::string& name, const std::string& label, const std::string& region,
                                  uint64_t bytes, const std::string& device) {
  Namespace one;
  one.name = name;
  one.label = label;
  one.region = region;
  one.mode = "devdax";
  one.bytes = bytes;
  one.align = 2 * kMiB;
  one.is_enabled = true;
  one.device = device;
  return one;
}

inline DaxRegion dax_region(const std::string& name, uint64_t bytes, uint64_t free_bytes, int node = 0) {
  DaxRegion region;
  region.name = name;
  region.bytes = bytes;
  region.free_bytes = free_bytes;
  region.align = 2 * kMiB;
  region.numa_node = node;
  region.is_dynamic = true;
  return region;
}

inline DaxDeviceFacts dax_device(const std::string& name, uint64_t bytes, DaxMode mode = DaxMode::kDevdax,
                                 int node = 0) {
  DaxDeviceFacts device;
  device.name = name;
  device.region = name.substr(0, name.find('.'));
  device.start = 4 * kGiB;
  device.bytes = bytes;
  device.align = 2 * kMiB;
  device.mode = mode;
  device.numa_node = node;
  device.is_online = mode == DaxMode::kSystemRam;
  return device;
}

inline CxlMemory cxl_memory(const std::string& name, uint64_t persistent_bytes, uint64_t volatile_bytes = 0) {
  CxlMemory memory;
  memory.name = name;
  memory.persistent_bytes = persistent_bytes;
  memory.volatile_bytes = volatile_bytes;
  memory.is_enabled = true;
  return memory;
}

// Wishes as a configuration file says them; each table begins on the line after the one before it.
inline std::vector<Wish> wishes_of(const std::string& tables) {
  std::vector<ConfigProblem> problems;
  const Config config =
      parse_config("[[pool]]\nname = \"p\"\nbackend = \"memory\"\nsize = \"1GiB\"\n" + tables, problems);
  for (const ConfigProblem& problem : problems) ADD_FAILURE() << problem.line << ": " << problem.text;
  return config.wishes;
}

// The steps and what is settled or wrong, one text each: what a test compares.
inline std::vector<std::string> texts_of(const Plan& plan) {
  std::vector<std::string> out;
  for (const ConfigProblem& problem : plan.problems) out.push_back(std::to_string(problem.line) + ": " + problem.text);
  for (const Step& step : plan.steps) out.push_back(step_text(step));
  for (const std::string& text : plan.settled) out.push_back(text);
  return out;
}

inline std::vector<std::string> planned(const Machine& machine, const std::string& tables, bool force = false,
                                        const std::vector<Made>& made = {}) {
  return texts_of(make_plan(machine, wishes_of(tables), made, force));
}

inline void expect_begins(const std::string& text, const std::string& beginning) {
  EXPECT_EQ(text.substr(0, beginning.size()), beginning) << text;
}

using Texts = std::vector<std::string>;

}  // namespace maru::daemon::provision
