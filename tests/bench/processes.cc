#include "tests/bench/processes.h"

#include "tests/bench/clock.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::bench {

TemporaryDirectory::TemporaryDirectory() {
  std::string path = (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + std::string("/maru-bench-XXXXXX");
  if (!mkdtemp(path.data())) throw std::runtime_error("cannot make a temporary directory");
  path_ = path;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Child::Child(const std::vector<std::string>& arguments, const std::string& log) {
  int input[2], output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
    sched_setaffinity(0, sizeof all, &all);
    dup2(input[0], STDIN_FILENO);
    if (log.empty()) {
      dup2(output[1], STDOUT_FILENO);
    } else {
      const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(input[0]);
  close(output[1]);
  to_child_ = input[1];
  from_child_ = output[0];
}

Child::~Child() { kill_now(); }

void Child::close_pipes() {
  if (to_child_ >= 0) close(to_child_);
  if (from_child_ >= 0) close(from_child_);
  to_child_ = from_child_ = -1;
}

void Child::send_line(const std::string& line) {
  const std::string text = line + "\n";
  if (write(to_child_, text.data(), text.size()) != ssize_t(text.size())) throw std::runtime_error("child is gone");
}

std::string Child::read_line() {
  for (;;) {
    const size_t end = buffered_.find('\n');
    if (end != std::string::npos) {
      const std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t count = read(from_child_, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw std::runtime_error("a process of the suite ended early");
    buffered_.append(bytes, size_t(count));
  }
}

void Child::signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

void Child::kill_now() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }
  close_pipes();
}

void Child::end(bool terminate) {
  if (pid_ <= 0) return;
  if (terminate) kill(pid_, SIGTERM);
  close_pipes();
  const uint64_t deadline_ns = now_ns() + 10'000'000'000ull;
  while (now_ns() < deadline_ns) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return;
    }
    usleep(1000);
  }
  kill_now();
}

bool Child::running() {
  if (pid_ <= 0) return false;
  if (waitpid(pid_, nullptr, WNOHANG) != pid_) return true;
  pid_ = -1;
  return false;
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string directories = std::string(path ? path : "") + ":/usr/bin:/usr/sbin:/usr/local/bin";
  for (size_t start = 0; start <= directories.size();) {
    const size_t end = std::min(directories.find(':', start), directories.size());
    const std::string candidate = directories.substr(start, end - start) + "/" + name;
    if (end > start && access(candidate.c_str(), X_OK) == 0) return candidate;
    start = end + 1;
  }
  return "";
}

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::string tail_of(const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return text.size() > 2000 ? text.substr(text.size() - 2000) : text;
}

uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  }
  return 0;
}

int connect_stream(const std::string& path, unsigned timeout_ms, Child& child) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw std::runtime_error("socket path too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const uint64_t deadline_ns = now_ns() + timeout_ms * 1'000'000ull;
  while (child.running() && now_ns() < deadline_ns) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    close(fd);
    usleep(2000);
  }
  return -1;
}

}  // namespace maru::bench
