// What changed between a plan and a step: seen before the step, which is then not begun. The machine is data that "somebody
// else" changes between two steps.
#include "daemon/tools/provision/guarded_executor.h"
#include "tests/unit/provision_machines.h"

#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <poll.h>
#include <unistd.h>

namespace maru::daemon::provision {
namespace {

// Does steps on a machine that is data.
class DataExecutor : public Executor {
 public:
  Machine machine;
  std::vector<std::string> calls;
  std::function<void(Machine&)> after_run = [](Machine&) {};  // what somebody else does next
  std::function<void()> on_undo = [] {};

  StepResult run(const Step& step) override {
    calls.push_back("run " + step_text(step));
    const std::string name = change(step);
    after_run(machine);
    return name;
  }
  StepResult undo(const Step& step, const std::string& name) override {
    calls.push_back("undo " + name);
    on_undo();
    if (step.kind == Step::Kind::kMakeDevice)
      std::erase_if(machine.dax_devices, [&](const DaxDeviceFacts& one) { return one.name == name; });
    return name;
  }

 private:
  std::string change(const Step& step) {
    if (step.kind == Step::Kind::kMakeDevice) {
      DaxDeviceFacts made = dax_device(step.target + ".7", step.bytes);
      machine.dax_devices.push_back(made);
      return made.name;
    }
    if (step.kind == Step::Kind::kTakeFromKernel) {
      DaxDeviceFacts* device = find_named(machine.dax_devices, step.target);
      device->mode = DaxMode::kDevdax;
      device->is_online = false;
    }
    if (step.kind == Step::Kind::kRemoveDevice)
      std::erase_if(machine.dax_devices, [&](const DaxDeviceFacts& one) { return one.name == step.target; });
    return step.target;
  }
};

struct Guarded {
  DataExecutor data;
  std::vector<std::string> locked;
  std::string in_use;  // a device that a marud has

  ApplyOutcome follow(const std::vector<Step>& steps, const Machine& planned) {
    GuardedExecutor executor(data, planned,
                             {[this] { return Result<Machine>(data.machine); },
                              [this](const std::string& device) -> Result<FileDescriptor> {
                                if (device == in_use) return failure(EBUSY, "lock /dev/" + device);
                                locked.push_back(device);
                                return FileDescriptor();
                              }});
    return apply(steps, executor, {.say = [](const std::string&) {}});
  }
};

Machine one_device() {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 16 * kGiB, 8 * kGiB)};
  machine.dax_devices = {dax_device("dax0.0", 8 * kGiB)};
  return machine;
}

Step step_on(Step::Kind kind, const std::string& target) {
  Step step;
  step.kind = kind;
  step.wish = "kv";
  step.target = target;
  return step;
}

TEST(ProvisionGuard, NothingChangedSoTheStepIsDone) {
  Guarded guarded;
  guarded.data.machine = one_device();
  const ApplyOutcome outcome = guarded.follow({step_on(Step::Kind::kRemoveDevice, "dax0.0")}, one_device());
  EXPECT_TRUE(outcome.is_complete) << outcome.failure;
  EXPECT_EQ(guarded.locked, Texts{"dax0.0"});
}

// A device whose driver is taken away and put back while somebody has it open cannot be opened any more.
TEST(ProvisionGuard, TheLockIsHeldWhileTheMachineIsReadAndNotWhileAStepChangesIt) {
  Guarded guarded;
  guarded.data.machine = one_device();
  guarded.data.machine.dax_devices.push_back(dax_device("dax0.1", 4 * kGiB));
  const Machine planned = guarded.data.machine;
  std::vector<FileDescriptor> ends;  // of pipes whose other ends are the locks
  const auto held = [&ends] {
    size_t count = 0;
    for (const FileDescriptor& end : ends) {
      pollfd one = {end.get(), POLLIN, 0};
      count += ::poll(&one, 1, 0) == 0;
    }
    return count;
  };
  Texts seen;
  const auto note = [&](const char* when) { seen.push_back(when + std::to_string(held())); };
  guarded.data.after_run = [&](Machine&) { note("run "); };
  guarded.data.on_undo = [&] { note("undo "); };
  const Step first = step_on(Step::Kind::kEnableDevice, "dax0.1");
  const Step second = step_on(Step::Kind::kRemoveDevice, "dax0.0");
  GuardedExecutor executor(guarded.data, planned,
                           {[&] {
                              note("read ");
                              return Result<Machine>(guarded.data.machine);
                            },
                            [&](const std::string&) -> Result<FileDescriptor> {
                              int pair[2];
                              if (::pipe2(pair, O_CLOEXEC) != 0) return failure(errno, "make a pipe");
                              ends.emplace_back(pair[0]);
                              return FileDescriptor(pair[1]);
                            }});
  ASSERT_TRUE(executor.run(second));
  ASSERT_TRUE(executor.run(first));
  ASSERT_TRUE(executor.undo(first, "dax0.1"));
  EXPECT_EQ(seen, (Texts{"read 1", "run 0", "read 0", "read 1", "run 0", "read 0", "read 1", "undo 0", "read 0"}));
}

TEST(ProvisionGuard, ADeviceThatAMarudHasIsNotTouched) {
  Guarded guarded;
  guarded.data.machine = one_device();
  guarded.in_use = "dax0.0";
  const ApplyOutcome outcome = guarded.follow({step_on(Step::Kind::kRemoveDevice, "dax0.0")}, one_device());
  EXPECT_FALSE(outcome.is_complete);
  EXPECT_TRUE(guarded.data.calls.empty());
}

TEST(ProvisionGuard, WhateverChangedOnTheDeviceSinceThePlanStopsTheStep) {
  const struct {
    const char* expected;
    std::function<void(DaxDeviceFacts&)> change;
  } kChanges[] = {
      {"found dax0.0 open in marud (process 812), expected nobody",
       [](DaxDeviceFacts& device) { device.holder = "marud (process 812)"; }},
      {"found dax0.0 holding the pool 1-2-3, expected holding nothing",
       [](DaxDeviceFacts& device) { device.pool = "1-2-3", device.is_blank = false; }},
      {"found dax0.0 holding content that is no pool, expected holding nothing",
       [](DaxDeviceFacts& device) { device.is_blank = false; }},
      {"found dax0.0 in the mode system-ram, expected in the mode devdax",
       [](DaxDeviceFacts& device) { device.mode = DaxMode::kSystemRam; }},
      {"found dax0.0 with 8592031744 bytes, expected with 8589934592 bytes",
       [](DaxDeviceFacts& device) { device.bytes += 2 * kMiB; }},
      {"found dax0.0 at the address 4297064448, expected at the address 4294967296",
       [](DaxDeviceFacts& device) { device.start += 2 * kMiB; }},
      {"found no dax0.0, expected it as it was", [](DaxDeviceFacts& device) { device.name = "dax0.1"; }},
  };
  for (const auto& [expected, change] : kChanges) {
    for (const auto kind : {Step::Kind::kRemoveDevice, Step::Kind::kResizeDevice, Step::Kind::kGiveToKernel}) {
      Guarded guarded;
      guarded.data.machine = one_device();
      change(guarded.data.machine.dax_devices[0]);
      const ApplyOutcome outcome = guarded.follow({step_on(kind, "dax0.0")}, one_device());
      EXPECT_FALSE(outcome.is_complete);
      EXPECT_TRUE(guarded.data.calls.empty());
      EXPECT_NE(outcome.failure.find(expected), std::string::npos) << outcome.failure;
    }
  }
}

// The second step's device changes while the first one is done.
TEST(ProvisionGuard, AChangeBetweenStepsUndoesThoseBefore) {
  Machine machine = one_device();
  machine.dax_devices.push_back(dax_device("dax0.1", 4 * kGiB));
  Guarded guarded;
  guarded.data.machine = machine;
  guarded.data.after_run = [](Machine& now) { find_named(now.dax_devices, "dax0.0")->pool = "1-2-3"; };
  Step make = step_on(Step::Kind::kMakeDevice, "dax0");
  make.bytes = 4 * kGiB;
  const ApplyOutcome outcome = guarded.follow({make, step_on(Step::Kind::kRemoveDevice, "dax0.0")}, machine);
  EXPECT_EQ(guarded.data.calls.size(), 2u);
  EXPECT_EQ(guarded.data.calls.back(), "undo dax0.7");
  EXPECT_NE(outcome.failure.find("holding the pool 1-2-3"), std::string::npos) << outcome.failure;
  EXPECT_TRUE(outcome.left.empty());
}

TEST(ProvisionGuard, WhatAStepChangedItselfIsExpectedByTheNextOne) {
  Machine machine = one_device();
  machine.dax_devices[0].mode = DaxMode::kSystemRam;
  machine.dax_devices[0].is_online = true;
  Guarded guarded;
  guarded.data.machine = machine;
  const ApplyOutcome outcome = guarded.follow(
      {step_on(Step::Kind::kTakeFromKernel, "dax0.0"), step_on(Step::Kind::kRemoveDevice, "dax0.0")}, machine);
  EXPECT_TRUE(outcome.is_complete) << outcome.failure;
}

// A marud that chooses among free devices took the new one at once: its pool is not undone.
TEST(ProvisionGuard, ADeviceThatSomebodyTookMeanwhileIsLeftWhenTheRestIsUndone) {
  Guarded guarded;
  guarded.data.machine = one_device();
  guarded.data.after_run = [](Machine& now) {
    if (DaxDeviceFacts* made = find_named(now.dax_devices, "dax0.7")) made->pool = "1-2-3", made->is_blank = false;
    now.dax_devices[0].bytes = kGiB;
  };
  Step make = step_on(Step::Kind::kMakeDevice, "dax0");
  make.bytes = 4 * kGiB;
  const ApplyOutcome outcome = guarded.follow({make, step_on(Step::Kind::kRemoveDevice, "dax0.0")}, one_device());
  EXPECT_EQ(guarded.data.calls.size(), 1u);
  ASSERT_EQ(outcome.left.size(), 1u);
  EXPECT_NE(outcome.left[0].find("found dax0.7 holding the pool 1-2-3, expected holding nothing"), std::string::npos)
      << outcome.left[0];
  EXPECT_EQ(outcome.done.size(), 1u);
}

TEST(ProvisionGuard, ANamespaceOfAnotherUuidOrLabelOrModeIsNotRemoved) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 32 * kGiB)};
  machine.namespaces = {devdax_namespace("namespace0.0", "kv", "region0", 8 * kGiB, "dax0.0")};
  machine.namespaces[0].uuid = "a";
  machine.dax_devices = {dax_device("dax0.0", 8 * kGiB)};
  const std::function<void(Machine&)> kChanges[] = {
      [](Machine& now) { now.namespaces[0].uuid = "b"; },
      [](Machine& now) { now.namespaces[0].label = "other"; },
      [](Machine& now) { now.namespaces[0].mode = "fsdax"; },
      [](Machine& now) { now.namespaces[0].bytes = 4 * kGiB; },
      [](Machine& now) { now.dax_devices[0].holder = "marud (process 812)"; },
      [](Machine& now) { now.dax_devices[0].pool = "1-2-3"; },
  };
  for (const auto& change : kChanges) {
    Guarded guarded;
    guarded.data.machine = machine;
    change(guarded.data.machine);
    EXPECT_FALSE(guarded.follow({step_on(Step::Kind::kRemoveNamespace, "namespace0.0")}, machine).is_complete);
    EXPECT_TRUE(guarded.data.calls.empty());
  }
  Guarded guarded;
  guarded.data.machine = machine;
  EXPECT_TRUE(guarded.follow({step_on(Step::Kind::kRemoveNamespace, "namespace0.0")}, machine).is_complete);
  EXPECT_EQ(guarded.locked, Texts{"dax0.0"});
}

TEST(ProvisionGuard, ARegionOrACxlDeviceThatBecameAnotherStopsItsStep) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 32 * kGiB)};
  machine.nvdimm_regions[0].has_labels = false;
  machine.cxl_memories = {cxl_memory("mem0", 0, 8 * kGiB)};
  machine.cxl_regions.resize(1);
  machine.cxl_regions[0].name = "region1";
  machine.dax_regions = {dax_region("dax1", 8 * kGiB, 0)};
  machine.dax_regions[0].cxl_region = "region1";
  machine.dax_devices = {dax_device("dax1.0", 8 * kGiB)};
  const struct {
    Step::Kind kind;
    const char* target;
    std::function<void(Machine&)> change;
  } kChanges[] = {
      {Step::Kind::kMakeLabels, "region0", [](Machine& now) { now.nvdimm_regions[0].is_blank = false; }},
      {Step::Kind::kMakeLabels, "region0",
       [](Machine& now) { now.namespaces = {devdax_namespace("namespace0.0", "", "region0", 32 * kGiB, "dax0.0")}; }},
      {Step::Kind::kMakeCxlRegion, "decoder0.0", [](Machine& now) { now.cxl_memories[0].serial = 7; }},
      {Step::Kind::kRemoveCxlRegion, "region1", [](Machine& now) { now.cxl_regions[0].memories = {"mem1"}; }},
      {Step::Kind::kRemoveCxlRegion, "region1",
       [](Machine& now) { now.dax_devices[0].holder = "marud (process 812)"; }},
  };
  for (const auto& [kind, target, change] : kChanges) {
    Step step = step_on(kind, target);
    if (kind == Step::Kind::kMakeCxlRegion) step.memories = {"mem0"};
    Guarded guarded;
    guarded.data.machine = machine;
    EXPECT_TRUE(guarded.follow({step}, machine).is_complete);
    guarded.data.calls.clear();
    change(guarded.data.machine);
    EXPECT_FALSE(guarded.follow({step}, machine).is_complete) << step_text(step);
    EXPECT_TRUE(guarded.data.calls.empty());
  }
}

}  // namespace
}  // namespace maru::daemon::provision
