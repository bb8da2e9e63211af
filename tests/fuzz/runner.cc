// Drives a fuzz target without libFuzzer:
//   NAME                        MARU_FUZZ_RUNS mutated inputs (5,000 by default) of seed MARU_SEED (1 by default)
//   NAME --one SEED RUN FILE    writes the input of this run of this seed to FILE and tries it
//   NAME --first FOLDER         writes the inputs to begin with into FOLDER: libFuzzer's first corpus
//   NAME FILE...                tries files, as libFuzzer's programs do
// The target runs in a child process, so that a crash or a hang is reported with the run that did it.
#include "tests/fuzz/mutator.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using maru::fuzz::Input;
using maru::fuzz::Mutator;

// One input takes far less than a second; this long is a loop without end.
constexpr int kHangSeconds = 60;

int try_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path);
    return 2;
  }
  const Input input((std::istreambuf_iterator<char>(file)), {});
  return LLVMFuzzerTestOneInput(input.data(), input.size());
}

bool write_file(const std::string& path, const Input& input) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(input.data()), std::streamsize(input.size()));
  if (file.flush()) return true;
  std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return false;
}

int write_first(const std::string& folder) {
  size_t written = 0;
  for (const Input& input : maru::fuzz::first_inputs())
    if (!write_file(folder + "/first-" + std::to_string(written++), input)) return 2;
  return 0;
}

int try_one(uint64_t seed, uint64_t run, const char* path) {
  Mutator mutator(maru::fuzz::first_inputs(), seed);
  Input input;
  for (uint64_t i = 0; i <= run; ++i) input = mutator.next();
  if (!write_file(path, input)) return 2;
  return LLVMFuzzerTestOneInput(input.data(), input.size());
}

[[noreturn]] void run_all(uint64_t seed, uint64_t runs, std::atomic<uint64_t>* done) {
  for (const Input& input : maru::fuzz::first_inputs()) LLVMFuzzerTestOneInput(input.data(), input.size());
  Mutator mutator(maru::fuzz::first_inputs(), seed);
  for (uint64_t run = 0; run < runs; ++run) {
    const Input input = mutator.next();
    LLVMFuzzerTestOneInput(input.data(), input.size());
    done->store(run + 1);
  }
  std::exit(0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 5 && std::strcmp(arguments[1], "--one") == 0)
    return try_one(std::strtoull(arguments[2], nullptr, 0), std::strtoull(arguments[3], nullptr, 0), arguments[4]);
  if (count == 3 && std::strcmp(arguments[1], "--first") == 0) return write_first(arguments[2]);
  if (count > 1) {
    for (int i = 1; i < count; ++i)
      if (const int result = try_file(arguments[i]); result != 0) return result;
    return 0;
  }
  const uint64_t seed = maru::test::number_from_environment("MARU_SEED", 1);
  const uint64_t runs = maru::test::number_from_environment("MARU_FUZZ_RUNS", 5000);
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  auto* done = new (shared) std::atomic<uint64_t>(0);
  const pid_t child = ::fork();
  if (child < 0) return 2;
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_all(seed, runs, done);
  }
  int status = 0;
  uint64_t seen = 0;
  int still_seconds = 0;
  for (int polls = 0;; ++polls) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    const timespec pause = {0, 20'000'000};
    ::nanosleep(&pause, nullptr);
    if (polls % 50 != 49) continue;
    still_seconds = done->load() == seen ? still_seconds + 1 : 0;
    seen = done->load();
    if (still_seconds < kHangSeconds) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    std::printf("seed %llu run %llu does not end\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(seen));
    return 1;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    std::printf("seed %llu: %llu inputs\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(runs));
    return 0;
  }
  std::printf("seed %llu run %llu ended with %s %d; again: %s --one %llu %llu FILE\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(done->load()),
              WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
              arguments[0], static_cast<unsigned long long>(seed), static_cast<unsigned long long>(done->load()));
  return 1;
}
