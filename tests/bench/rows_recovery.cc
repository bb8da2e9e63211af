// Coming and going: attaching, marud killed and restarted, a client killed that holds many pins.
#include "maru/format/control_region.h"
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/suite.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <iterator>
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

// Whether a client has a lane, as the bits in the pool's file say. marud clears a lane's bit last of all, when its pins have
// ended, the pass over the pages is over, and what it had rented is somebody else's or nobody's.
bool is_any_lane_in_use(int pool) {
  format::Header header;
  uint64_t words[sizeof(format::LaneBitmap) / sizeof(uint64_t)];
  if (pread(pool, &header, sizeof header, 0) != ssize_t(sizeof header))
    throw std::runtime_error("read the pool's file");
  const uint64_t offset = header.sections[format::kSectionLaneIdentities].offset;
  if (pread(pool, words, sizeof words, off_t(offset)) != ssize_t(sizeof words))
    throw std::runtime_error("read the pool's file");
  return std::any_of(std::begin(words), std::end(words), [](uint64_t word) { return word != 0; });
}

void wait_until_all_is_free(int pool) {
  const uint64_t deadline_ns = now_ns() + 60'000'000'000ull;
  while (is_any_lane_in_use(pool)) {
    if (now_ns() > deadline_ns) throw std::runtime_error("a client that is gone is never reclaimed");
    usleep(50);
  }
}

// Until all is free that a killed client had: only then its lane may be given out again.
double reclaim_once(const MarudProcess& marud, uint64_t pins) {
  const int pool = open((marud.directory() + "/pool").c_str(), O_RDONLY | O_CLOEXEC);
  if (pool < 0) throw std::runtime_error("cannot open the pool's file");
  wait_until_all_is_free(pool);  // in a large pool what a client had is taken back after its detaching was answered
  const auto holder = start_role({"holding", marud.socket_path(), "0", std::to_string(pins)});
  if (!is_any_lane_in_use(pool)) throw std::runtime_error("the client that holds the pins has no lane");
  Stopwatch watch;
  watch.start();
  holder->signal(SIGKILL);
  wait_until_all_is_free(pool);
  watch.stop();
  holder->kill_now();
  close(pool);
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
