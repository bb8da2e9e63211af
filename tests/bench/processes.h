// Processes and files the suite starts: all private, all ended by their own id.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::bench {

// A directory of mode 0700 on tmpfs, removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A child process with pipes at its standard input and output (unless a log file takes both outputs). It dies with the
// suite, and at the latest in the destructor.
class Child {
 public:
  // An empty log keeps the pipe. Throws when the program cannot be started.
  explicit Child(const std::vector<std::string>& arguments, const std::string& log = "");
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void send_line(const std::string& line);
  // Throws when the child ended instead.
  std::string read_line();
  void signal(int number);
  // SIGKILL and reap.
  void kill_now();
  // Closes the child's input and reaps it; SIGTERM first when `terminate`.
  void end(bool terminate);
  bool running();

 private:
  void close_pipes();
  pid_t pid_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
  std::string buffered_;
};

// The path of a program found through PATH, or empty.
std::string find_program(const std::string& name);
// The running executable.
std::string own_path();
// The last lines of a file, for error messages.
std::string tail_of(const std::string& path);
uint64_t available_memory_bytes();
// Connects to a Unix stream socket, trying until `timeout_ms`; -1 when that ends or `child` has ended.
int connect_stream(const std::string& path, unsigned timeout_ms, Child& child);

}  // namespace maru::bench
