// Another process of a test (main.cc): started, asked by its input, heard by its output.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "tests/support/child_process.h"

#include <array>
#include <fcntl.h>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace maru::test {

class Partner {
 public:
  Partner(const std::string& action, const std::string& socket, uint32_t first, size_t count) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    const FileDescriptor their_input(in[0]), their_output(out[1]);
    input_ = FileDescriptor(in[1]);
    output_ = FileDescriptor(out[0]);
    const std::vector<std::string> command = {own_program(),
                                              "--role",
                                              action,
                                              socket,
                                              std::to_string(first),
                                              std::to_string(count),
                                              std::to_string(in[0]),
                                              std::to_string(out[1])};
    process_ = std::make_unique<ChildProcess>(command, "", std::vector<int>{in[0], out[1]});
  }

  // A line of its output; throws when it ends instead.
  std::string line() {
    std::string text;
    char byte;
    while (::read(output_.get(), &byte, 1) == 1) {
      if (byte == '\n') return text;
      text += byte;
    }
    throw std::runtime_error("the other process ended after \"" + text + "\"");
  }
  void go() {
    if (::write(input_.get(), "g", 1) != 1) throw std::runtime_error("write");
  }
  // Their number, and the bytes.
  void send(std::span<const std::byte> bytes) {
    const uint64_t count = bytes.size();
    if (::write(input_.get(), &count, sizeof(count)) != sizeof(count) ||
        ::write(input_.get(), bytes.data(), bytes.size()) != ssize_t(bytes.size()))
      throw std::runtime_error("write");
  }
  // Lets it end, which it does well or not.
  bool ends_well() {
    input_ = FileDescriptor();
    const auto ended = process_->wait();
    return ended && !ended->by_signal && ended->code == 0;
  }
  void kill() { process_->kill(); }

 private:
  FileDescriptor input_, output_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace maru::test
