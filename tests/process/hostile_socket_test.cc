// Clients that speak nonsense, too much, or not at all: marud goes on, the others are served, and whoever misbehaved is
// dropped with a line in the log that says why.
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/roles.h"
#include "tests/support/marud_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::test {
namespace {

using wire::Type;

class HostileSocket : public ::testing::Test {
 protected:
  HostileSocket() { EXPECT_EQ(client_.store("k", "text"), 0); }
  ~HostileSocket() override { expect_service(); }

  FileDescriptor connect() {
    auto socket = wire::connect_to(marud_.socket_path());
    EXPECT_TRUE(socket) << socket.error().text();
    return socket ? std::move(*socket) : FileDescriptor();
  }
  // The client that was there before, and one that comes now.
  void expect_service() {
    maru_buffer buffer;
    EXPECT_EQ(maru_alloc(client_, 100, &buffer), 0);
    EXPECT_EQ(maru_abort(client_, &buffer), 0);
    EXPECT_EQ(client_.remove_tree("nothing of this name"), -ENOENT) << "marud answers the one who was there";
    EXPECT_GE(client_.store("k", "text"), 0);  // who asks for more than there is evicts what there is
    TestClient fresh(marud_.socket_path());
    EXPECT_EQ(fresh.text("k"), "text");
  }
  static bool is_dropped(const FileDescriptor& socket) {
    return wait_until([&] {
      pollfd entry{socket.get(), POLLIN, 0};
      ::poll(&entry, 1, 0);
      if ((entry.revents & (POLLHUP | POLLERR)) != 0) return true;
      std::byte ignored[4096];
      return (entry.revents & POLLIN) != 0 && ::recv(socket.get(), ignored, sizeof(ignored), MSG_DONTWAIT) == 0;
    });
  }
  void expect_dropped(const std::vector<std::byte>& packet, const std::string& why, std::vector<int> descriptors = {}) {
    const FileDescriptor socket = connect();
    ASSERT_TRUE(send_raw(socket.get(), packet, descriptors)) << std::strerror(errno);
    EXPECT_TRUE(is_dropped(socket)) << "not dropped: " << why;
    EXPECT_TRUE(marud_.has_logged(why)) << "the log does not say \"" << why << "\"";
  }
  static bool send_raw(int socket, const std::vector<std::byte>& packet, const std::vector<int>& descriptors = {}) {
    iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {};  // as many as Linux takes
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
    }
    return ::sendmsg(socket, &message, MSG_NOSIGNAL) == ssize_t(packet.size());
  }
  static std::vector<std::byte> request(Type type, std::span<const std::byte> payload = {}) {
    return wire::encode(type, 7, 0, payload);
  }
  static std::vector<std::byte> attach_request() {
    wire::AttachRequest attach{};
    std::strcpy(attach.pool, "default");
    return request(Type::kAttach, wire::bytes_of(attach));
  }
  template <typename F>
  static std::vector<std::byte> changed(std::vector<std::byte> packet, F&& change) {
    wire::MessageHeader header;
    std::memcpy(&header, packet.data(), sizeof(header));
    change(header);
    std::memcpy(packet.data(), &header, sizeof(header));
    return packet;
  }

  MarudProcess marud_;
  TestClient client_{marud_.socket_path()};
};

TEST_F(HostileSocket, GarbageIsDropped) {
  const uint64_t seed = fresh_seed();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> packet(1 + random.below(300));
    for (std::byte& byte : packet) byte = std::byte(random.next());
    const FileDescriptor socket = connect();
    EXPECT_TRUE(send_raw(socket.get(), packet));
    EXPECT_TRUE(is_dropped(socket));
  }
  EXPECT_TRUE(marud_.has_logged("is dropped: "));
  // Nobody fills the log that way.
  EXPECT_TRUE(marud_.has_logged(" further refusals and mistakes were not logged, "));
}

TEST_F(HostileSocket, PacketsThatAreNotWellFormedAreDroppedWithTheirReason) {
  const auto ping = request(Type::kPing);
  const auto drop = [&](const std::vector<std::byte>& packet) {
    const size_t before = marud_.log().size();
    const FileDescriptor socket = connect();
    ASSERT_TRUE(send_raw(socket.get(), packet));
    EXPECT_TRUE(is_dropped(socket));
    EXPECT_TRUE(wait_until([&] { return marud_.log().find(" is dropped: ", before) != std::string::npos; }));
  };
  drop({ping.begin(), ping.begin() + 23});  // truncated
  drop({ping.begin(), ping.begin() + 1});
  drop(changed(ping, [](wire::MessageHeader& h) { h.magic ^= 1; }));
  drop(changed(ping, [](wire::MessageHeader& h) { h.type = 0; }));
  drop(changed(ping, [](wire::MessageHeader& h) { h.type = 999; }));
  drop(changed(ping, [](wire::MessageHeader& h) { h.bytes = 1; }));
  drop(changed(ping, [](wire::MessageHeader& h) { h.bytes = 0xFFFF'FFFF; }));
  drop(changed(ping, [](wire::MessageHeader& h) { h.reserved = 1; }));
  drop(changed(ping, [](wire::MessageHeader& h) { h.status = -5; }));
  drop(request(Type::kPing, std::as_bytes(std::span("payload", 7))));
  drop(request(Type::kAttach, std::as_bytes(std::span("payload", 7))));
  drop(request(Type::kRent, std::as_bytes(std::span("payload", 7))));
  drop(request(Type::kDeleteTree, std::as_bytes(std::span("payload", 7))));
  drop(request(Type::kHasCopies));
  drop(request(Type::kHasCopies, std::as_bytes(std::span("payload", 7))));
  drop(request(Type::kHasCopies, std::vector<std::byte>(8 * (wire::kCopiesMax + 1))));
  drop(request(Type::kAdmin, std::as_bytes(std::span("not json", 8))));
  wire::AttachRequest attach{};
  std::memset(attach.pool, 'x', sizeof(attach.pool));  // a name without an end
  drop(request(Type::kAttach, wire::bytes_of(attach)));
  attach = {};
  std::strcpy(attach.pool, "../../etc/passwd");
  drop(request(Type::kAttach, wire::bytes_of(attach)));
  std::strcpy(attach.pool, "default");
  attach.flags = 0x8000'0000;
  drop(request(Type::kAttach, wire::bytes_of(attach)));
}

TEST_F(HostileSocket, WhoShutsItsWritingSideDownHasLeft) {
  const auto connections = [&] { return marud_.ask({{"command", "status"}}).at("connections").get<size_t>(); };
  const size_t before = connections();
  const FileDescriptor silent = connect(), asking = connect();
  ASSERT_TRUE(send_raw(asking.get(), request(Type::kPing)));
  for (const FileDescriptor* one : {&silent, &asking}) ASSERT_EQ(::shutdown(one->get(), SHUT_WR), 0);
  EXPECT_TRUE(wire::receive_packet(asking.get(), far_too_long_ms())) << "what it asked before is not answered";
  EXPECT_TRUE(is_dropped(silent));
  EXPECT_TRUE(is_dropped(asking));
  EXPECT_TRUE(wait_until([&] { return connections() == before; })) << "it is gone and has its place still";
  // Who cannot be told anything any more goes when there is something to tell.
  const FileDescriptor deaf = connect();
  ASSERT_EQ(::shutdown(deaf.get(), SHUT_RD), 0);
  EXPECT_EQ(connections(), before + 1);
  ASSERT_TRUE(send_raw(deaf.get(), request(Type::kPing)));
  EXPECT_TRUE(wait_until([&] { return connections() == before; }));
  expect_service();
}

TEST_F(HostileSocket, EmptyPacketIsDropped) { expect_dropped({}, "an empty packet"); }

TEST_F(HostileSocket, OversizePacketIsDropped) {
  const FileDescriptor socket = connect();
  const int bytes = 1 << 20;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  std::vector<std::byte> packet(limits::kMessageBytesMax + 1);
  ASSERT_TRUE(send_raw(socket.get(), packet)) << std::strerror(errno);
  EXPECT_TRUE(is_dropped(socket));
  EXPECT_TRUE(marud_.has_logged("is dropped: a packet of more than"));
}

TEST_F(HostileSocket, AnotherVersionIsToldAndDropped) {
  const FileDescriptor socket = connect();
  ASSERT_TRUE(send_raw(socket.get(), changed(request(Type::kPing), [](wire::MessageHeader& h) { h.version = 77; })));
  auto reply = wire::receive_packet(socket.get(), far_too_long_ms());
  ASSERT_TRUE(reply) << reply.error().text();
  const auto header = wire::decode_reply(reply->bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->status, -EPROTO);
  EXPECT_EQ(header->request_id, 7u);
  EXPECT_TRUE(is_dropped(socket));
}

TEST_F(HostileSocket, DescriptorsWhereNoneBelongAreDropped) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  FileDescriptor reader(ends[0]), writer(ends[1]);
  expect_dropped(request(Type::kPing), "a descriptor with a message that has none", {writer.get()});
  expect_dropped(attach_request(), "wrong number of descriptors", {writer.get()});
  expect_dropped(request(Type::kPing), "", {writer.get(), writer.get(), writer.get()});
  expect_dropped(request(Type::kPing), "is dropped: a packet with 40 descriptors", std::vector<int>(40, writer.get()));
  // marud keeps none of them: the pipe is over when ours is closed.
  writer.reset();
  pollfd entry{reader.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, far_too_long_ms()), 1);
  EXPECT_NE(entry.revents & POLLHUP, 0) << "marud still holds a descriptor";
}

TEST_F(HostileSocket, RequestsWithoutALaneAreRefused) {
  const FileDescriptor socket = connect();
  wire::RentRequest rent{};
  rent.runs = rent.run_pages = 1;
  ASSERT_TRUE(send_raw(socket.get(), request(Type::kRent, wire::bytes_of(rent))));
  auto reply = wire::receive_packet(socket.get(), far_too_long_ms());
  ASSERT_TRUE(reply);
  EXPECT_EQ(wire::decode_reply(reply->bytes)->status, -ENOTCONN);
}

TEST_F(HostileSocket, ImpossibleWishesAreAnswered) {
  const FileDescriptor socket = connect();
  ASSERT_TRUE(send_raw(socket.get(), attach_request()));
  ASSERT_TRUE(wire::receive_packet(socket.get(), far_too_long_ms()));
  for (const auto& [runs, run_pages] : {std::pair<uint64_t, uint64_t>{0, 0},
                                        {1, 0},
                                        {0, 1},
                                        {~0ull, 1},
                                        {1, ~0ull},
                                        {~0ull, ~0ull},
                                        {1ull << 32, 1ull << 32},
                                        {1u << 20, 1u << 20}}) {
    wire::RentRequest rent{};
    rent.runs = runs;
    rent.run_pages = run_pages;
    if (!send_raw(socket.get(), request(Type::kRent, wire::bytes_of(rent)))) return;  // dropped for the one before
    auto reply = wire::receive_packet(socket.get(), far_too_long_ms());
    EXPECT_TRUE(reply || reply.error().code == ECONNRESET) << runs << " runs of " << run_pages << " pages";
    if (!reply) return;
  }
  // Both halves of a lane that somebody else has.
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, "default");
  attach.previous_lane = client_.geometry().lane;
  attach.previous_generation = 1;
  const FileDescriptor thief = connect();
  ASSERT_TRUE(send_raw(thief.get(), request(Type::kAttach, wire::bytes_of(attach))));
  auto reply = wire::receive_packet(thief.get(), far_too_long_ms());
  ASSERT_TRUE(reply);
  if (const auto given = wire::read_exactly<wire::AttachReply>(wire::payload_of(reply->bytes))) {
    // The same process may ask for its lane; whatever it gets, the pool is whole.
    EXPECT_LT(given->lane, 16u);
  }
}

TEST_F(HostileSocket, FloodWithoutReadingIsDropped) {
  const FileDescriptor socket = connect();
  const std::string status = R"({"command":"status"})";
  const auto packet = request(Type::kAdmin, std::as_bytes(std::span(status.data(), status.size())));
  bool is_over = false;
  for (int i = 0; i < 100'000 && !is_over; ++i) {
    if (::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) continue;
    if (errno == EAGAIN) {
      pollfd entry{socket.get(), POLLOUT, 0};
      ::poll(&entry, 1, 1000);
    } else {
      is_over = true;
    }
  }
  EXPECT_TRUE(is_over) << "marud takes requests whose replies nobody reads for ever";
  EXPECT_TRUE(marud_.has_logged("it does not read its replies"));
}

TEST_F(HostileSocket, AThousandConnectionsLeaveRoomForWork) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 1200) GTEST_SKIP() << "this machine allows " << limit.rlim_cur << " descriptors only";
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 1000; ++i) {
    auto socket = wire::connect_to(marud_.socket_path());
    if (!socket) continue;  // the queue of the socket is full: marud is busy accepting
    if (i % 3 == 0) send_raw(socket->get(), request(Type::kPing));
    sockets.push_back(std::move(*socket));
  }
  EXPECT_GT(sockets.size(), 500u);
  expect_service();
  sockets.clear();
  EXPECT_TRUE(wait_until([&] { return marud_.ask({{"command", "status"}}).at("connections") <= 3; }));
}

// A connection over TCP whose last close waits for what its other end does not read.
class LingeringSocket {
 public:
  LingeringSocket() {
    FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), name, bytes), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), name, &bytes), 0);
    near_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(near_.get(), name, bytes), 0);
    far_.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger lasts{1, 100'000};  // seconds: longer than a test's patience
    EXPECT_EQ(::setsockopt(near_.get(), SOL_SOCKET, SO_LINGER, &lasts, sizeof(lasts)), 0);
    const std::vector<char> unread(1 << 16);
    while (::send(near_.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
    }
  }
  int near() const { return near_.get(); }
  // Of this process alone. Whoever has the last one waits: marud must have it still, and is suspended meanwhile.
  void let_go() { near_.reset(); }

 private:
  FileDescriptor far_;  // closed after the other: then the close that waits is over
  FileDescriptor near_;
};

// marud's deciding thread stands still. Its other threads go on, and what they wait for at the kernel is not interrupted, as it
// is when the whole process is stopped and goes on: then no close lasts any more.
class DecidingThreadStopped {
 public:
  explicit DecidingThreadStopped(pid_t marud) : thread_(marud) {
    EXPECT_EQ(::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr), 0) << std::strerror(errno);
    EXPECT_EQ(::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr), 0) << std::strerror(errno);
    EXPECT_EQ(::waitpid(thread_, nullptr, __WALL), thread_);
  }
  DecidingThreadStopped(const DecidingThreadStopped&) = delete;
  DecidingThreadStopped& operator=(const DecidingThreadStopped&) = delete;
  ~DecidingThreadStopped() { EXPECT_EQ(::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr), 0) << std::strerror(errno); }

 private:
  const pid_t thread_;
};

TEST_F(HostileSocket, ACloseThatLastsHoldsNobodyUp) {
  LingeringSocket lingering;
  marud_.suspend();
  const std::string path = marud_.socket_path();
  const auto ping = request(Type::kPing);
  const pid_t child = ::fork();
  if (child == 0) {  // gone before marud asks who it is
    auto socket = wire::connect_to(path);
    ::_exit(socket && send_raw(socket->get(), ping, {lingering.near()}) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  lingering.let_go();
  marud_.resume();
  EXPECT_TRUE(marud_.has_logged("a connection is refused: "));
  expect_service();
}

TEST_F(HostileSocket, DescriptorsBeyondThoseThatMakeSenseAreClosedAsideToo) {
  for (const size_t count : {5u, 64u, 253u}) {
    LingeringSocket lingering;
    const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    std::vector<int> descriptors(count, nothing.get());
    descriptors.back() = lingering.near();
    const FileDescriptor socket = connect();
    marud_.suspend();
    EXPECT_TRUE(send_raw(socket.get(), request(Type::kPing), descriptors)) << std::strerror(errno);
    lingering.let_go();
    marud_.resume();
    EXPECT_TRUE(marud_.has_logged("a packet with " + std::to_string(count) + " descriptors"));
    expect_service();
  }
}

// How many descriptors a process has.
size_t descriptors_of(pid_t process) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(process) + "/fd");
  return size_t(std::distance(begin(all), end(all)));
}

TEST_F(HostileSocket, WhoBringsWhatIsNotClosedFillsMarudWithLittle) {
  constexpr size_t kMost = 253, kConnections = 40, kStuck = 16;
  constexpr size_t kReceived = 5;  // then more wait to be closed than may, and no more is received until they are fewer
  std::vector<LingeringSocket> lingering(kStuck);
  std::vector<FileDescriptor> sockets;
  const size_t at_first = descriptors_of(marud_.pid());
  for (size_t i = 0; i < kStuck; ++i) sockets.push_back(connect());
  {
    const DecidingThreadStopped stopped(marud_.pid());
    for (size_t i = 0; i < kStuck; ++i) {
      EXPECT_TRUE(send_raw(sockets[i].get(), request(Type::kPing), std::vector<int>(5, lingering[i].near())));
      lingering[i].let_go();
    }
  }
  for (const FileDescriptor& socket : sockets) EXPECT_TRUE(is_dropped(socket));
  sockets.clear();
  // A number is free when its close() begins: each thread that closes hangs then, and none has more to close.
  ASSERT_TRUE(wait_until([&] { return descriptors_of(marud_.pid()) <= at_first; }));
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (size_t i = 0; i < kConnections; ++i) {
    sockets.push_back(connect());
    ASSERT_TRUE(send_raw(sockets.back().get(), request(Type::kPing)));
    ASSERT_TRUE(wire::receive_packet(sockets.back().get(), far_too_long_ms()));
  }
  const FileDescriptor last = connect();
  const size_t before = descriptors_of(marud_.pid());
  {  // all at once
    const DecidingThreadStopped stopped(marud_.pid());
    for (const FileDescriptor& socket : sockets)
      EXPECT_TRUE(send_raw(socket.get(), request(Type::kPing), std::vector<int>(kMost, nothing.get())));
    EXPECT_TRUE(send_raw(last.get(), request(Type::kPing)));
  }
  // It is served after those that came before it, though its user has brought too many: it brings none.
  EXPECT_TRUE(wire::receive_packet(last.get(), far_too_long_ms()));
  EXPECT_LE(descriptors_of(marud_.pid()), before + kReceived * kMost);
  EXPECT_EQ(marud_.ask({{"command", "status"}}).at("connections"), kConnections + 3 - kReceived);
  lingering.clear();  // and those that were not received are
  for (const FileDescriptor& socket : sockets) EXPECT_TRUE(is_dropped(socket));
}

TEST_F(HostileSocket, WhoReadsNothingIsSentNoMoreDescriptors) {
  const FileDescriptor socket = connect();
  const auto attach = attach_request(), detach = request(Type::kDetach);
  constexpr int kTimes = 1000;
  int times = 0;
  while (times < kTimes && send_raw(socket.get(), attach) && send_raw(socket.get(), detach)) ++times;
  EXPECT_LT(times, kTimes) << "marud sends descriptors that nobody reads for ever";
  EXPECT_TRUE(marud_.has_logged("it asks for descriptors and does not read its replies"));
  // Who reads may attach as often.
  const FileDescriptor reader = connect();
  for (int i = 0; i < 40; ++i)
    for (const auto& packet : {attach, detach}) {
      ASSERT_TRUE(send_raw(reader.get(), packet));
      ASSERT_TRUE(wire::receive_packet(reader.get(), far_too_long_ms()));
    }
  expect_service();
}

TEST(HostileSocketAlone, WhatIsNoMemoryIsClosedAsideWhenItIsHandedBack) {
  MarudProcess marud;
  // Without a session thread, so that nobody hands the memory back by itself.
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  ASSERT_EQ(client.store("k", "text"), 0);
  marud.kill();
  marud.start();
  LingeringSocket lingering;
  auto socket = wire::connect_to(marud.socket_path());
  ASSERT_TRUE(socket);
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, "default");
  attach.flags = wire::kAttachHandsBack;
  const auto packet = wire::encode(Type::kAttach, 7, 0, wire::bytes_of(attach));
  marud.suspend();
  EXPECT_TRUE(wire::send_packet(socket->get(), packet, lingering.near(), int(far_too_long_ms())));
  lingering.let_go();
  marud.resume();
  EXPECT_TRUE(marud.has_logged("handed back what is not the memory of pool"));
  EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  EXPECT_EQ(client.text("k"), "text");
}

TEST_F(HostileSocket, ProcessesThatAreKilledWhileConnectingLeaveNothing) {
  for (int i = 0; i < 15; ++i) {
    ChildProcess rude({own_program(), "--role", "connect-often", marud_.socket_path(), std::to_string(i)});
    EXPECT_TRUE(wait_until([&] { return marud_.ask({{"command", "status"}}).at("lanes") > 1 || i % 2; }));
    rude.kill();
  }
  EXPECT_TRUE(wait_until([&] {
    const auto status = marud_.ask({{"command", "status"}});
    return status.at("connections") <= 2 && status.at("lanes") == 1;
  })) << marud_.ask({{"command", "status"}}).dump();
}

}  // namespace

// --role connect-often SOCKET NUMBER: connects, attaches, asks and hangs up for ever, in another order each time.
int run_connect_often(int argument_count, char** arguments) {
  if (argument_count != 2) return 2;
  Random random(std::strtoull(arguments[1], nullptr, 10));
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, "default");
  const auto packet = wire::encode(Type::kAttach, 1, 0, wire::bytes_of(attach));
  std::vector<FileDescriptor> open;
  while (true) {
    if (auto socket = wire::connect_to(arguments[0])) {
      if (random.one_in(2)) (void)wire::send_packet(socket->get(), packet, -1, 1000);
      if (random.one_in(4)) (void)wire::receive_packet(socket->get(), 1000);
      open.push_back(std::move(*socket));
    }
    if (open.size() > 5) open.erase(open.begin() + std::ptrdiff_t(random.below(open.size())));
  }
}

}  // namespace maru::test
