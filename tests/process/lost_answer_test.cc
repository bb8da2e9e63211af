// Pages that marud takes for a client which never reads the answer: they come back while that client lives, and what it did
// get stays its own. And a goodbye that marud never hears.
//
// MARU_RESTARTS says how often marud is killed.
#include "libmaru/base/file_descriptor.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/baseline.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>

namespace maru::test {
namespace {

using shm::PageState;

constexpr uint64_t kPageBytes = 4096;

// Each client rents one region, and what it wants beyond that comes page by page out of other regions.
PoolWish one_region_each(uint32_t regions) {
  PoolWish pool;
  pool.bytes = regions * (256u << 10) + (1u << 20);
  pool.page_bytes = kPageBytes;
  pool.region_bytes = 256u << 10;
  pool.lanes = 8;
  pool.pins = 64;
  pool.max_regions_per_instance = 1;
  pool.in_file = true;
  return pool;
}

uint64_t reserved(const ControlMap& map) { return map.count_pages()[PageState::kReserved]; }

maru_store_options plain_options() {
  maru_store_options options{};
  options.size = sizeof(options);
  return options;
}

TEST(RestartLostAnswer, PagesOfAnAnswerThatNobodyReadComeBack) {
  MarudProcess marud({one_region_each(2)});
  const ControlMap map(marud.socket_path());
  TestClient others(marud.socket_path());
  // It reads answers while it waits for one, and at no other time.
  TestClient client(marud.socket_path(), "default", 500, MARU_ATTACH_NO_SESSION_THREAD, 1);
  const uint64_t region_pages = map.region().region_pages();
  std::vector<maru_buffer> mine(region_pages);
  ASSERT_TRUE(wait_until([&] { return maru_alloc_batch(client, kPageBytes, mine.size(), mine.data()) == 0; }));
  for (const maru_buffer& buffer : mine) std::memset(buffer.data, 'm', buffer.bytes);
  for (uint64_t i = 0; map.count_pages()[PageState::kReady] < region_pages / 2; ++i)
    ASSERT_EQ(others.store("o" + std::to_string(i), "another's"), 0);
  const uint64_t before = reserved(map);

  constexpr uint64_t kAsked = 8;
  std::array<maru_buffer, kAsked> more;
  marud.suspend();
  ASSERT_EQ(maru_alloc_batch(client, kPageBytes, kAsked, more.data()), -ETIMEDOUT);
  marud.resume();
  ASSERT_TRUE(wait_until([&] { return reserved(map) >= before + kAsked; })) << map.count_pages().text();
  ASSERT_TRUE(wait_until([&] { return marud.ask({{"command", "status"}}).contains("pools"); })) << "it has answered";
  marud.kill();
  EXPECT_GE(reserved(map), before + kAsked);
  marud.start();
  ASSERT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
  EXPECT_TRUE(wait_until([&] {
    return reserved(map) == mine.size() + client.statistics().pages_cached + others.statistics().pages_cached;
  })) << map.count_pages().text();

  const maru_store_options options = plain_options();
  for (size_t i = 0; i < mine.size(); ++i) {
    const std::string text = "mine " + std::to_string(i);
    const maru_key key = key_of(text);
    EXPECT_EQ(maru_store(client, &key, &mine[i], &options, nullptr), 0) << i;
  }
  EXPECT_EQ(client.text("mine 0"), std::string(kPageBytes, 'm'));
}

// Between a client of this process and marud, which takes what is passed on for the client's own. The first connection ends
// like that of a marud that is killed: at the goodbye, of which marud never hears.
class Relay {
 public:
  Relay(const std::string& listen_path, const std::string& marud_path) : marud_path_(marud_path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, listen_path.c_str());
    listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    thread_ = std::thread([this] {
      while (pass_on_one(connections_ == 0)) ++connections_;
    });
  }
  ~Relay() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int connections() const { return connections_; }  // that have ended

 private:
  bool pass_on_one(bool ends_at_goodbye) {
    const FileDescriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.is_open()) return false;
    const auto marud = wire::connect_to(marud_path_);
    while (marud) {
      pollfd polls[2] = {{client.get(), POLLIN, 0}, {marud->get(), POLLIN, 0}};
      ::poll(polls, 2, -1);
      const bool is_from_client = polls[0].revents != 0;
      const auto packet = wire::receive_packet(polls[is_from_client ? 0 : 1].fd, 0);
      if (!packet) break;
      wire::MessageHeader header;
      std::memcpy(&header, packet->bytes.data(), sizeof(header));
      if (ends_at_goodbye && is_from_client && wire::Type(header.type) == wire::Type::kDetach) break;
      if (!wire::send_packet(polls[is_from_client ? 1 : 0].fd, packet->bytes, packet->fd.get(), far_too_long_ms(),
                             packet->second.get()))
        break;
    }
    return true;
  }

  const std::string marud_path_;
  FileDescriptor listener_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

TEST(RestartLostAnswer, AGoodbyeThatNobodyHeardIsSaidOnceMore) {
  MarudProcess marud;
  const TemporaryDirectory directory;
  Relay relay(directory.file("relay.sock"), marud.socket_path());
  {
    TestClient client(directory.file("relay.sock"), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
    ASSERT_EQ(client.store("k", "text"), 0);
    EXPECT_EQ(marud.pool_status().at("lanes").at("live"), 1);
  }
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("lanes").at("live") == 0; }));
  EXPECT_TRUE(wait_until([&] { return relay.connections() == 2; }));
}

// A client in a thread of its own: takes more than its region has, keeps some of it, stores and aborts the rest.
class Taker {
 public:
  Taker(const std::string& socket_path, uint32_t number, uint64_t seed)
      : client_(socket_path, "default", far_too_long_ms(), 0, 4), number_(number), random_(seed) {
    thread_ = std::thread([this] { run(); });
  }
  ~Taker() { stop(); }

  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  uint64_t rounds() const { return rounds_; }
  uint64_t reserved() const { return kept_.size() + client_.statistics().pages_cached; }  // after stop()
  void store_all() {
    while (!kept_.empty()) store_kept();
  }

 private:
  static constexpr size_t kAtOnce = 48, kKeptMax = 40;

  void run() {
    for (; !stop_; ++rounds_) {
      std::array<maru_buffer, kAtOnce> taken;
      const size_t n = kAtOnce - random_.below(8);
      const int result = maru_alloc_batch(client_, kPageBytes, n, taken.data());
      if (result != 0) {  // no marud, or nothing may go just now
        store_kept();
        std::this_thread::yield();
        continue;
      }
      for (size_t i = 0; i < n; ++i) {
        std::memset(taken[i].data, char(taken[i].block), taken[i].bytes);
        if (random_.one_in(8) && kept_.size() < kKeptMax)
          kept_.push_back(taken[i]);
        else if (random_.one_in(8))
          EXPECT_EQ(maru_abort(client_, &taken[i]), 0) << "a buffer that it was given is not its own";
        else
          store(taken[i]);
      }
      if (random_.one_in(4)) store_kept();
    }
  }

  void store_kept() {
    if (kept_.empty()) return;
    const maru_buffer buffer = kept_.back();
    kept_.pop_back();
    for (uint64_t i = 0; i < buffer.bytes; ++i)
      if (static_cast<const char*>(buffer.data)[i] != char(buffer.block)) {
        ADD_FAILURE() << "somebody else wrote into a page of client " << number_;
        break;
      }
    store(buffer);
  }

  void store(const maru_buffer& buffer) {
    static const maru_store_options options = plain_options();
    const std::string text = std::to_string(number_) + " " + std::to_string(next_key_++);
    const maru_key key = key_of(text);
    const int result = maru_store(client_, &key, &buffer, &options, nullptr);
    if (result == -EXFULL) {
      EXPECT_EQ(maru_abort(client_, &buffer), 0);
      return;
    }
    EXPECT_EQ(result, 0) << "a buffer that it was given is not its own";
  }

  TestClient client_;
  const uint32_t number_;
  Random random_;
  std::vector<maru_buffer> kept_;
  uint64_t next_key_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> rounds_{0};
  std::thread thread_;
};

TEST(RestartLostAnswer, NoPageIsLostWhileMarudIsKilledAndClientsTakePages) {
  const uint64_t restarts = 4 * number_from_environment("MARU_RESTARTS", 10);
  MarudProcess marud({one_region_each(3)});
  const ControlMap map(marud.socket_path());
  Random random(fresh_seed());
  std::vector<std::unique_ptr<Taker>> takers;
  for (uint32_t i = 0; i < 3; ++i) takers.push_back(std::make_unique<Taker>(marud.socket_path(), i, random.next()));
  const auto expect_rounds = [&](uint64_t more) {
    for (const auto& taker : takers) {
      const uint64_t until = taker->rounds() + more;
      EXPECT_TRUE(wait_until([&] { return taker->rounds() >= until; })) << "a client stands still";
    }
  };
  for (uint64_t i = 0; i < restarts && !HasFailure(); ++i) {
    expect_rounds(20 + random.below(50));
    for (uint64_t spin = random.below(200'000); spin > 0; --spin) asm volatile("");
    marud.kill();
    marud.start();
  }
  expect_rounds(5);
  for (const auto& taker : takers) taker->stop();
  const auto known = [&] {
    uint64_t sum = 0;
    for (const auto& taker : takers) sum += taker->reserved();
    return sum;
  };
  // Its session thread may be giving back what it was told of too late.
  EXPECT_TRUE(wait_until([&] { return reserved(map) == known(); }))
      << known() << " pages are known to clients; " << map.count_pages().text();
  for (const auto& taker : takers) taker->store_all();
  takers.clear();
  expect_baseline(marud, map);
}

}  // namespace
}  // namespace maru::test
