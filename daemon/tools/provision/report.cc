#include "daemon/tools/provision/report.h"

#include "daemon/tools/marudctl/output.h"

#include <nlohmann/json.hpp>

namespace maru::daemon::provision {
namespace {

using Json = nlohmann::json;

// A node that the kernel does not say is left out, as is a text that is empty.
void add_node(Json& row, int node) {
  if (node >= 0) row["numa_node"] = node;
}
void add_text(Json& row, const char* name, const std::string& text) {
  if (!text.empty()) row[name] = text;
}

std::string joined(const Json& texts) {
  std::string out;
  for (const auto& text : texts) out += (out.empty() ? "" : " ") + text.get<std::string>();
  return out;
}

Json cxl_memories(const Machine& machine) {
  Json rows = Json::array();
  for (const CxlMemory& one : machine.cxl_memories) {
    Json row = {{"memory", one.name},
                {"host", one.host},
                {"persistent_bytes", one.persistent_bytes},
                {"serial", one.serial},
                {"health", one.health},
                {"volatile_bytes", one.volatile_bytes},
                {"state", one.is_enabled ? "enabled" : "disabled"}};
    add_node(row, one.numa_node);
    rows.push_back(row);
  }
  return rows;
}

Json cxl_windows(const Machine& machine) {
  Json rows = Json::array();
  for (const CxlWindow& one : machine.cxl_windows)
    rows.push_back({{"window", one.name},
                    {"free_bytes", one.free_bytes},
                    {"persistent", one.takes_persistent},
                    {"volatile", one.takes_volatile},
                    {"memory", one.memories}});
  return rows;
}

Json cxl_regions(const Machine& machine) {
  Json rows = Json::array();
  for (const CxlRegion& one : machine.cxl_regions)
    rows.push_back({{"region", one.name},
                    {"window", one.window},
                    {"size_bytes", one.bytes},
                    {"type", one.is_persistent ? "persistent" : "volatile"},
                    {"state", one.is_enabled ? "enabled" : "disabled"},
                    {"memory", one.memories}});
  return rows;
}

Json nvdimm_regions(const Machine& machine) {
  Json rows = Json::array();
  for (const NvdimmRegion& one : machine.nvdimm_regions) {
    Json row = {{"region", one.name},
                {"provider", one.provider},
                {"size_bytes", one.bytes},
                {"free_bytes", one.free_bytes},
                {"largest_free_bytes", one.free_extent_bytes},
                {"align_bytes", one.align},
                {"labels", one.has_labels        ? "yes"
                           : one.can_have_labels ? "none yet"
                                                 : "impossible"},
                {"state", !one.is_enabled    ? "disabled"
                          : one.is_read_only ? "read-only"
                                             : "enabled"},
                {"health", one.health}};
    add_node(row, one.numa_node);
    rows.push_back(row);
  }
  return rows;
}

Json namespaces(const Machine& machine) {
  Json rows = Json::array();
  for (const Namespace& one : machine.namespaces) {
    Json row = {{"namespace", one.name},
                {"region", one.region},
                {"size_bytes", one.bytes},
                {"mode", one.mode},
                {"uuid", one.uuid},
                {"align_bytes", one.align},
                {"state", one.is_enabled ? "enabled" : "disabled"}};
    add_text(row, "name", one.label);
    add_text(row, "device", !one.device.empty() ? one.device : one.block_device);
    rows.push_back(row);
  }
  return rows;
}

Json dax_regions(const Machine& machine) {
  Json rows = Json::array();
  for (const DaxRegion& one : machine.dax_regions) {
    Json row = {{"region", one.name},       {"size_bytes", one.bytes},   {"free_bytes", one.free_bytes},
                {"align_bytes", one.align}, {"dynamic", one.is_dynamic}, {"cxl", one.is_cxl}};
    add_node(row, one.numa_node);
    add_text(row, "cxl_region", one.cxl_region);
    rows.push_back(row);
  }
  return rows;
}

Json dax_devices(const Machine& machine) {
  Json rows = Json::array();
  for (const DaxDeviceFacts& one : machine.dax_devices) {
    Json row = {{"device", one.name},
                {"region", one.region},
                {"size_bytes", one.bytes},
                {"align_bytes", one.align},
                {"mode", dax_mode_text(one.mode)},
                {"start", one.start}};
    add_node(row, one.numa_node);
    if (one.mode == DaxMode::kSystemRam)
      row["state"] = !one.is_online ? "offline" : one.is_movable ? "online, movable" : "online";
    if (one.mode == DaxMode::kDevdax)
      row["state"] = !one.pool.empty() ? "pool" : one.is_blank ? "blank" : "other content";
    add_text(row, "pool", one.pool);
    add_text(row, "used_by", one.holder);
    rows.push_back(row);
  }
  return rows;
}

// Lists of names and truths have no column of their own, so they become text.
Json flattened(Json rows) {
  for (Json& row : rows)
    for (auto& [name, value] : row.items()) {
      if (value.is_array()) value = joined(value);
      if (value.is_boolean()) value = value.get<bool>() ? "yes" : "no";
    }
  return rows;
}

}  // namespace

Json machine_json(const Machine& machine) {
  return {{"cxl_memory", cxl_memories(machine)}, {"cxl_windows", cxl_windows(machine)},
          {"cxl_regions", cxl_regions(machine)}, {"nvdimm_regions", nvdimm_regions(machine)},
          {"namespaces", namespaces(machine)},   {"dax_regions", dax_regions(machine)},
          {"dax_devices", dax_devices(machine)}};
}

std::string machine_text(const Machine& machine) {
  std::string out;
  const auto add = [&](const char* title, const Json& rows, std::initializer_list<const char*> columns) {
    if (rows.empty()) return;
    out += (out.empty() ? "" : "\n") + std::string(title) + "\n" + marudctl::table_text(flattened(rows), columns, "");
  };
  add("CXL memory", cxl_memories(machine),
      {"memory", "host", "persistent_bytes", "volatile_bytes", "numa_node", "state", "health"});
  add("CXL windows", cxl_windows(machine), {"window", "free_bytes", "persistent", "volatile", "memory"});
  add("CXL regions", cxl_regions(machine), {"region", "window", "size_bytes", "type", "state", "memory"});
  add("NVDIMM regions", nvdimm_regions(machine),
      {"region", "provider", "size_bytes", "free_bytes", "align_bytes", "numa_node", "labels", "state", "health"});
  add("Namespaces", namespaces(machine),
      {"namespace", "name", "region", "size_bytes", "align_bytes", "mode", "state", "device"});
  add("DAX regions", dax_regions(machine),
      {"region", "size_bytes", "free_bytes", "align_bytes", "numa_node", "dynamic", "cxl", "cxl_region"});
  add("DAX devices", dax_devices(machine),
      {"device", "region", "size_bytes", "align_bytes", "numa_node", "mode", "state", "pool", "used_by"});
  return out.empty() ? "no CXL memory, no NVDIMMs, no DAX devices\n" : out;
}

Json plan_json(const Plan& plan) {
  Json steps = Json::array(), problems = Json::array();
  for (const Step& step : plan.steps)
    steps.push_back(
        {{"table", step.wish}, {"step", step_text(step)}, {"why", step.why}, {"loses_content", step.loses_content}});
  for (const ConfigProblem& problem : plan.problems)
    problems.push_back({{"line", problem.line}, {"problem", problem.text}});
  return {{"steps", steps}, {"settled", plan.settled}, {"problems", problems}};
}

std::string plan_text(const Plan& plan) {
  std::string out;
  for (const std::string& text : plan.settled) out += text + "\n";
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    out += std::to_string(i + 1) + ". " + step_text(step) + "\n   (" + step.wish + ": " + step.why +
           (step.loses_content ? "; what it holds is lost" : "") + ")\n";
  }
  if (plan.steps.empty() && plan.problems.empty()) out += "nothing to do\n";
  return out;
}

std::string problems_text(const Plan& plan, const std::string& file) {
  std::string out;
  for (const ConfigProblem& problem : plan.problems)
    out += (problem.line ? file + ":" + std::to_string(problem.line) + ": " : "") + problem.text + "\n";
  return out;
}

Json outcome_json(const ApplyOutcome& outcome) {
  Json done = Json::array();
  for (const Done& one : outcome.done)
    done.push_back({{"table", one.step.wish}, {"step", step_text(one.step)}, {"name", one.name}});
  Json out = {{"complete", outcome.is_complete}, {"done", done}, {"undone", outcome.undone}, {"left", outcome.left}};
  if (!outcome.is_complete) out["failure"] = outcome.failure;
  return out;
}

std::string outcome_text(const ApplyOutcome& outcome) {
  std::string out;
  if (outcome.is_complete) {
    for (const Done& one : outcome.done)
      if (clears(one.step) || one.step.kind == Step::Kind::kMakeCxlRegion)
        out += one.step.wish + ": " + one.name + "\n";
    return out + "done: " + std::to_string(outcome.done.size()) + (outcome.done.size() == 1 ? " step\n" : " steps\n");
  }
  out = "failed: " + outcome.failure + "\n";
  for (const std::string& text : outcome.undone) out += "undone: " + text + "\n";
  for (const std::string& text : outcome.left) out += "left:   " + text + "\n";
  if (outcome.left.empty())
    out += outcome.undone.empty() ? "nothing was changed\n" : "the machine is as it was before\n";
  return out;
}

}  // namespace maru::daemon::provision
