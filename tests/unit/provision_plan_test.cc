#include "tests/unit/provision_machines.h"

namespace maru::daemon::provision {
namespace {

constexpr const char* kKv = "[[provision]]\nname = \"kv\"\nkind = \"namespace\"\n";
constexpr const char* kHot = "[[provision]]\nname = \"hot\"\nkind = \"device\"\n";

TEST(ProvisionNamespace, IsMadeOnTheFirstRegionThatHasRoom) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB), nvdimm_region("region1", 128 * kGiB, 1)};
  EXPECT_EQ(planned(machine, std::string(kKv) + "size = \"100GiB\"\nalign = \"2MiB\"\n"),
            Texts{"make the namespace \"kv\" on region1: devdax, 100 GiB, aligned to 2 MiB, cleared"});
  EXPECT_EQ(planned(machine, std::string(kKv) + "region = \"node:0\"\n"),
            Texts{"make the namespace \"kv\" on region0: devdax, 64 GiB, cleared"});
}

TEST(ProvisionNamespace, ThatIsThereNeedsNothing) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB)};
  machine.namespaces = {devdax_namespace("namespace0.1", "kv", "region0", 32 * kGiB, "dax0.1")};
  machine.dax_devices = {dax_device("dax0.1", 31 * kGiB)};
  const Texts settled = {"kv: namespace0.1 is there (32 GiB, dax0.1)"};
  EXPECT_EQ(planned(machine, kKv), settled);
  EXPECT_EQ(planned(machine, std::string(kKv) + "size = \"32GiB\"\nalign = \"2MiB\"\nregion = \"region0\"\n"), settled);
}

TEST(ProvisionNamespace, ThatIsThereAndIsAnotherOneIsRefused) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB)};
  machine.namespaces = {devdax_namespace("namespace0.1", "kv", "region0", 32 * kGiB, "dax0.1")};
  expect_begins(planned(machine, std::string(kKv) + "size = \"48GiB\"\n")[0],
                "8: provision \"kv\": size: found namespace0.1 with 32 GiB, expected 48 GiB; a namespace is");
  expect_begins(planned(machine, std::string(kKv) + "region = \"region7\"\n")[0],
                "8: provision \"kv\": region: found namespace0.1 of that name on regio");
  expect_begins(planned(machine, std::string(kKv) + "align = \"1GiB\"\n")[0],
                "8: provision \"kv\": align: found namespace0.1 aligned t");
  machine.namespaces[0].mode = "fsdax";
  expect_begins(planned(machine, kKv)[0], "6: provision \"kv\": name: found namespace0.1 of that name in mode fsdax,");
}

TEST(ProvisionNamespace, TwoOnOneRegionGetWhatIsLeft) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB)};
  const std::string second = "[[provision]]\nname = \"more\"\nkind = \"namespace\"\n";
  EXPECT_EQ(planned(machine, std::string(kKv) + "size = \"48GiB\"\n" + second),
            (Texts{"make the namespace \"kv\" on region0: devdax, 48 GiB, cleared",
                   "make the namespace \"more\" on region0: devdax, 16 GiB, cleared"}));
  EXPECT_EQ(
      planned(machine, std::string(kKv) + "size = \"48GiB\"\n" + second + "size = \"32GiB\"\n")[0],
      "12: provision \"more\": size: found that region0 has 16 GiB free in one piece (16 GiB in all), expected 32 GiB");
}

TEST(ProvisionNamespace, ASizeTheRegionCannotGiveSaysWhichItCan) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB)};
  EXPECT_EQ(planned(machine, std::string(kKv) + "size = \"20MiB\"\n"),
            Texts{"8: provision \"kv\": size: found that region0 gives multiples of 16 MiB only, such as 32 MiB, "
                  "expected 20 MiB"});
}

TEST(ProvisionNamespace, LabelsAreWrittenOnlyWhereNothingLies) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB)};
  machine.nvdimm_regions[0].has_labels = false;
  machine.nvdimm_regions[0].free_bytes = machine.nvdimm_regions[0].free_extent_bytes = 0;
  machine.namespaces = {devdax_namespace("namespace0.0", "", "region0", 64 * kGiB, "")};
  const Texts both = {"write empty labels on the modules of region0",
                      "make the namespace \"kv\" on region0: devdax, 64 GiB, cleared"};
  EXPECT_EQ(planned(machine, kKv), both);
  machine.nvdimm_regions[0].is_blank = false;
  expect_begins(planned(machine, kKv)[0], "5: provision \"kv\": region: found that region0 has no labels and holds s");
  EXPECT_EQ(planned(machine, kKv, true), both);
  machine.nvdimm_regions[0].can_have_labels = false;
  EXPECT_EQ(make_plan(machine, wishes_of(kKv), {}, true).steps.size(), 0u);
}

TEST(ProvisionNamespace, MemoryOfTheKernelIsTakenWithForceOnly) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB)};
  machine.namespaces = {devdax_namespace("namespace0.0", "kv", "region0", 32 * kGiB, "dax0.0")};
  machine.dax_devices = {dax_device("dax0.0", 31 * kGiB, DaxMode::kSystemRam)};
  const auto refused = make_plan(machine, wishes_of(kKv), {}, false);
  EXPECT_TRUE(refused.steps.empty());
  ASSERT_EQ(refused.problems.size(), 1u);
  EXPECT_NE(refused.problems[0].text.find("in use as memory of the kernel"), std::string::npos);
  EXPECT_EQ(planned(machine, kKv, true), Texts{"take dax0.0 from the kernel: system-ram to devdax, cleared"});
}

TEST(ProvisionDevice, IsMadeOfFreeMemory) {
  Machine machine;
  machine.dax_regions = {dax_region("dax1", 64 * kGiB, 64 * kGiB, 2)};
  EXPECT_EQ(planned(machine, std::string(kHot) + "region = \"node:2\"\nsize = \"16GiB\"\nmode = \"system-ram\"\n"),
            (Texts{"make a device for \"hot\" in dax1: 16 GiB, cleared",
                   "give the device of \"hot\" to the kernel: devdax to system-ram"}));
}

TEST(ProvisionDevice, DefaultDeviceGoesOnlyWhenTheTableSaysSo) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 0)};
  machine.dax_devices = {dax_device("dax0.0", 64 * kGiB)};
  const std::string table = std::string(kHot) + "region = \"dax0\"\nsize = \"16GiB\"\n";
  EXPECT_EQ(planned(machine, table)[0],
            "9: provision \"hot\": size: found that dax0 has 0 B free, the rest is in dax0.0, expected 16 GiB; "
            "replace = [\"dax0.0\"] gives a device back first");
  EXPECT_EQ(planned(machine, table + "replace = [\"dax0.0\"]\n"),
            (Texts{"give back dax0.0 (64 GiB, aligned to 2 MiB) to dax0",
                   "make a device for \"hot\" in dax0: 16 GiB, cleared"}));
}

TEST(ProvisionDevice, AnotherOnesContentIsNotLostSilently) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 0)};
  machine.dax_devices = {dax_device("dax0.0", 64 * kGiB)};
  const std::string table = std::string(kHot) + "region = \"dax0\"\nsize = \"16GiB\"\nreplace = [\"dax0.0\"]\n";
  const auto problem = [&](bool force) {
    const Plan plan = make_plan(machine, wishes_of(table), {}, force);
    return plan.problems.empty() ? "" : plan.problems[0].text;
  };
  machine.dax_devices[0].pool = "0192";
  EXPECT_NE(problem(false).find("found the pool 0192 on dax0.0"), std::string::npos) << problem(false);
  EXPECT_EQ(problem(true), "");
  machine.dax_devices[0].pool.clear();
  machine.dax_devices[0].is_blank = false;
  EXPECT_NE(problem(false).find("content that is no pool"), std::string::npos) << problem(false);
  EXPECT_EQ(problem(true), "");
  machine.dax_devices[0].holder = "marud (process 12)";
  EXPECT_NE(problem(true).find("open in marud (process 12)"), std::string::npos) << problem(true);
}

TEST(ProvisionDevice, WhatADisabledOneHoldsIsNotKnown) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 0)};
  machine.dax_devices = {dax_device("dax0.0", 64 * kGiB)};
  machine.dax_devices[0].mode = DaxMode::kDisabled;
  const std::string why = "found dax0.0 disabled, so that nobody can say what it holds";
  const std::string named = std::string(kHot) + "device = \"dax0.0\"\n";
  for (const std::string& table : {std::string(kHot) + "region = \"dax0\"\nsize = \"16GiB\"\nreplace = [\"dax0.0\"]\n",
                                   named + "size = \"32GiB\"\n", named + "mode = \"system-ram\"\n"}) {
    const Plan plan = make_plan(machine, wishes_of(table), {}, false);
    ASSERT_EQ(plan.problems.size(), 1u) << table;
    EXPECT_NE(plan.problems[0].text.find(why), std::string::npos) << plan.problems[0].text;
    EXPECT_TRUE(make_plan(machine, wishes_of(table), {}, true).problems.empty()) << table;
  }
  EXPECT_EQ(planned(machine, named), Texts{"enable dax0.0 as devdax"}) << "which changes nothing on it";
  const std::vector<Made> made = {{"hot", WishKind::kDevice, "dax0.0", machine.dax_devices[0].start}};
  EXPECT_EQ(plan_release(machine, "hot", made, false).steps.size(), 0u);
  EXPECT_EQ(plan_release(machine, "hot", made, true).steps.size(), 1u);
}

TEST(ProvisionNamespace, OnlyForceReleasesWhatNobodyCanLookAt) {
  Machine machine;
  Namespace kept;
  kept.name = "namespace0.0";
  kept.label = "kv";
  kept.bytes = 64 * kGiB;
  for (const char* mode : {"fsdax", "sector", "raw", "devdax"}) {
    kept.mode = mode;
    machine.namespaces = {kept};
    EXPECT_EQ(plan_release(machine, "kv", {}, false).steps.size(), 0u) << mode;
    EXPECT_EQ(plan_release(machine, "kv", {}, true).steps.size(), 1u) << mode;
  }
}

TEST(ProvisionDevice, SecondApplyChangesNothing) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 16 * kGiB)};
  machine.dax_devices = {dax_device("dax0.1", 16 * kGiB), dax_device("dax0.2", 32 * kGiB)};
  machine.dax_devices[1].start = 20 * kGiB;
  const std::string table = std::string(kHot) + "region = \"dax0\"\nsize = \"16GiB\"\nreplace = [\"dax0.0\"]\n" +
                            "[[provision]]\nname = \"cold\"\nkind = \"device\"\nregion = \"dax0\"\nsize = \"32GiB\"\n";
  const Texts settled = {"hot: dax0.1 is there (16 GiB, devdax)", "cold: dax0.2 is there (32 GiB, devdax)"};
  EXPECT_EQ(planned(machine, table), settled);
  EXPECT_EQ(planned(machine, table, false, {{"hot", WishKind::kDevice, "dax0.1", 4 * kGiB}}), settled);
}

TEST(ProvisionDevice, TheRecordSaysWhichOneIsResized) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 16 * kGiB)};
  machine.dax_devices = {dax_device("dax0.1", 16 * kGiB)};
  const std::vector<Made> made = {{"hot", WishKind::kDevice, "dax0.1", 4 * kGiB}};
  const std::string table = std::string(kHot) + "region = \"dax0\"\nsize = \"24GiB\"\n";
  EXPECT_EQ(planned(machine, table, false, made), Texts{"resize dax0.1 from 16 GiB to 24 GiB"});
  // After a restart of the machine another device has that name.
  expect_begins(planned(machine, table, false, {{"hot", WishKind::kDevice, "dax0.1", 8 * kGiB}})[0],
                "9: provision \"hot\": size: found that dax0 has 16 GiB free,");
  // Growing keeps a pool, shrinking would cut it.
  machine.dax_devices[0].pool = "0192";
  EXPECT_EQ(planned(machine, table, false, made), Texts{"resize dax0.1 from 16 GiB to 24 GiB"});
  const std::string smaller = std::string(kHot) + "region = \"dax0\"\nsize = \"8GiB\"\n";
  EXPECT_NE(planned(machine, smaller, false, made)[0].find("found the pool 0192"), std::string::npos);
  EXPECT_EQ(planned(machine, smaller, true, made), Texts{"resize dax0.1 from 16 GiB to 8 GiB"});
}

TEST(ProvisionDevice, OneDeviceServesOneTable) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 32 * kGiB, 0)};
  machine.dax_devices = {dax_device("dax0.0", 16 * kGiB), dax_device("dax0.1", 16 * kGiB)};
  machine.dax_devices[1].start = 20 * kGiB;
  const std::string tables = std::string(kHot) + "size = \"16GiB\"\n" +
                             "[[provision]]\nname = \"named\"\nkind = \"device\"\ndevice = \"dax0.0\"\n";
  EXPECT_EQ(planned(machine, tables),
            (Texts{"named: dax0.0 is there (16 GiB, devdax)", "hot: dax0.1 is there (16 GiB, devdax)"}));
}

TEST(ProvisionDevice, IsSwitchedToTheKernelAndBack) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 16 * kGiB, 0)};
  machine.dax_devices = {dax_device("dax0.0", 16 * kGiB)};
  const std::string table = std::string(kHot) + "device = \"dax0.0\"\n";
  EXPECT_EQ(planned(machine, table + "mode = \"system-ram\"\n"),
            Texts{"give dax0.0 to the kernel: devdax to system-ram"});
  machine.dax_devices[0].pool = "0192";
  EXPECT_NE(planned(machine, table + "mode = \"system-ram\"\n")[0].find("found the pool 0192"), std::string::npos);
  machine.dax_devices[0] = dax_device("dax0.0", 16 * kGiB, DaxMode::kSystemRam);
  EXPECT_NE(planned(machine, table)[0].find("--force tries"), std::string::npos);
  EXPECT_EQ(planned(machine, table, true), Texts{"take dax0.0 from the kernel: system-ram to devdax, cleared"});
  machine.dax_devices[0].is_online = false;
  EXPECT_EQ(planned(machine, table), Texts{"take dax0.0 from the kernel: system-ram to devdax, cleared"});
}

TEST(ProvisionCxl, MemoryBecomesARegionAndThenANamespace) {
  Machine machine;
  machine.cxl_memories = {cxl_memory("mem0", 256 * kGiB), cxl_memory("mem1", 256 * kGiB)};
  machine.cxl_windows = {{"decoder0.0", 1024 * kGiB, true, true, {"mem0", "mem1"}}};
  const std::string tables = std::string(kKv) + "region = \"cxl:all\"\nsize = \"128GiB\"\n" +
                             "[[provision]]\nname = \"all\"\nkind = \"cxl-region\"\n";
  EXPECT_EQ(planned(machine, tables),
            (Texts{"make the CXL region \"all\" in decoder0.0: 512 GiB, persistent, from mem0, mem1",
                   "make the namespace \"kv\" on cxl:all: devdax, 128 GiB, cleared"}));
  // What was made is found by its memory, and the namespace by its label.
  machine.cxl_regions = {{"region3", "decoder0.0", true, true, 512 * kGiB, {"mem0", "mem1"}}};
  machine.nvdimm_regions = {nvdimm_region("region3", 512 * kGiB)};
  EXPECT_EQ(planned(machine, tables), (Texts{"make the namespace \"kv\" on region3: devdax, 128 GiB, cleared",
                                             "all: no CXL memory is free; region3 has it (512 GiB)"}));
  machine.namespaces = {devdax_namespace("namespace3.0", "kv", "region3", 128 * kGiB, "dax3.0")};
  EXPECT_EQ(make_plan(machine, wishes_of(tables), {}, false).steps.size(), 0u);
  EXPECT_EQ(make_plan(machine, wishes_of(tables), {}, false).problems.size(), 0u);
}

TEST(ProvisionCxl, WhatCannotBeIsRefused) {
  Machine machine;
  machine.cxl_memories = {cxl_memory("mem0", 256 * kGiB), cxl_memory("mem1", 256 * kGiB),
                          cxl_memory("mem2", 256 * kGiB)};
  machine.cxl_windows = {{"decoder0.0", 1024 * kGiB, true, true, {"mem0", "mem1"}}};
  const std::string table = "[[provision]]\nname = \"all\"\nkind = \"cxl-region\"\n";
  EXPECT_NE(planned(machine, table)[0].find("found 3 devices, expected 1, 2, 4, 8 or 16"), std::string::npos);
  EXPECT_NE(planned(machine, table + "memory = [\"mem2\"]\n")[0].find("found no CXL window with 256 GiB free"),
            std::string::npos);
  EXPECT_NE(planned(machine, table + "memory = [\"mem9\"]\n")[0].find("found no CXL memory device mem9"),
            std::string::npos);
  EXPECT_NE(planned(machine, table + "memory = [\"mem0\"]\ntype = \"volatile\"\n")[0].find("with 0 B volatile"),
            std::string::npos);
  EXPECT_NE(
      planned(machine, table + "memory = [\"mem0\"]\nsize = \"100MiB\"\n")[0].find("expected a multiple of 256 MiB"),
      std::string::npos);
}

constexpr const char* kFast = "[[provision]]\nname = \"fast\"\nkind = \"cxl-region\"\ntype = \"volatile\"\n";
constexpr const char* kHotInFast = "region = \"cxl:fast\"\nsize = \"16GiB\"\n";

Machine volatile_machine() {
  Machine machine;
  machine.kernel = "6.12.1";
  machine.cxl_memories = {cxl_memory("mem0", 0, 64 * kGiB)};
  machine.cxl_windows = {{"decoder0.0", 1024 * kGiB, true, true, {"mem0"}}};
  return machine;
}

// The same after apply: a region, and one device in it.
Machine applied_volatile_machine(uint64_t device_bytes, DaxMode mode = DaxMode::kDevdax) {
  Machine machine = volatile_machine();
  machine.cxl_windows[0].free_bytes -= 64 * kGiB;
  machine.cxl_regions = {{"region0", "decoder0.0", false, true, 64 * kGiB, {"mem0"}}};
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 64 * kGiB - device_bytes, 1)};
  machine.dax_regions[0].cxl_region = "region0";
  machine.dax_devices = {dax_device("dax0.0", device_bytes, mode)};
  return machine;
}

TEST(ProvisionVolatileCxl, ARegionIsOneDeviceOrTheDevicesOfTables) {
  const Machine machine = volatile_machine();
  EXPECT_EQ(
      planned(machine, kFast),
      Texts{"make the CXL region \"fast\" in decoder0.0: 64 GiB, volatile, from mem0; one device: devdax, cleared"});
  EXPECT_EQ(planned(machine, std::string(kFast) + kHot + kHotInFast + "mode = \"system-ram\"\n"),
            (Texts{"make the CXL region \"fast\" in decoder0.0: 64 GiB, volatile, from mem0",
                   "make a device for \"hot\" in cxl:fast: 16 GiB, cleared",
                   "give the device of \"hot\" to the kernel: devdax to system-ram"}));
  expect_begins(planned(machine, std::string(kFast) + kHot + "region = \"cxl:fast\"\nsize = \"65GiB\"\n")[0],
                "13: provision \"hot\": size: found that cxl:fast has 64 GiB free, expected 65 GiB");
}

TEST(ProvisionVolatileCxl, WhatIsThereNeedsNothing) {
  EXPECT_EQ(planned(applied_volatile_machine(64 * kGiB), kFast),
            Texts{"fast: no CXL memory is free; region0 has it (64 GiB)"});
  const std::string tables = std::string(kFast) + "memory = [\"mem0\"]\n" + kHot + kHotInFast;
  EXPECT_EQ(planned(applied_volatile_machine(16 * kGiB), tables),
            (Texts{"fast: region0 is there (64 GiB)", "hot: dax0.0 is there (16 GiB, devdax)"}));
  EXPECT_EQ(planned(applied_volatile_machine(32 * kGiB), tables),
            (Texts{"make a device for \"hot\" in dax0: 16 GiB, cleared", "fast: region0 is there (64 GiB)"}));
  Machine without_devices = applied_volatile_machine(16 * kGiB);
  without_devices.dax_regions.clear();
  expect_begins(planned(without_devices, tables)[0],
                "13: provision \"hot\": region: found no DAX device in region0, exp");
}

TEST(ProvisionVolatileCxl, AWholeRegionIsNotTakenFromTheKernelSilently) {
  Machine machine = applied_volatile_machine(64 * kGiB, DaxMode::kSystemRam);
  EXPECT_NE(planned(machine, kFast)[0].find("in use as memory of the kernel"), std::string::npos);
  const Plan forced = make_plan(machine, wishes_of(kFast), {}, true);
  ASSERT_EQ(forced.steps.size(), 1u);
  EXPECT_EQ(step_text(forced.steps[0]), "take dax0.0 from the kernel: system-ram to devdax, cleared");
  EXPECT_TRUE(forced.steps[0].loses_content);
  // A table that wants it there has the last word, wherever it stands.
  const std::string hot = std::string(kHot) + "region = \"cxl:fast\"\nmode = \"system-ram\"\n";
  EXPECT_TRUE(make_plan(machine, wishes_of(kFast + hot), {}, true).steps.empty());
  const std::string named = std::string(kHot) + "device = \"dax0.0\"\nmode = \"system-ram\"\n";
  EXPECT_TRUE(make_plan(machine, wishes_of(kFast + named), {}, true).steps.empty());
  machine.dax_devices[0].mode = DaxMode::kDisabled;
  EXPECT_EQ(planned(machine, kFast)[0], "enable dax0.0 as devdax");
}

TEST(ProvisionVolatileCxl, AKernelThatMakesNoneIsNamed) {
  Machine machine = volatile_machine();
  machine.kernel = "6.1.0-56-amd64";
  machine.cxl_windows[0].makes_volatile = false;
  expect_begins(planned(machine, kFast)[0],
                "8: provision \"fast\": type: found Linux 6.1.0-56-amd64, which makes no volatile region in decoder0.0 "
                "(no create_ram_region), expected 6.3 or newer");
}

TEST(ProvisionVolatileCxl, ARegionIsReleasedAfterItsTablesDevices) {
  Machine machine = applied_volatile_machine(64 * kGiB, DaxMode::kSystemRam);
  std::vector<Made> made = {{"fast", WishKind::kCxlRegion, "region0", 0}};
  EXPECT_EQ(plan_release(machine, "fast", made, false).steps.size(), 0u);
  EXPECT_EQ(
      texts_of(plan_release(machine, "fast", made, true)),
      (Texts{"take dax0.0 from the kernel: system-ram to devdax, cleared", "remove the CXL region region0 (64 GiB)"}));
  machine.dax_devices[0].mode = DaxMode::kDevdax;
  EXPECT_EQ(texts_of(plan_release(machine, "fast", made, false)), Texts{"remove the CXL region region0 (64 GiB)"});
  machine.dax_devices[0].pool = "0192";
  EXPECT_EQ(plan_release(machine, "fast", made, false).steps.size(), 0u);
  made.push_back({"hot", WishKind::kDevice, "dax0.0", 4 * kGiB});
  EXPECT_EQ(
      texts_of(plan_release(machine, "fast", made, true)),
      Texts{"0: release \"fast\": found dax0.0 of the table \"hot\" in region0, expected none; release it first"});
}

// A namespace of that label, and a device.
Machine with_namespace(const std::string& label) {
  Machine machine;
  machine.nvdimm_regions = {nvdimm_region("region0", 64 * kGiB)};
  machine.namespaces = {devdax_namespace("namespace0.0", label, "region0", 32 * kGiB, "dax1.0")};
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 48 * kGiB)};
  machine.dax_devices = {dax_device("dax0.1", 16 * kGiB), dax_device("dax1.0", 31 * kGiB)};
  return machine;
}

TEST(ProvisionRelease, GivesBackWhatWasMadeAndNothingElse) {
  Machine machine = with_namespace("kv");
  const std::vector<Made> made = {{"hot", WishKind::kDevice, "dax0.1", 4 * kGiB},
                                  {"gone", WishKind::kDevice, "dax0.1", 8 * kGiB}};
  EXPECT_EQ(texts_of(plan_release(machine, "kv", made, false)),
            Texts{"remove namespace0.0, the namespace \"kv\" (32 GiB)"});
  EXPECT_EQ(texts_of(plan_release(machine, "hot", made, false)),
            Texts{"give back dax0.1 (16 GiB, aligned to 2 MiB) to dax0"});
  EXPECT_EQ(
      texts_of(plan_release(machine, "gone", made, true)),
      Texts{"0: release \"gone\": found that dax0.1, which was made under this name, is gone, and another device has "
            "its name, expected it as it was; there is nothing to give back"});
  machine.dax_devices[1].pool = "0192";
  EXPECT_EQ(plan_release(machine, "kv", made, false).steps.size(), 0u);
  EXPECT_EQ(plan_release(machine, "kv", made, true).steps.size(), 1u);
  machine.dax_devices[1].holder = "marud (process 12)";
  EXPECT_EQ(plan_release(machine, "kv", made, true).steps.size(), 0u);
}

TEST(ProvisionRelease, WhatATableHasGoesBeforeANamespaceThatIsCalledTheSame) {
  Machine machine = with_namespace("hot");
  EXPECT_EQ(texts_of(plan_release(machine, "hot", {{"hot", WishKind::kDevice, "dax0.1", 4 * kGiB}}, true)),
            Texts{"give back dax0.1 (16 GiB, aligned to 2 MiB) to dax0"});
  machine.namespaces.push_back(devdax_namespace("namespace1.0", "hot", "region1", 8 * kGiB, "dax2.0"));
  EXPECT_EQ(
      texts_of(plan_release(machine, "hot", {}, true)),
      Texts{"0: release \"hot\": found that name on namespace0.0 and on namespace1.0, expected one of them; remove "
            "the right one with ndctl destroy-namespace"});
}

// Somebody took the first device away by other means, and the next apply made another one.
TEST(ProvisionDevice, WhatIsGoneIsNotTakenForWhatTheTableHas) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 0)};
  machine.dax_devices = {dax_device("dax0.1", 16 * kGiB), dax_device("dax0.2", 48 * kGiB)};
  machine.dax_devices[1].start = 20 * kGiB;
  const std::string table = std::string(kHot) + "region = \"dax0\"\nsize = \"all\"\n";
  const std::vector<Made> made = {{"hot", WishKind::kDevice, "dax0.3", 4 * kGiB},
                                  {"hot", WishKind::kDevice, "dax0.2", 20 * kGiB}};
  EXPECT_EQ(planned(machine, table, false, made), Texts{"hot: dax0.2 is there (48 GiB, devdax)"});
}

TEST(ProvisionDevice, WhoeverMayNotReadAddressesSeesThePlanOfRoot) {
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 64 * kGiB, 0)};
  machine.dax_devices = {dax_device("dax0.1", 32 * kGiB), dax_device("dax0.2", 32 * kGiB)};
  for (DaxDeviceFacts& device : machine.dax_devices) device.start = 0;
  const std::vector<Made> made = {{"hot", WishKind::kDevice, "dax0.2", 20 * kGiB},
                                  {"cold", WishKind::kDevice, "dax0.1", 4 * kGiB}};
  const std::string table = std::string(kHot) + "region = \"dax0\"\nsize = \"all\"\n";
  EXPECT_EQ(planned(machine, table, false, made), Texts{"hot: dax0.2 is there (32 GiB, devdax)"});
}

}  // namespace
}  // namespace maru::daemon::provision
