// The facts that marudctl doctor judges: the machine's settings, read from /proc and /sys, and marud's own account.
// Reading and judging are apart, so that each judgement can be tried on machines that are not at hand.
#pragma once

#include "daemon/system/io_uring_denial.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace maru::marudctl {

enum class Grade : uint8_t { kGood, kNote, kWarning, kWrong };

struct Diagnosis {
  Grade grade;
  std::string what;    // "huge pages for shared memory"
  std::string found;   // "never"
  std::string why;     // its effect on marud; empty when it is good
  std::string advice;  // the remedy; empty when none is needed
};

// Every value is nothing where the machine does not say.
struct MachineSettings {
  std::string kernel;                // "6.1.0-18-amd64"
  daemon::IoUringSettings io_uring;  // of this process
  int io_uring_code = 0;             // the errno with which the kernel denies it an io_uring; 0: none, or not tried
  std::string shmem_huge_pages;      // the chosen word of transparent_hugepage/shmem_enabled
  std::optional<uint64_t> huge_pages, free_huge_pages, huge_page_bytes;
  std::optional<uint64_t> memory_bytes, available_bytes, shared_bytes, swap_bytes;
  std::optional<int> overcommit;  // vm.overcommit_memory
  std::optional<uint64_t> map_count_max;
  std::optional<uint64_t> open_files_max;    // of marud
  std::optional<uint64_t> state_free_bytes;  // of the file system that marud's state directory is on
  std::string hidden_processes;              // the value of the option hidepid of /proc; "" where nothing is hidden
  bool shows_them_to_a_group = false;        // by its option gid
  std::optional<int> numa_balancing;
  std::string clock;                     // the clock source
  std::optional<uint64_t> shm_bytes;     // of /dev/shm
  std::optional<uint64_t> cgroup_bytes;  // memory.max of this process's group
  std::optional<uint64_t> killed;        // by the kernel, for want of memory, since the last boot
  struct DaxListing {
    std::string name, mode;  // "dax0.0"; "devdax", "system-ram", "none"
    uint64_t bytes = 0;
  };
  std::vector<DaxListing> dax_devices;
};

// Reads files below `root` alone ("" for this machine; a folder that looks like one in tests). `status` is marud's reply, which
// says where marud is; an empty object when there is none.
MachineSettings read_machine(const std::string& root, const nlohmann::json& status);

// Of a pool in marud's reply: memory that is taken page by page as it is first touched, up to the size of the pool. Huge pages
// and devices are there beforehand, or the pool is not.
bool is_taken_when_touched(const nlohmann::json& pool);

std::vector<Diagnosis> judge(const MachineSettings& machine);
// `version`: of this program.
std::vector<Diagnosis> judge_marud(const nlohmann::json& status, const std::string& version,
                                   const MachineSettings& machine);

}  // namespace maru::marudctl
