// Coming and going: attaching, marud killed and restarted, a client killed that holds many pins.
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/suite.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace maru::bench {

namespace {

double attach_once(const std::string& socket_path, uint64_t count) {
  Stopwatch watch;
  for (uint64_t i = 0; i < count; ++i) {
    maru_client* client = nullptr;
    watch.start();
    must(try_attach(socket_path, 0, &client), "attach");
    watch.stop();
    maru_detach(client);
  }
  return watch.per(count);
}

// A descriptor goes through a Unix socket and is mapped.
double map_passed_descriptor(uint64_t bytes, uint64_t count) {
  const int memory = memfd_create("bench-attach", MFD_CLOEXEC);
  int pair[2];
  if (memory < 0 || ftruncate(memory, off_t(bytes)) != 0 ||
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    throw std::runtime_error("descriptors for the attach floor");
  }
  Stopwatch watch;
  for (uint64_t i = 0; i < count; ++i) {
    char byte = 0;
    iovec part = {&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory, sizeof memory);
    watch.start();
    if (sendmsg(pair[0], &message, 0) != 1 || recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) != 1) {
      throw std::runtime_error("passing a descriptor");
    }
    int received = -1;
    std::memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, received, 0);
    watch.stop();
    munmap(mapped, bytes);
    close(received);
  }
  close(pair[0]);
  close(pair[1]);
  close(memory);
  return watch.per(count);
}

double restart_once(MarudProcess& marud) {
  marud.kill_now();
  Stopwatch watch;
  watch.start();
  marud.start();
  maru_client* client = nullptr;
  const uint64_t deadline_ns = now_ns() + 60'000'000'000ull;
  int result;
  while ((result = try_attach(marud.socket_path(), 0, &client)) != 0) {
    if (now_ns() > deadline_ns) throw std::runtime_error("marud did not come back:\n" + marud.log());
    usleep(200);
  }
  watch.stop();
  maru_detach(client);
  return watch.per(1);
}

double read_once(const std::string& path, uint64_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error("cannot open " + path);
  std::vector<char> chunk(1 << 20);
  Stopwatch watch;
  watch.start();
  for (uint64_t offset = 0; offset < bytes; offset += chunk.size()) {
    if (pread(fd, chunk.data(), chunk.size(), off_t(offset)) < 0) break;
    keep(chunk[0]);
  }
  watch.stop();
  close(fd);
  return watch.per(1);
}

// Until marud says that the process has no lane and that nobody holds a pin.
double reclaim_once(const MarudProcess& marud, uint64_t pins) {
  const auto holder = start_role({"holding", marud.socket_path(), "0", std::to_string(pins)});
  const std::string pid = std::to_string(holder->pid());
  if (marud.ask("{\"command\":\"clients\"}").find(pid) == std::string::npos) {
    throw std::runtime_error("marud does not list the client that holds the pins");
  }
  Stopwatch watch;
  watch.start();
  holder->signal(SIGKILL);
  const uint64_t deadline_ns = now_ns() + 60'000'000'000ull;
  while (marud.ask("{\"command\":\"clients\"}").find(pid) != std::string::npos) {
    if (now_ns() > deadline_ns) throw std::runtime_error("the dead client is never reclaimed");
  }
  watch.stop();
  holder->kill_now();
  return watch.per(1);
}

double reap_once(uint64_t bytes) {
  const auto child = start_role({"mapping", std::to_string(bytes)});
  Stopwatch watch;
  watch.start();
  child->kill_now();
  watch.stop();
  return watch.per(1);
}

}  // namespace

void recovery_rows(Suite& suite) {
  PoolShape shape;
  shape.pages = suite.quick() ? 128 << 10 : 1'000'000;
  shape.pins_max = 131'072;
  shape.lanes = 32;
  shape.in_file = true;
  suite.progress("filling a file pool of " + std::to_string(shape.pages) + " pages");
  MarudProcess marud(suite.options().marud, shape);
  Facts facts;
  uint64_t control_bytes = 0, blocks = 0;
  {
    const Client client(marud.socket_path(), 16);
    blocks = std::min(shape.pages, client.geometry().pages - 64);
    store_roots(client, 0, blocks);
    facts = facts_of(client.geometry(), blocks);
    control_bytes = client.geometry().control_bytes;
  }
  facts.note = "file on tmpfs";
  if (suite.wants("attach_1m_pages")) {
    const uint64_t count = suite.operations(32);
    suite.measure("attach_1m_pages",
                  {{"value", [&] { return attach_once(marud.socket_path(), count); }},
                   {"floor", [&] { return map_passed_descriptor(control_bytes, count); }}},
                  facts);
  }
  if (suite.wants("reclaim_100k_pins")) {
    const uint64_t pins = suite.quick() ? 20'000 : 100'000;
    Facts own = facts;
    own.note += ", " + std::to_string(pins) + " pins";
    suite.measure(
        "reclaim_100k_pins",
        {{"value", [&] { return reclaim_once(marud, pins); }}, {"floor", [&] { return reap_once(pins * 64); }}}, own);
  }
  if (suite.wants("restart_1m_blocks")) {
    suite.measure("restart_1m_blocks",
                  {{"value", [&] { return restart_once(marud); }},
                   {"floor", [&] { return read_once(marud.directory() + "/pool", control_bytes); }}},
                  facts);
  }
}

}  // namespace maru::bench
