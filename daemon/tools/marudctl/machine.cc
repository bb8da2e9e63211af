#include "daemon/tools/marudctl/machine.h"

#include "daemon/base/size_text.h"
#include "daemon/system/control_group.h"
#include "daemon/tools/marudctl/reply_fields.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/statvfs.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;
namespace files = std::filesystem;

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::string all = text.str();
  while (!all.empty() && (all.back() == '\n' || all.back() == ' ')) all.pop_back();
  return all;
}

template <typename T>
std::optional<T> read_number(const std::string& path) {
  const std::string text = read(path);
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  return T(std::strtoull(text.c_str(), nullptr, 0));
}

// "always within_size [never]": the word in brackets.
std::string chosen_word(const std::string& text) {
  const size_t from = text.find('['), to = text.find(']');
  return from == std::string::npos || to == std::string::npos || to < from ? "" : text.substr(from + 1, to - from - 1);
}

// A line "Name:   123 kB" of /proc/meminfo, in bytes when it has a unit.
std::optional<uint64_t> line_of(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name + ":");
  if (at == std::string::npos) return std::nullopt;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str() + at + name.size() + 2, &end, 10);
  return value * (end[0] == ' ' && end[1] == 'k' ? 1024 : 1);
}

// The value of a line "name 123".
std::optional<uint64_t> count_of(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + " ");
  if (at == std::string::npos) return std::nullopt;
  return std::strtoull(text.c_str() + at + name.size() + 1, nullptr, 10);
}

// Reads which processes the last mount of /proc hides, from /proc/mounts: "proc /proc proc rw,gid=7,hidepid=invisible 0 0".
void read_hiding(const std::string& mounts, MachineSettings& m) {
  std::istringstream lines(mounts);
  for (std::string source, place, type, options, rest; lines >> source >> place >> type >> options;
       std::getline(lines, rest)) {
    if (place != "/proc") continue;
    m.hidden_processes.clear();
    m.shows_them_to_a_group = false;
    std::istringstream each(options);
    for (std::string option; std::getline(each, option, ',');) {
      if (option.starts_with("hidepid=")) m.hidden_processes = option.substr(std::string("hidepid=").size());
      if (option.starts_with("gid=") && option != "gid=0") m.shows_them_to_a_group = true;
    }
    if (m.hidden_processes == "0" || m.hidden_processes == "off") m.hidden_processes.clear();
  }
}

std::vector<MachineSettings::DaxListing> dax_devices(const std::string& root) {
  std::vector<MachineSettings::DaxListing> devices;
  std::error_code none;
  for (const auto& entry : files::directory_iterator(root + "/sys/bus/dax/devices", none)) {
    MachineSettings::DaxListing device;
    device.name = entry.path().filename();
    const std::string driver = files::read_symlink(entry.path() / "driver", none).filename();
    device.mode = driver == "kmem" ? "system-ram" : driver == "device_dax" ? "devdax" : "none";
    device.bytes = read_number<uint64_t>(entry.path() / "size").value_or(0);
    devices.push_back(std::move(device));
  }
  std::sort(devices.begin(), devices.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return devices;
}

using Diagnoses = std::vector<Diagnosis>;

void good(Diagnoses& to, const std::string& what, const std::string& found) {
  to.push_back({Grade::kGood, what, found, "", ""});
}

void judge_kernel(const MachineSettings& m, Diagnoses& to) {
  int major = 0, minor = 0;
  if (std::sscanf(m.kernel.c_str(), "%d.%d", &major, &minor) == 2) {
    if (major > 6 || (major == 6 && minor >= 1))
      good(to, "kernel", m.kernel);
    else
      to.push_back({Grade::kWrong, "kernel", m.kernel, "marud needs what io_uring can do since Linux 6.1",
                    "install a kernel of Debian 12 (6.1) or newer"});
  }
  constexpr const char* kWhy = "marud's event loop is an io_uring and cannot be made without";
  const int disabled = m.io_uring.disabled.value_or(0);
  if (const auto denial = daemon::io_uring_denial(m.io_uring_code, m.io_uring))
    to.push_back({Grade::kWrong, "io_uring", denial->found,
                  std::string(kWhy) + " (" + std::strerror(m.io_uring_code) + ")", denial->advice});
  else if (const auto setting = daemon::io_uring_denial(disabled != 0 ? EPERM : 0, m.io_uring))
    to.push_back({disabled == 2 ? Grade::kWrong : Grade::kWarning, "io_uring", setting->found, kWhy, setting->advice});
  else
    good(to, "io_uring", "allowed");
}

void judge_huge_pages(const MachineSettings& m, Diagnoses& to) {
  if (m.shmem_huge_pages == "never" || m.shmem_huge_pages == "deny")
    to.push_back(
        {Grade::kNote, "huge pages for shared memory", m.shmem_huge_pages,
         "marud asks for them page by page when it formats a pool (MADV_COLLAPSE), which is enough for the control "
         "region; payload pages stay small, so reading a cold block misses the TLB more often",
         "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"});
  else if (!m.shmem_huge_pages.empty())
    good(to, "huge pages for shared memory", m.shmem_huge_pages);
  if (m.huge_pages && *m.huge_pages > 0)
    good(to, "reserved huge pages",
         std::to_string(m.free_huge_pages.value_or(0)) + " of " + std::to_string(*m.huge_pages) + " free, " +
             daemon::size_text(m.huge_page_bytes.value_or(0)) + " each");
  else
    to.push_back({Grade::kNote, "reserved huge pages", "none", "a pool with huge_pages = \"require\" cannot be made",
                  "vm.nr_hugepages, early after boot, if pools shall have them"});
}

void judge_memory(const MachineSettings& m, Diagnoses& to) {
  if (m.memory_bytes)
    good(to, "memory",
         daemon::size_text(m.available_bytes.value_or(0)) + " of " + daemon::size_text(*m.memory_bytes) + " available");
  if (m.swap_bytes && *m.swap_bytes > 0)
    to.push_back({Grade::kWarning, "swap", daemon::size_text(*m.swap_bytes),
                  "the kernel may swap a memory pool out, and a lookup then waits for a disk",
                  "swapoff, or MemorySwapMax=0 for marud's unit and the engines', or pools on huge pages or devices"});
  else
    good(to, "swap", "none");
  if (m.overcommit && *m.overcommit == 2)
    to.push_back(
        {Grade::kWarning, "overcommit", "vm.overcommit_memory = 2",
         "every client's mapping of a pool counts against the commit limit, and attaching fails when it is reached",
         "vm.overcommit_memory = 0, or a vm.overcommit_ratio that has room for each client's mapping"});
  if (m.cgroup_bytes)
    to.push_back(
        {Grade::kNote, "memory limit of this control group", daemon::size_text(*m.cgroup_bytes),
         "memory of a pool is charged to whoever touches it first: marud, when first_touch is on, or the engines",
         "a limit above the size of the pools where they are charged"});
  if (m.killed && *m.killed > 0)
    to.push_back(
        {Grade::kWarning, "processes killed for want of memory", std::to_string(*m.killed) + " since the last boot",
         "the kernel ends processes when the machine or a control group has no memory left; marud comes back with its "
         "pools, an engine starts anew",
         "journalctl -k --grep 'Killed process' names them, and the group when it was its limit"});
  if (m.shm_bytes && m.memory_bytes && *m.shm_bytes * 4 < *m.memory_bytes)
    to.push_back({Grade::kNote, "/dev/shm", daemon::size_text(*m.shm_bytes), "a file pool there cannot be larger",
                  "remount it with a larger size, or use a memory pool"});
  if (m.map_count_max && *m.map_count_max < 65530)
    to.push_back({Grade::kWarning, "mappings of a process", std::to_string(*m.map_count_max),
                  "a client maps regions one by one and fails with ENOMEM when there are too many",
                  "vm.max_map_count = 65530 or more"});
}

void judge_time(const MachineSettings& m, Diagnoses& to) {
  if (m.numa_balancing && *m.numa_balancing != 0)
    to.push_back(
        {Grade::kNote, "automatic NUMA balancing", "on",
         "the kernel unmaps pages now and then to see who uses them; each time the next access is a page fault",
         "kernel.numa_balancing = 0 where engines are bound to nodes"});
  const bool is_fast = m.clock == "tsc" || m.clock == "kvm-clock" || m.clock == "arch_sys_counter" ||
                       m.clock == "hyperv_clocksource_tsc_page";
  if (!m.clock.empty() && is_fast) good(to, "clock", m.clock);
  if (!m.clock.empty() && !is_fast)
    to.push_back(
        {Grade::kWarning, "clock", m.clock,
         "asking for the time takes a system call, and every hit asks for it: a microsecond instead of nanoseconds",
         "clocksource=tsc on the kernel's command line, if the processor's counter is stable"});
  if (m.open_files_max && *m.open_files_max < 4096)
    to.push_back({Grade::kNote, "open files of marud", std::to_string(*m.open_files_max),
                  "marud holds three descriptors for each client, and leaves connections waiting when it has no more",
                  "LimitNOFILE= in marud's unit; ulimit -n 65536 where marud is started by hand"});
}

void judge_processes(const MachineSettings& m, Diagnoses& to) {
  if (m.hidden_processes.empty())
    good(to, "processes in /proc", "shown");
  else
    to.push_back({m.shows_them_to_a_group ? Grade::kNote : Grade::kWarning, "processes in /proc",
                  "hidepid=" + m.hidden_processes + (m.shows_them_to_a_group ? ", shown to a group" : ""),
                  "marud looks its clients up there, and refuses those that it does not see",
                  "the group of the mount option gid for marud (SupplementaryGroups= in its unit): HIDDEN PROCESSES in "
                  "marud(8)"});
}

void judge_devices(const MachineSettings& m, Diagnoses& to) {
  if (m.dax_devices.empty()) good(to, "DAX devices", "none");
  for (const MachineSettings::DaxListing& device : m.dax_devices) {
    const std::string found = device.mode + ", " + daemon::size_text(device.bytes);
    if (device.mode == "devdax")
      good(to, device.name, found);
    else
      to.push_back({Grade::kNote, device.name, found,
                    device.mode == "system-ram" ? "the kernel uses it as ordinary memory; no pool can lie on it"
                                                : "no driver has it; no pool can lie on it",
                    "daxctl reconfigure-device --mode=devdax " + device.name + ", if it shall hold a pool"});
  }
}

void judge_pool(const json& pool, Diagnoses& to) {
  const std::string what = "pool \"" + pool.value("name", std::string()) + "\"",
                    condition = pool.value("condition", std::string());
  const bool is_draining = condition == "draining", is_leaving = condition == "leaving";
  if (condition != "serving" && !is_draining && !is_leaving) {
    const bool is_wrong = condition == "fenced" || condition == "unavailable";
    to.push_back(
        {is_wrong ? Grade::kWrong : Grade::kWarning, what, condition,
         pool.value("reason", std::string("it does not serve yet")),
         condition == "fenced" ? "the log says what happened; marud has to be restarted when its memory is back"
         : condition == "unavailable"
             ? "mend that; marud tries it again by itself where that can help, and at once with marudctl device "
               "add " +
                   pool.value("name", std::string())
             : "wait for the clients that hold its memory, or see the log"});
    return;
  }
  const uint64_t bytes = number(pool, "pages") * number(pool, "page_bytes");
  const uint64_t percent = bytes == 0 ? 0 : number(pool, "in_use_bytes") * 100 / bytes;
  const std::string use = condition + ", " + std::to_string(percent) + " % of " + daemon::size_text(bytes) + " in use";
  if (is_draining)
    to.push_back({Grade::kNote, what, use, "an administrator had it drained: it gives no memory, and reads go on",
                  "marudctl device list shows how far that is; marudctl device cancel ends it"});
  else if (is_leaving)
    to.push_back({Grade::kNote, what, use, "an administrator has it removed: its clients are asked to leave",
                  "marudctl clients shows who is still there; marudctl device cancel ends it"});
  else
    good(to, what, use);
  const json counters = pool.value("counters", json::object());
  struct Found {
    const char *one, *many;  // behind the number
  };
  const auto complain = [&](Grade grade, uint64_t count, Found found, const char* why, const char* advice) {
    if (count > 0)
      to.push_back({grade, what, std::to_string(count) + (count == 1 ? found.one : found.many), why, advice});
  };
  complain(Grade::kWarning, number(pool, "pins_overdue"), {" pin is overdue", " pins are overdue"},
           "their blocks cannot be evicted, nor any block above them", "marudctl pins --overdue shows who holds them");
  complain(
      Grade::kWarning, number(pool.value("lanes", json::object()), "unproven"),
      {" lane is held by a process that marud cannot look for",
       " lanes are held by processes that marud cannot look for"},
      "its pid is of another pid namespace: if that process has ended, nothing tells marud, and what it held stays",
      "marudctl clients shows them as unproven; marudctl client forget LANE when such a process is gone for certain");
  complain(Grade::kWarning, number(pool, "refused_rents"),
           {" request for memory was refused", " requests for memory were refused"},
           "everything was pinned, or limits were reached",
           "a larger pool, or marudctl pins, clients and quota list to see who holds it");
  complain(Grade::kWarning, number(counters, "pin_full"), {" pin was refused", " pins were refused"},
           "a client held all the pins that a lane has",
           "a larger \"pins\" for the pool (it is formatted anew), or release views sooner");
  complain(Grade::kNote, number(counters, "registry_full"),
           {" store was refused with EXFULL", " stores were refused with EXFULL"},
           "the registry was full at the key and no block there could go, or no cell was free for a long key",
           "key_inline_bytes of the length of the longest usual key, when the pool is formatted next");
  complain(Grade::kWrong, number(counters, "checksum_errors"),
           {" payload did not match its checksum", " payloads did not match their checksum"},
           "memory was damaged, or written after it was published",
           "look for memory errors (rasdaemon, ipmitool), then for a client that writes into its views");
  if (const std::string full = text(pool, "full_because"); !full.empty())
    to.push_back({Grade::kWrong, what, full,
                  "the pool gets no further region, and stores are refused that would need one",
                  "make room in that file system; marud tries it again every second"});
  if (const std::string why = text(pool, "unreserved_because"); !why.empty())
    to.push_back(
        {Grade::kWarning, what, "its file system has not promised room for all of it: " + why,
         "when others have taken the room, stores are refused, or a file system that writes elsewhere ends the "
         "engine that writes",
         "reserve = true for the pool, on a file system that can (tmpfs, ext4, XFS), with room for all of it"});
  const json tenants = pool.value("tenants", json::object());
  complain(Grade::kWarning, number(tenants, "refused_without_place"),
           {" store of a tenant without a place was refused", " stores of tenants without a place were refused"},
           "a hard limit holds for them, and the pool can count so many tenants and no more",
           "delete the blocks of tenants that are not needed, or a larger tenants_max (the pool is formatted anew)");
  if (tenants.contains("others") && number(tenants, "refused_without_place") == 0)
    to.push_back({Grade::kNote, what, "more tenants than its table has places (tenants_max)",
                  "some are counted together: no soft limit holds for them, and with a hard one they would be refused",
                  "a larger tenants_max, when the pool is formatted next"});
  if (const auto states = pool.find("page_states"); states != pool.end())
    complain(Grade::kWarning, number(*states, "poisoned"), {" page is poisoned", " pages are poisoned"},
             "the machine reported bad memory there; they are not used again", "plan to replace the module");
  if (const auto hosts = pool.find("hosts"); hosts != pool.end() && hosts->is_object())
    complain(Grade::kWarning, number(*hosts, "suspect"), {" of its hosts is suspect", " of its hosts are suspect"},
             "their heartbeats are late, and nothing that they hold is used again without proof of their death",
             "marudctl host list names them; marudctl host declare-dead when one is off for certain");
  if (const auto audit = pool.find("audit"); audit != pool.end() && audit->is_object())
    complain(Grade::kWrong, number(*audit, "found"), {" violation in the last audit", " violations in the last audit"},
             "the control region is damaged", "marudctl check, and marudctl support-dump for a report");
}

// Compares the memory that pools may take in the end with the machine's memory. Shared memory already counts the pages that
// they took, beside the pages of other programs. So the pools will take at least the rest.
void judge_pools_memory(const json& status, const MachineSettings& m, Diagnoses& to) {
  uint64_t bytes = 0, pools = 0;
  for (const json& pool : status.value("pools", json::array())) {
    if (!is_taken_when_touched(pool)) continue;
    bytes += number(pool, "pool_bytes");
    ++pools;
  }
  if (pools == 0 || !m.memory_bytes) return;
  const std::string what = "memory for pools";
  const std::string found = daemon::size_text(bytes) + " in all, the machine has " + daemon::size_text(*m.memory_bytes);
  const uint64_t shared = m.shared_bytes.value_or(0), to_come = bytes > shared ? bytes - shared : 0;
  if (bytes > *m.memory_bytes)
    to.push_back({Grade::kWrong, what, found,
                  "memory is taken when it is first touched: before the pools are full the kernel swaps, then kills",
                  "smaller pools"});
  else if (m.available_bytes && to_come > *m.available_bytes)
    to.push_back({Grade::kWarning, what,
                  found + ", and " + daemon::size_text(*m.available_bytes) + " of it is available",
                  "the pools may still take " + daemon::size_text(to_come) +
                      ", for memory is taken when it is first touched; then the kernel swaps, or kills",
                  "smaller pools, or end what else takes memory"});
  else
    good(to, what, found);
}

void judge_state_directory(const json& status, const MachineSettings& m, Diagnoses& to) {
  constexpr uint64_t kEnoughBytes = 16u << 20;
  const std::string path = text(status, "state_dir");
  if (path.empty() || !m.state_free_bytes) return;
  const std::string found = daemon::size_text(*m.state_free_bytes) + " free in " + path;
  if (*m.state_free_bytes >= kEnoughBytes) return good(to, "state directory", found);
  to.push_back({Grade::kWarning, "state directory", found,
                "limits, drains and added pools are refused when they cannot be written down, and a memory pool is not "
                "known again after a restart",
                "make room on that file system, or state_dir in marud's configuration on another one"});
}

}  // namespace

bool is_taken_when_touched(const json& pool) {
  const std::string medium = text(pool, "medium");
  if (!medium.empty()) return medium == "memory" || medium == "tmpfs";
  const std::string device = text(pool, "device");  // an older marud
  return device == "memory" || device.starts_with("/dev/shm/");
}

MachineSettings read_machine(const std::string& root, const json& status) {
  MachineSettings m;
  m.kernel = read(root + "/proc/sys/kernel/osrelease");
  m.io_uring = daemon::read_io_uring_settings(root);
  m.shmem_huge_pages = chosen_word(read(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  const std::string memory = "\n" + read(root + "/proc/meminfo");
  m.huge_pages = line_of(memory, "HugePages_Total");
  m.free_huge_pages = line_of(memory, "HugePages_Free");
  m.huge_page_bytes = line_of(memory, "Hugepagesize");
  m.memory_bytes = line_of(memory, "MemTotal");
  m.available_bytes = line_of(memory, "MemAvailable");
  m.swap_bytes = line_of(memory, "SwapTotal");
  m.overcommit = read_number<int>(root + "/proc/sys/vm/overcommit_memory");
  m.map_count_max = read_number<uint64_t>(root + "/proc/sys/vm/max_map_count");
  read_hiding(read(root + "/proc/mounts"), m);
  m.numa_balancing = read_number<int>(root + "/proc/sys/kernel/numa_balancing");
  m.clock = read(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  m.shared_bytes = line_of(memory, "Shmem");
  const std::string limits = read(root + "/proc/" + std::to_string(number(status, "pid")) + "/limits");
  if (const size_t at = limits.find("Max open files"); at != std::string::npos)
    m.open_files_max = std::strtoull(limits.c_str() + at + std::string("Max open files").size(), nullptr, 10);
  if (const auto limit = daemon::memory_limit(root)) m.cgroup_bytes = limit->bytes;
  m.killed = count_of(read(root + "/proc/vmstat"), "oom_kill");
  m.dax_devices = dax_devices(root);
  struct statvfs shm = {};
  if (::statvfs((root + "/dev/shm").c_str(), &shm) == 0) m.shm_bytes = uint64_t(shm.f_blocks) * shm.f_frsize;
  struct statvfs state = {};
  if (const std::string path = text(status, "state_dir");
      !path.empty() && ::statvfs((root + path).c_str(), &state) == 0)
    m.state_free_bytes = uint64_t(state.f_bavail) * state.f_frsize;
  return m;
}

Diagnoses judge(const MachineSettings& machine) {
  Diagnoses diagnoses;
  judge_kernel(machine, diagnoses);
  judge_huge_pages(machine, diagnoses);
  judge_memory(machine, diagnoses);
  judge_time(machine, diagnoses);
  judge_processes(machine, diagnoses);
  judge_devices(machine, diagnoses);
  return diagnoses;
}

Diagnoses judge_marud(const json& status, const std::string& version, const MachineSettings& machine) {
  Diagnoses diagnoses;
  const std::string theirs = status.value("version", std::string());
  if (theirs == version)
    good(diagnoses, "marud", theirs + ", process " + std::to_string(number(status, "pid")));
  else
    diagnoses.push_back({Grade::kWarning, "marud", theirs + ", while marudctl is " + version,
                         "an upgrade has not been finished", "systemctl restart marud: pools and clients go on"});
  if (const std::string trouble = status.value("socket_trouble", std::string()); !trouble.empty())
    diagnoses.push_back({Grade::kWrong, "marud's socket", trouble,
                         "attached clients go on, and no other client can attach",
                         "mend that: marud tries it again at least once a minute"});
  if (const std::string trouble = status.value("http_trouble", std::string()); !trouble.empty())
    diagnoses.push_back(
        {Grade::kWarning, "HTTP", trouble,
         "not everybody who should be is answered there: metrics, health, the page; pools and clients go on",
         "mend that: a socket is tried again at least once a minute"});
  judge_pools_memory(status, machine, diagnoses);
  judge_state_directory(status, machine, diagnoses);
  for (const json& pool : status.value("pools", json::array())) judge_pool(pool, diagnoses);
  return diagnoses;
}

}  // namespace maru::marudctl
