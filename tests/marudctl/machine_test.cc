#include "daemon/tools/marudctl/machine.h"

#include "daemon/system/control_group.h"
#include "daemon/tools/marudctl/memory_limits.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;
namespace files = std::filesystem;

const Diagnosis* find(const std::vector<Diagnosis>& diagnoses, const std::string& what) {
  const auto found =
      std::find_if(diagnoses.begin(), diagnoses.end(), [&](const Diagnosis& f) { return f.what == what; });
  return found == diagnoses.end() ? nullptr : &*found;
}
Grade grade_of(const std::vector<Diagnosis>& diagnoses, const std::string& what) {
  const Diagnosis* found = find(diagnoses, what);
  EXPECT_NE(found, nullptr) << what;
  // Whoever is told that something is not good is also told why.
  if (found && found->grade != Grade::kGood) {
    EXPECT_FALSE(found->why.empty()) << what;
  }
  return found ? found->grade : Grade::kGood;
}

MachineSettings good_machine() {
  MachineSettings m;
  m.kernel = "6.1.0-18-amd64";
  m.shmem_huge_pages = "advise";
  m.huge_pages = 512;
  m.swap_bytes = 0;
  m.overcommit = 0;
  m.numa_balancing = 0;
  m.clock = "tsc";
  m.open_files_max = 65536;
  m.memory_bytes = m.shm_bytes = 64ull << 30;
  return m;
}

TEST(MachineSettings, NothingIsSaidAgainstAGoodOne) {
  for (const Diagnosis& diagnosis : judge(good_machine()))
    EXPECT_EQ(diagnosis.grade, Grade::kGood) << diagnosis.what << ": " << diagnosis.found;
}

TEST(MachineSettings, WhatDeniesAnIoUringIsNamed) {
  const auto found = [](int code, daemon::IoUringSettings settings) {
    MachineSettings m = good_machine();
    m.io_uring_code = code;
    m.io_uring = settings;
    const auto diagnoses = judge(m);
    const Diagnosis* one = find(diagnoses, "io_uring");
    return one ? one->found + ": " + one->advice : "";
  };
  const auto has = [](const std::string& text, const std::string& part) { return text.find(part) != text.npos; };
  for (const int code : {EPERM, ENOSYS}) {
    const std::string filtered = found(code, {.disabled = 0, .has_seccomp_filter = true});
    EXPECT_TRUE(has(filtered, "a seccomp filter") && has(filtered, "io_uring_setup")) << filtered;
  }
  const std::string nobody = found(EPERM, {.disabled = 2, .has_seccomp_filter = true});
  EXPECT_TRUE(has(nobody, "kernel.io_uring_disabled = 2") && !has(nobody, "io_uring_group")) << nobody;
  const std::string group = found(EPERM, {.disabled = 1, .has_seccomp_filter = false});
  EXPECT_TRUE(has(group, "kernel.io_uring_disabled = 1") && has(group, "io_uring_group")) << group;
  EXPECT_TRUE(has(found(ENOSYS, {}), "a kernel without io_uring"));
  EXPECT_TRUE(has(found(EACCES, {}), "a security module"));
  EXPECT_EQ(found(ENOMEM, {}), "allowed: ") << "that is another matter";
}

TEST(MachineSettings, EachFaultIsNamed) {
  const auto graded = [](auto&& spoil, const char* what) {
    MachineSettings m = good_machine();
    spoil(m);
    return grade_of(judge(m), what);
  };
  EXPECT_EQ(graded([](MachineSettings& m) { m.kernel = "5.10.0"; }, "kernel"), Grade::kWrong);
  EXPECT_EQ(graded([](MachineSettings& m) { m.kernel = "6.0.1"; }, "kernel"), Grade::kWrong);
  EXPECT_EQ(graded([](MachineSettings& m) { m.hidden_processes = "2"; }, "processes in /proc"), Grade::kWarning);
  EXPECT_EQ(graded([](MachineSettings& m) { m.hidden_processes = "2", m.shows_them_to_a_group = true; },
                   "processes in /proc"),
            Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.kernel = "7.0"; }, "kernel"), Grade::kGood);
  EXPECT_EQ(graded([](MachineSettings& m) { m.io_uring.disabled = 2; }, "io_uring"), Grade::kWrong);
  EXPECT_EQ(graded([](MachineSettings& m) { m.io_uring.disabled = 1; }, "io_uring"), Grade::kWarning);
  EXPECT_EQ(graded([](MachineSettings& m) { m.shmem_huge_pages = "never"; }, "huge pages for shared memory"),
            Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.huge_pages = 0; }, "reserved huge pages"), Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.swap_bytes = 1 << 30; }, "swap"), Grade::kWarning);
  EXPECT_EQ(graded([](MachineSettings& m) { m.overcommit = 2; }, "overcommit"), Grade::kWarning);
  EXPECT_EQ(graded([](MachineSettings& m) { m.numa_balancing = 1; }, "automatic NUMA balancing"), Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.clock = "hpet"; }, "clock"), Grade::kWarning);
  EXPECT_EQ(graded([](MachineSettings& m) { m.open_files_max = 1024; }, "open files of marud"), Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.cgroup_bytes = 1 << 30; }, "memory limit of this control group"),
            Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.killed = 1; }, "processes killed for want of memory"), Grade::kWarning);
  EXPECT_EQ(graded([](MachineSettings& m) { m.shm_bytes = 64 << 20; }, "/dev/shm"), Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.map_count_max = 1000; }, "mappings of a process"), Grade::kWarning);
  EXPECT_EQ(graded([](MachineSettings& m) { m.dax_devices = {{"dax0.0", "system-ram", 1}}; }, "dax0.0"), Grade::kNote);
  EXPECT_EQ(graded([](MachineSettings& m) { m.dax_devices = {{"dax0.0", "devdax", 1}}; }, "dax0.0"), Grade::kGood);
}

TEST(MachineSettings, WhatMarudSaysIsJudged) {
  const auto graded = [](json pool) {
    pool["name"] = "default";
    if (!pool.contains("condition")) pool["condition"] = "serving";
    Grade worst = Grade::kGood;
    for (const Diagnosis& f : judge_marud({{"version", "1"}, {"pools", {pool}}}, "1", good_machine()))
      worst = std::max(worst, f.grade);
    return worst;
  };
  EXPECT_EQ(graded(json::object()), Grade::kGood);
  EXPECT_EQ(graded({{"condition", "fenced"}, {"reason", "truncated"}}), Grade::kWrong);
  EXPECT_EQ(graded({{"condition", "waiting"}}), Grade::kWarning);
  EXPECT_EQ(graded({{"pins_overdue", 1u}}), Grade::kWarning);
  EXPECT_EQ(graded({{"lanes", {{"live", 3u}, {"unproven", 0u}}}}), Grade::kGood);
  EXPECT_EQ(graded({{"lanes", {{"live", 3u}, {"unproven", 1u}}}}), Grade::kWarning);
  EXPECT_EQ(graded({{"refused_rents", 1u}}), Grade::kWarning);
  EXPECT_EQ(graded({{"counters", {{"pin_full", 1u}}}}), Grade::kWarning);
  EXPECT_EQ(graded({{"counters", {{"registry_full", 1u}}}}), Grade::kNote);
  EXPECT_EQ(graded({{"counters", {{"checksum_errors", 1u}}}}), Grade::kWrong);
  EXPECT_EQ(graded({{"page_states", {{"poisoned", 3u}}}}), Grade::kWarning);
  EXPECT_EQ(graded({{"audit", {{"found", 1u}}}}), Grade::kWrong);
  EXPECT_EQ(graded({{"unreserved_because", "reserve = false"}, {"unreserved_bytes", 1u}}), Grade::kWarning);
  EXPECT_EQ(graded({{"unreserved_because", "reserve = false"}, {"full_because", "no room"}}), Grade::kWrong);
  EXPECT_EQ(graded({{"tenants", {{"refused_without_place", 1u}, {"others", "some"}}}}), Grade::kWarning);
  EXPECT_EQ(graded({{"tenants", {{"others", "some"}}}}), Grade::kNote);
  EXPECT_EQ(graded({{"hosts", {{"live", 2u}, {"suspect", 0u}}}}), Grade::kGood);
  EXPECT_EQ(graded({{"hosts", {{"live", 1u}, {"suspect", 1u}}}}), Grade::kWarning);
  EXPECT_EQ(grade_of(judge_marud({{"version", "2"}}, "1", good_machine()), "marud"), Grade::kWarning);
  EXPECT_EQ(grade_of(judge_marud({{"socket_trouble", "it is gone"}}, "1", good_machine()), "marud's socket"),
            Grade::kWrong);
}

TEST(MachineSettings, OneIsNotSaidAsMany) {
  const auto said = [](const json& more) {
    json pool = {{"name", "p"}, {"condition", "serving"}, {"pages", 100u}, {"page_bytes", 4096u}};
    pool.update(more);
    std::string last;
    for (const Diagnosis& f : judge_marud({{"version", "1"}, {"pools", {pool}}}, "1", good_machine()))
      if (f.what == "pool \"p\"") last = f.found;
    return last;
  };
  const auto of = [&](uint64_t n) {
    return std::vector<std::string>{said({{"page_states", {{"poisoned", n}}}}),
                                    said({{"pins_overdue", n}}),
                                    said({{"refused_rents", n}}),
                                    said({{"tenants", {{"refused_without_place", n}}}}),
                                    said({{"counters", {{"checksum_errors", n}}}}),
                                    said({{"hosts", {{"suspect", n}}}}),
                                    said({{"audit", {{"found", n}}}})};
  };
  EXPECT_EQ(of(1), (std::vector<std::string>{
                       "1 page is poisoned", "1 pin is overdue", "1 request for memory was refused",
                       "1 store of a tenant without a place was refused", "1 payload did not match its checksum",
                       "1 of its hosts is suspect", "1 violation in the last audit"}));
  EXPECT_EQ(of(2), (std::vector<std::string>{
                       "2 pages are poisoned", "2 pins are overdue", "2 requests for memory were refused",
                       "2 stores of tenants without a place were refused", "2 payloads did not match their checksum",
                       "2 of its hosts are suspect", "2 violations in the last audit"}));
}

TEST(MachineSettings, APoolThatSomebodyEndsIsNotTakenForOneThatHasNotBegun) {
  for (const char* condition : {"draining", "leaving"}) {
    const auto diagnoses =
        judge_marud({{"version", "1"}, {"pools", {{{"name", "p"}, {"condition", condition}, {"pins_overdue", 1u}}}}},
                    "1", good_machine());
    const Diagnosis* found = find(diagnoses, "pool \"p\"");
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->grade, Grade::kNote);
    EXPECT_TRUE(found->found.starts_with(condition)) << found->found;
    EXPECT_NE(found->why.find("administrator"), std::string::npos) << found->why;
    EXPECT_EQ(diagnoses.back().grade, Grade::kWarning) << "what is in it is judged all the same";
  }
}

TEST(MachineSettings, PoolsThatTheMachineHasNoMemoryForAreNamed) {
  const auto judged = [](std::initializer_list<uint64_t> gib, const char* medium, uint64_t shared_gib,
                         uint64_t available_gib) {
    json pools = json::array();
    for (const uint64_t size : gib)
      pools.push_back({{"name", "p"}, {"condition", "serving"}, {"medium", medium}, {"pool_bytes", size << 30}});
    MachineSettings m = good_machine();
    m.memory_bytes = 24ull << 30;
    m.available_bytes = available_gib << 30;
    m.shared_bytes = shared_gib << 30;
    return judge_marud({{"version", "1"}, {"pools", pools}}, "1", m);
  };
  EXPECT_EQ(grade_of(judged({60}, "memory", 0, 20), "memory for pools"), Grade::kWrong);
  EXPECT_EQ(grade_of(judged({13, 13}, "tmpfs", 0, 20), "memory for pools"), Grade::kWrong) << "in all";
  EXPECT_EQ(grade_of(judged({20}, "memory", 0, 10), "memory for pools"), Grade::kWarning);
  EXPECT_EQ(grade_of(judged({20}, "memory", 12, 10), "memory for pools"), Grade::kGood) << "it was taken before";
  EXPECT_EQ(find(judged({60}, "hugetlb", 0, 20), "memory for pools"), nullptr);
  EXPECT_EQ(find(judged({60}, "devdax", 0, 20), "memory for pools"), nullptr);
}

class MachineFiles : public testing::Test {
 protected:
  MachineFiles() {
    char path[] = "/tmp/maru-machine-XXXXXX";
    root_ = ::mkdtemp(path);
  }
  ~MachineFiles() override { files::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    files::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(MachineFiles, AreReadAsTheKernelWritesThem) {
  write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  write("/proc/sys/kernel/io_uring_disabled", "2\n");
  write("/proc/self/status", "Name:\tmarudctl\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n");
  write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
  write("/proc/meminfo",
        "MemTotal:       16 kB\nMemAvailable:    8 kB\nShmem:           1 kB\nSwapTotal:       4 kB\nHugePages_Total:  "
        "     "
        "7\nHugePages_Free:        3\n");
  write("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit\nMax open files            64                   "
        "64                   files\n");
  write("/proc/7/limits",
        "Limit                     Soft Limit           Hard Limit\nMax open files            1024                 "
        "1048576              files\n");
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/proc/mounts", "proc /proc proc rw,relatime 0 0\nproc /proc proc rw,nosuid,gid=7,hidepid=invisible 0 0\n");
  write("/proc/vmstat", "oom_killer 9\noom_kill 2\n");
  write("/sys/fs/cgroup/a/memory.max", "4096\n");
  write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  write("/sys/bus/dax/devices/dax1.0/size", "268435456\n");
  write("/sys/bus/dax/drivers/kmem/bind", "");
  files::create_symlink(root_ + "/sys/bus/dax/drivers/kmem", root_ + "/sys/bus/dax/devices/dax1.0/driver");
  write("/run/state/pool", "");
  const MachineSettings m = read_machine(root_, {{"pid", 7u}, {"state_dir", "/run/state"}});
  EXPECT_EQ(m.kernel, "6.1.0-18-amd64");
  EXPECT_EQ(m.io_uring.disabled, 2);
  EXPECT_TRUE(m.io_uring.has_seccomp_filter);
  EXPECT_EQ(m.shmem_huge_pages, "never");
  EXPECT_EQ(m.memory_bytes, 16384u);
  EXPECT_EQ(m.available_bytes, 8192u);
  EXPECT_EQ(m.swap_bytes, 4096u);
  EXPECT_EQ(m.huge_pages, 7u);
  EXPECT_EQ(m.free_huge_pages, 3u);
  EXPECT_EQ(m.open_files_max, 1024u) << "marud's, not this program's";
  EXPECT_EQ(m.shared_bytes, 1024u);
  EXPECT_TRUE(m.state_free_bytes);
  EXPECT_EQ(m.cgroup_bytes, 4096u) << "the group above has the limit";
  EXPECT_EQ(m.killed, 2u);
  EXPECT_EQ(m.hidden_processes, "invisible");
  EXPECT_TRUE(m.shows_them_to_a_group);
  ASSERT_EQ(m.dax_devices.size(), 1u);
  EXPECT_EQ(m.dax_devices[0].mode, "system-ram");
  EXPECT_EQ(m.dax_devices[0].bytes, 256u << 20);
}

// The limit that is reached first holds, whichever is lower.
TEST_F(MachineFiles, OfSeveralMemoryLimitsTheOneWithTheLeastRoomCounts) {
  write("/proc/7/cgroup", "1:name=systemd:/x\n0::/a/b\n");
  write("/sys/fs/cgroup/memory.max", "9000\n");
  write("/sys/fs/cgroup/a/memory.max", "8000\n");
  write("/sys/fs/cgroup/a/memory.stat", "anon 1000\nfile 5000\nkernel 9\nshmem 6500\nanon_thp 77\n");
  write("/sys/fs/cgroup/a/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 1\n");
  write("/sys/fs/cgroup/a/b/memory.max", "4000\n");
  write("/sys/fs/cgroup/a/b/memory.stat", "anon 10\nfile 3000\nshmem 20\n");
  const auto limit = daemon::memory_limit(root_, "7");
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->group, "/a");
  EXPECT_EQ(limit->bytes, 8000u);
  EXPECT_EQ(limit->room(), 500u) << "the file's pages can be written back";
  EXPECT_EQ(limit->kills, 2u);
  EXPECT_FALSE(daemon::memory_limit(root_, "8")) << "a process that is gone";
  write("/proc/8/cgroup", "0::/\n");
  ASSERT_TRUE(daemon::memory_limit(root_, "8")) << "in a container";
  EXPECT_EQ(daemon::memory_limit(root_, "8")->group, "/");
  EXPECT_EQ(daemon::memory_limit(root_, "8")->bytes, 9000u);
  write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_FALSE(daemon::memory_limit(root_, "8"));
}

TEST_F(MachineFiles, ClientsWithLessMemoryThanTheirPoolAreNamed) {
  const json status = {{"pid", 1u},
                       {"pools",
                        {{{"name", "small"}, {"device", "memory"}, {"pages", 1u}, {"page_bytes", 4096u}},
                         {{"name", "large"}, {"device", "/dev/shm/pool"}, {"pages", 3u}, {"page_bytes", 4096u}},
                         {{"name", "huge"}, {"device", "memory (huge pages)"}, {"pages", 9u}, {"page_bytes", 4096u}}}}};
  const auto client = [](uint64_t pid, const char* pool) {
    return json{{"pid", pid}, {"command", "engine"}, {"pool", pool}};
  };
  write("/proc/1/cgroup", "0::/marud\n");
  write("/proc/2/cgroup", "0::/engines\n");
  write("/proc/3/cgroup", "0::/engines\n");
  write("/proc/4/cgroup", "0::/free\n");
  write("/sys/fs/cgroup/marud/memory.max", "4096\n");
  write("/sys/fs/cgroup/engines/memory.max", "8192\n");
  EXPECT_TRUE(judge_limits(root_, status, {client(4, "large"), client(5, "large")}).size() == 1) << "marud's own alone";

  std::vector<Diagnosis> found = judge_limits(root_, status, {client(2, "small"), client(3, "huge")});
  EXPECT_EQ(grade_of(found, "memory limit of engine (2) and 1 more"), Grade::kGood);
  EXPECT_EQ(grade_of(found, "memory limit of marud"), Grade::kGood);

  // By what marud says of the memory, wherever the file is.
  json elsewhere = status;
  elsewhere["pools"][1]["device"] = "/mnt/pool";
  elsewhere["pools"][1]["medium"] = "tmpfs";
  found = judge_limits(root_, elsewhere, {client(2, "small"), client(3, "large")});
  EXPECT_EQ(grade_of(found, "memory limit of engine (2) and 1 more"), Grade::kWarning);
  elsewhere["pools"][1]["medium"] = "file";
  found = judge_limits(root_, elsewhere, {client(2, "small"), client(3, "large")});
  EXPECT_EQ(grade_of(found, "memory limit of engine (2) and 1 more"), Grade::kGood);

  found = judge_limits(root_, status, {client(2, "small"), client(3, "large")});
  EXPECT_EQ(grade_of(found, "memory limit of engine (2) and 1 more"), Grade::kWarning);

  write("/sys/fs/cgroup/marud/memory.events", "oom_kill 1\n");
  found = judge_limits(root_, status, json::array());
  EXPECT_EQ(grade_of(found, "memory limit of marud"), Grade::kWrong);
}

TEST(MachineSettings, AFullDiskForTheStateIsNamed) {
  MachineSettings m = good_machine();
  const json status = {{"version", "1"}, {"state_dir", "/run/state"}};
  m.state_free_bytes = 1 << 20;
  EXPECT_EQ(grade_of(judge_marud(status, "1", m), "state directory"), Grade::kWarning);
  m.state_free_bytes = 1 << 30;
  EXPECT_EQ(grade_of(judge_marud(status, "1", m), "state directory"), Grade::kGood);
}

TEST_F(MachineFiles, WhatIsNotThereIsNotJudged) {
  const MachineSettings m = read_machine(root_, json::object());
  EXPECT_FALSE(m.memory_bytes);
  EXPECT_FALSE(m.open_files_max);
  for (const Diagnosis& diagnosis : judge(m)) EXPECT_LE(diagnosis.grade, Grade::kNote) << diagnosis.what;
}

}  // namespace
}  // namespace maru::marudctl
