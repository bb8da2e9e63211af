// A pipe in the place of a file that marud reads, or may read: whoever opens it stands still until it is told.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "tests/support/wait_until.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace maru::test {

class SlowFile {
 public:
  explicit SlowFile(std::string file) : file_(std::move(file)) {
    std::ifstream(file_) >> value_;
    std::filesystem::remove(file_);
    if (::mkfifo(file_.c_str(), 0600) != 0) throw std::runtime_error("cannot make a pipe");
  }
  // Waits until somebody stands still there.
  bool is_reached() {
    return wait_until([&] {
      if (!pipe_.is_open()) pipe_.reset(::open(file_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
      return pipe_.is_open();
    });
  }
  // Later readers find an ordinary file again, or none if there was none.
  void end() {
    std::filesystem::remove(file_);
    if (!value_.empty()) std::ofstream(file_) << value_ << "\n";
  }
  // And whoever stands still gets the same answer.
  void go_on() {
    end();
    const std::string line = value_.empty() ? "" : value_ + "\n";
    EXPECT_EQ(::write(pipe_.get(), line.data(), line.size()), ssize_t(line.size()));
    pipe_.reset();
  }

 private:
  std::string file_, value_;
  FileDescriptor pipe_;
};

}  // namespace maru::test
