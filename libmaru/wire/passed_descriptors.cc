#include "libmaru/wire/passed_descriptors.h"

#include <cstring>
#include <unistd.h>

namespace maru::wire {

void attach_descriptors(msghdr& message, DescriptorRoom& room, int fd, int second, int third) {
  const int fds[3] = {fd, second, third};
  const size_t bytes = (second < 0 ? 1 : third < 0 ? 2 : 3) * sizeof(int);
  message.msg_control = room.bytes;
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(rights), fds, bytes);
}

std::vector<FileDescriptor> take_descriptors(msghdr& message) {
  std::vector<FileDescriptor> taken;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const auto each = [&](auto&& take) {
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        take(fd);
      }
    };
    try {
      taken.reserve(taken.size() + count);
    } catch (...) {
      each([](int fd) { ::close(fd); });  // or no object would own them
      throw;
    }
    each([&](int fd) { taken.emplace_back(fd); });
  }
  return taken;
}

}  // namespace maru::wire
