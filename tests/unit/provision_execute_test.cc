// Every change that a plan makes on a machine, failing once: what was done before is undone, and the machine is as it was. And
// from one change on all failing, so that undoing fails as well: what is left is said.
#include "daemon/tools/provision/device_executor.h"
#include "tests/unit/fake_devices.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <set>
#include <string>

namespace maru::daemon::provision {
namespace {

constexpr uint64_t kGiB = 1ull << 30;
using Kind = Step::Kind;
using Driver = daxctl_dev::Driver;

Step step_of(Kind kind, const std::string& target, uint64_t bytes = 0) {
  Step step;
  step.kind = kind;
  step.wish = "kv";
  step.target = target;
  step.bytes = bytes;
  return step;
}

Step removing(const std::string& device, uint64_t bytes) {
  Step step = step_of(Kind::kRemoveDevice, device, bytes);
  step.region = "dax0";
  return step;
}

std::string device_name(int id) { return "dax0." + std::to_string(id); }

daxctl_dev& add_device(const std::string& name, uint64_t bytes, Driver driver, const std::string& content = "") {
  if (fake().dax_regions.empty())
    fake().dax_regions.push_back({0, "/sys/devices/platform/hmem.0/dax_region", 16 * kGiB});
  auto& region = fake().dax_regions.front();
  auto& device = region.devices.emplace_back(daxctl_dev{name, &region, bytes});
  device.own_bytes = bytes;
  device.driver = driver;
  device.content = content;
  return device;
}

ndctl_region& add_nvdimms(bool has_labels) {
  auto& region = fake().nvdimms.regions.emplace_back(ndctl_region{"region0", &fake().nvdimms, 8 * kGiB});
  for (const char* name : {"nmem0", "nmem1"}) region.dimms.push_back({name, &region, has_labels});
  auto& one = region.namespaces.emplace_back(ndctl_namespace{"namespace0.0", &region});
  if (!has_labels) one.bytes = region.bytes, one.is_active = true;
  return region;
}

ndctl_namespace& add_namespace(bool is_active) {
  auto& one = add_nvdimms(true).namespaces.front();
  one.bytes = 4 * kGiB;
  one.label = "kv";
  one.content = "a pool";
  one.has_notes = true;
  one.is_active = is_active;
  if (is_active) show_dax_region(&one, nullptr, one.bytes, one.content);
  one.region->namespaces.push_back({"namespace0.1", one.region});
  return one;
}

void add_cxl() {
  fake().cxl.port.decoders.push_back({"decoder0.0", &fake().cxl.port});
  for (const char* name : {"mem0", "mem1"}) {
    auto& memory = fake().cxl_memories.emplace_back(cxl_memdev{name});
    memory.endpoint.port.decoders.push_back({"decoder3.0", &memory.endpoint.port});
  }
}

Step cxl_step(bool is_persistent, bool is_divided) {
  Step step = step_of(Kind::kMakeCxlRegion, "decoder0.0", 2 * kGiB);
  step.wish = "all";
  step.memories = {"mem0", "mem1"};
  step.is_persistent = is_persistent;
  step.is_divided = is_divided;
  return step;
}

struct Scenario {
  const char* name;
  std::function<void()> prepare;
  std::vector<Step> steps;
  bool loses_content = false;  // what a step takes with it comes back as zeros
  bool waits = false;          // for a device that the kernel makes: nothing that fails for ever is tried
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  const auto add = [&](const char* name, std::function<void()> prepare, std::vector<Step> steps) -> Scenario& {
    return all.emplace_back(Scenario{name, std::move(prepare), std::move(steps)});
  };
  const auto with_align = [](Step step) { return step.align = 1u << 30, step; };
  add("two devices are made, and one given to the kernel", [] { add_device("dax0.0", 0, Driver::kNone); },
      {with_align(step_of(Kind::kMakeDevice, "dax0", 4 * kGiB)), step_of(Kind::kMakeDevice, "dax0", 2 * kGiB),
       step_of(Kind::kGiveToKernel, "")});
  for (const auto use : {KernelUse::kMovable, KernelUse::kUnmovable, KernelUse::kOffline}) {
    Step take = step_of(Kind::kTakeFromKernel, "dax0.0");
    take.kernel_use = use;
    add("a device is taken from the kernel and replaced",
        [use] {
          add_device("dax0.0", 8 * kGiB, Driver::kKmem, use == KernelUse::kOffline ? "" : "the kernel's").use = use;
        },
        {take, removing("dax0.0", 8 * kGiB), step_of(Kind::kMakeDevice, "dax0", 4 * kGiB)});
  }
  // The kernel keeps the first device of a region, empty, and gives a new one the lowest free id.
  for (const bool is_first_empty : {false, true}) {
    add(
        "two devices are replaced, the lower one the kernel's",
        [is_first_empty] {
          if (is_first_empty) add_device("dax0.0", 0, Driver::kNone);
          const int lower = is_first_empty ? 1 : 0;
          add_device(device_name(lower), 8 * kGiB, Driver::kKmem, "the kernel's").use = KernelUse::kMovable;
          add_device(device_name(lower + 1), 4 * kGiB, Driver::kDevdax, "a pool");
        },
        [&] {
          const std::string lower = device_name(is_first_empty ? 1 : 0), upper = device_name(is_first_empty ? 2 : 1);
          return std::vector<Step>{step_of(Kind::kTakeFromKernel, lower), removing(lower, 8 * kGiB),
                                   removing(upper, 4 * kGiB), step_of(Kind::kMakeDevice, "dax0", 12 * kGiB)};
        }())
        .loses_content = true;
  }
  for (const bool was_disabled : {false, true})
    for (const uint64_t bytes : {12 * kGiB, 4 * kGiB}) {
      Step resize = step_of(Kind::kResizeDevice, "dax0.0", bytes);
      resize.before = 8 * kGiB;
      resize.was_disabled = was_disabled;
      add("a blank device is resized, and another one made",
          [was_disabled] { add_device("dax0.0", 8 * kGiB, was_disabled ? Driver::kNone : Driver::kDevdax); },
          {resize, step_of(Kind::kMakeDevice, "dax0", 2 * kGiB)});
      if (bytes > resize.before)
        add("a device with a pool grows, and another one is made",
            [was_disabled] {
              add_device("dax0.0", 8 * kGiB, was_disabled ? Driver::kNone : Driver::kDevdax, "a pool");
            },
            {resize, step_of(Kind::kMakeDevice, "dax0", 2 * kGiB)});
      else
        add("a device with a pool shrinks",
            [was_disabled] {
              add_device("dax0.0", 8 * kGiB, was_disabled ? Driver::kNone : Driver::kDevdax, "a pool");
            },
            {resize});
    }
  for (const auto driver : {Driver::kDevdax, Driver::kNone}) {
    Step give = step_of(Kind::kGiveToKernel, "dax0.0");
    give.was_disabled = driver == Driver::kNone;
    add("a blank device is given to a kernel that puts memory online at once",
        [driver] { add_device("dax0.0", 8 * kGiB, driver), fake().puts_online = true; }, {give});
    add("a blank device is given to the kernel, and another one made",
        [driver] { add_device("dax0.0", 8 * kGiB, driver); }, {give, step_of(Kind::kMakeDevice, "dax0", 2 * kGiB)});
  }
  add("a device is enabled, and another one made", [] { add_device("dax0.0", 8 * kGiB, Driver::kNone, "a pool"); },
      {step_of(Kind::kEnableDevice, "dax0.0"), step_of(Kind::kMakeDevice, "dax0", 2 * kGiB)});
  add("labels and two namespaces", [] { add_nvdimms(false); },
      {step_of(Kind::kMakeLabels, "region0"), step_of(Kind::kMakeNamespace, "region0", 2 * kGiB),
       step_of(Kind::kMakeNamespace, "region0", kGiB)});
  add("a namespace is removed", [] { add_namespace(true); }, {step_of(Kind::kRemoveNamespace, "namespace0.0")});
  add("a namespace that is off is removed", [] { add_namespace(false); },
      {step_of(Kind::kRemoveNamespace, "namespace0.0")});
  add("a namespace is enabled, and another one made", [] { add_namespace(false); },
      {step_of(Kind::kEnableNamespace, "namespace0.0"), step_of(Kind::kMakeNamespace, "region0", kGiB)});
  Step removes = step_of(Kind::kRemoveNamespace, "namespace0.0", 4 * kGiB);
  removes.region = "region0";
  add("a namespace is replaced", [] { add_namespace(true); },
      {removes, step_of(Kind::kMakeNamespace, "region0", 2 * kGiB)})
      .loses_content = true;
  add("a persistent CXL region", add_cxl, {cxl_step(true, false)});
  for (const bool has_kmem : {false, true}) {
    const auto prepare = [has_kmem] { add_cxl(), fake().has_kmem = has_kmem; };
    add("a volatile CXL region, one device", prepare, {cxl_step(false, false)}).waits = true;
    Step in_it = step_of(Kind::kMakeDevice, "cxl:all", kGiB);
    add("a volatile CXL region and a device in it", prepare, {cxl_step(false, true), in_it}).waits = true;
  }
  const auto made = [] {
    add_cxl();
    DeviceExecutor executor;
    ASSERT_TRUE(executor.run(cxl_step(false, false)));
    fake().calls = 0;
  };
  add("a volatile CXL region is removed", made, {step_of(Kind::kRemoveCxlRegion, "region0")}).waits = true;
  return all;
}

// How many changes it makes.
int follow(const Scenario& scenario, int fails_at, bool fails_on, ApplyOutcome* ret_outcome, std::string* ret_before) {
  renew_fake();
  scenario.prepare();
  *ret_before = fake().text();
  fake().fails_at = fails_at;
  fake().fails_on = fails_on;
  DeviceExecutor executor;
  *ret_outcome = apply(scenario.steps, executor, {.say = [](const std::string&) {}});
  return fake().calls;
}

std::string without_content(std::string text) {
  for (const char* content : {"\"a pool\"", "\"the kernel's\""})
    for (size_t at; (at = text.find(content)) != text.npos;) text.replace(at, std::string(content).size(), "\"\"");
  return text;
}

std::string all_of(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += text + "\n";
  return out;
}

TEST(ProvisionExecute, AnyChangeThatFailsOnceLeavesTheMachineAsItWas) {
  for (const Scenario& scenario : scenarios()) {
    SCOPED_TRACE(scenario.name);
    ApplyOutcome outcome;
    std::string before;
    const int changes = follow(scenario, 0, false, &outcome, &before);
    ASSERT_TRUE(outcome.is_complete) << outcome.failure;
    EXPECT_NE(fake().text(), before);
    EXPECT_EQ(fake().unsafe, "");
    for (int at = 1; at <= changes; ++at) {
      SCOPED_TRACE("change " + std::to_string(at) + " of " + std::to_string(changes) + " fails");
      follow(scenario, at, false, &outcome, &before);
      EXPECT_EQ(fake().unsafe, "");
      if (outcome.is_complete) continue;  // it can do without that one
      EXPECT_TRUE(outcome.left.empty()) << outcome.failure << "\n" << all_of(outcome.left);
      EXPECT_TRUE(outcome.done.empty());
      if (scenario.loses_content)
        EXPECT_EQ(without_content(fake().text()), without_content(before)) << outcome.failure;
      else
        EXPECT_EQ(fake().text(), before) << outcome.failure;
    }
  }
}

// Devices with memory, but for those of namespaces, which have labels; and CXL regions.
std::set<std::string> whole_ones() {
  std::set<std::string> names;
  for (const auto& region : fake().dax_regions)
    for (const auto& device : region.devices)
      if (!region.space && device.bytes != 0) names.insert(device.name);
  for (const auto& window : fake().cxl.port.decoders)
    for (const auto& region : window.regions) names.insert(region.name);
  return names;
}

bool is_known(const ApplyOutcome& outcome, const std::string& name) {
  const auto is_it = [&](const Done& one) { return one.name == name; };
  return std::any_of(outcome.done.begin(), outcome.done.end(), is_it) ||
         std::any_of(outcome.unfinished.begin(), outcome.unfinished.end(), is_it) ||
         std::any_of(outcome.put_back.begin(), outcome.put_back.end(), is_it);
}

TEST(ProvisionExecute, WhatCannotBePutBackIsSaidAndWhatIsNewIsKnownByName) {
  for (const Scenario& scenario : scenarios()) {
    if (scenario.waits) continue;
    SCOPED_TRACE(scenario.name);
    ApplyOutcome outcome;
    std::string before;
    renew_fake();
    scenario.prepare();
    const std::set<std::string> were_there = whole_ones();
    const int changes = follow(scenario, 0, false, &outcome, &before);
    for (int at = 1; at <= changes; ++at) {
      SCOPED_TRACE("change " + std::to_string(at) + " of " + std::to_string(changes) + " and all after it fail");
      follow(scenario, at, true, &outcome, &before);
      EXPECT_EQ(fake().unsafe, "");
      if (outcome.is_complete || fake().text() == before) continue;
      EXPECT_FALSE(outcome.left.empty()) << outcome.failure << "\nwas:\n" << before << "is:\n" << fake().text();
      for (const std::string& name : whole_ones())
        EXPECT_TRUE(were_there.contains(name) || is_known(outcome, name)) << name << "\n"
                                                                          << outcome.failure << "\n"
                                                                          << all_of(outcome.left);
    }
  }
}

// Somebody else makes a device of that name between the removal and the roll-back.
TEST(ProvisionExecute, WhereARemovedDeviceComesBackUnderAnotherNameTheStepsBeforeAreLeftAndItIsSaid) {
  renew_fake();
  add_device("dax0.0", 0, Driver::kNone);
  add_device("dax0.1", 8 * kGiB, Driver::kKmem, "the kernel's").use = KernelUse::kMovable;
  DeviceExecutor executor;
  const auto somebody = [](const std::string& said) {
    if (said.find("undoing: ") == 0 && !fake_device("dax0.1"))
      add_device("dax0.1", kGiB, Driver::kDevdax, "somebody's");
  };
  const ApplyOutcome outcome = apply({step_of(Kind::kTakeFromKernel, "dax0.1"), removing("dax0.1", 8 * kGiB),
                                      step_of(Kind::kMakeDevice, "dax0", 32 * kGiB)},
                                     executor, {.say = somebody});
  EXPECT_FALSE(outcome.is_complete);
  EXPECT_TRUE(outcome.undone.empty()) << all_of(outcome.undone);
  EXPECT_EQ(outcome.done.size(), 2u);
  EXPECT_NE(all_of(outcome.left).find("it is dax0.0 now"), std::string::npos) << all_of(outcome.left);
  EXPECT_EQ(fake_device("dax0.0")->bytes, 8 * kGiB);
  EXPECT_EQ(fake_device("dax0.0")->driver, Driver::kDevdax);
  EXPECT_EQ(fake_device("dax0.1")->content, "somebody's");
}

// A marud that waits for its device opens it as soon as it is enabled, before it can be locked.
TEST(ProvisionExecute, ADeviceThatAMarudTookBeforeItWasClearedIsLeftToIt) {
  Step grow = step_of(Kind::kResizeDevice, "dax0.0", 12 * kGiB);
  grow.before = 8 * kGiB;
  for (const Step& step :
       {grow, step_of(Kind::kTakeFromKernel, "dax0.0"), step_of(Kind::kMakeDevice, "dax0", 8 * kGiB)}) {
    SCOPED_TRACE(step_text(step));
    renew_fake();
    const Driver driver = step.kind == Kind::kTakeFromKernel ? Driver::kKmem : Driver::kNone;
    add_device("dax0.0", step.kind == Kind::kMakeDevice ? 0 : 8 * kGiB, driver);
    fake().marud_takes = "dax0.0";
    DeviceExecutor executor;
    const ApplyOutcome outcome = apply({step}, executor, {.say = [](const std::string&) {}});
    EXPECT_EQ(fake().unsafe, "");
    EXPECT_EQ(fake_device("dax0.0")->driver, Driver::kDevdax);
    EXPECT_NE(all_of(outcome.left).find("a marud has it"), std::string::npos) << all_of(outcome.left);
    ASSERT_EQ(outcome.unfinished.size(), 1u);
    EXPECT_EQ(outcome.unfinished[0].name, "dax0.0");
  }
}

// A driver that leaves then keeps the memory until the machine is started again.
TEST(ProvisionExecute, ANewDeviceThatTheKernelPutsOnlineIsTakenFromItAfterwards) {
  renew_fake();
  add_cxl();
  fake().has_kmem = true;
  fake().looks_until_online = 3;
  DeviceExecutor executor;
  const StepResult made = executor.run(cxl_step(false, false));
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_EQ(fake().unsafe, "");
  EXPECT_EQ(fake().dax_regions.front().devices.front().driver, Driver::kDevdax);
}

}  // namespace
}  // namespace maru::daemon::provision
