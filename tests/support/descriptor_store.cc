#include "tests/support/descriptor_store.h"

#include "libmaru/wire/passed_descriptors.h"
#include "tests/support/marud_process.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::test {

DescriptorStore::DescriptorStore()
    : marud_(marud_program()),
      program_(directory_.file("marud")),
      socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = directory_.file("notify");
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    throw std::runtime_error("cannot bind " + path);
  write_program();
  ::setenv("MARU_TEST_MARUD", program_.c_str(), 1);
}

DescriptorStore::~DescriptorStore() { ::setenv("MARU_TEST_MARUD", marud_.c_str(), 1); }

// A shell becomes marud, because LISTEN_PID must be the process that reads it. One that knows descriptors above 9.
void DescriptorStore::write_program() {
  std::string names, moved;
  int number = 3;
  for (const auto& [name, fd] : kept_) {
    names += (names.empty() ? "" : ":") + name;
    moved += " " + std::to_string(number++) + "<&" + std::to_string(fd.get());
  }
  std::ofstream(program_) << "#!/bin/bash\nexport NOTIFY_SOCKET='" << directory_.file("notify")
                          << "' LISTEN_PID=$$ LISTEN_FDS=" << kept_.size() << " LISTEN_FDNAMES='" << names
                          << "'\nexec '" << marud_ << "' \"$@\"" << moved << "\n";
  std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
}

// As systemd sees it: the same file opened twice is two descriptors. Where the kernel does not compare, it is one.
bool DescriptorStore::is_kept(int fd) const {
  constexpr int kKcmpFile = 0;  // KCMP_FILE
  const auto same = [&](int other) {
    const long difference = ::syscall(SYS_kcmp, ::getpid(), ::getpid(), kKcmpFile, fd, other);
    if (difference >= 0) return difference == 0;
    struct stat one = {}, two = {};
    return ::fstat(fd, &one) == 0 && ::fstat(other, &two) == 0 && one.st_ino == two.st_ino && one.st_dev == two.st_dev;
  };
  return std::any_of(kept_.begin(), kept_.end(), [&](const auto& entry) { return same(entry.second.get()); });
}

void DescriptorStore::read_messages() {
  for (;;) {  // ends: nobody sends without end
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {text, sizeof(text)};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) break;
    auto descriptors = wire::take_descriptors(message);
    const std::string said(text, size_t(got));
    const size_t at = said.find("FDNAME=");
    if (at == std::string::npos) continue;
    const std::string name = said.substr(at + 7, said.find('\n', at) - at - 7);
    if (said.find("FDSTOREREMOVE=1") != std::string::npos) {
      kept_.erase(name);
    } else if (descriptors.size() == 1 && !is_kept(descriptors.front().get())) {
      // Far from the numbers that it gets; the program inherits it.
      kept_.emplace(name, ::fcntl(descriptors.front().get(), F_DUPFD, 200));
    }
  }
  write_program();
}

std::vector<std::string> DescriptorStore::names() const {
  std::vector<std::string> all;
  for (const auto& [name, fd] : kept_) all.push_back(name);
  return all;
}

void DescriptorStore::lose(const std::string& name) {
  kept_.erase(name);
  write_program();
}

}  // namespace maru::test
