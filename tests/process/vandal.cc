// --role vandal SOCKET SEED BOARD_FD WORKER USER: a client that does its worst where it may write. It is admitted to the pool
// "default" as this user (0: as who it is), and writes garbage into all of its own lane, pins and intents included, and into
// every page that it rents, while it sends marud nonsense, far too many requests, and nothing at all. It asks for whatever
// memory it can get, unless it is user 0: then nothing keeps it from the others' blocks, by ordinary eviction.
//
// On the board it notes a hit when it is attached, and begins when it is given a key to keep.
//
// What it leaves alone are the words that all clients of a pool share: who may write there can lose its blocks for everybody,
// which scribbler_test.cc does in another pool.
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/board.h"
#include "tests/process/roles.h"
#include "tests/support/control_map.h"
#include "tests/support/random.h"
#include "tests/support/wait_until.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <grp.h>
#include <set>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace maru::test {
namespace {

using wire::Type;

class Vandal {
 public:
  Vandal(const std::string& socket_path, uint64_t seed, bool rents)
      : socket_path_(socket_path), random_(seed), rents_(rents), map_(socket_path) {
    auto pages = Mapping::map_shared(map_.device_fd(), map_.attached().pages_offset,
                                     map_.region().pages() * map_.region().page_bytes(), PROT_READ | PROT_WRITE);
    if (!pages) throw std::runtime_error(pages.error().text());
    pages_ = std::move(*pages);
  }

  void step() {
    for (int i = 0; i < 200; ++i) scribble_in_lane();
    for (int i = 0; i < 50; ++i) scribble_in_pages();
    if (random_.one_in(4)) rent();
    switch (random_.below(4)) {
      case 0: return send_garbage();
      case 1: return attach_and_leave();
      case 2: return ask_and_not_read();
      case 3: return connect_and_wait();
    }
  }

 private:
  void scribble_in_lane() {
    const shm::ControlRegion& region = map_.region();
    auto* lane = reinterpret_cast<AtomicU64*>(&region.lane_header(map_.attached().lane));
    AtomicU64& word = lane[random_.below(region.layout().lane_bytes / 8)];
    switch (random_.below(4)) {
      case 0: return word.store_relaxed(random_.next());
      case 1: return word.store_relaxed(~0ull);
      case 2: return word.store_relaxed(0);
      // A page that there is, in a life that it may have.
      case 3:
        return word.store_relaxed(
            shm::PageRef::of(uint32_t(random_.below(region.pages())), uint32_t(random_.below(4))).bits);
    }
  }

  void scribble_in_pages() {
    if (own_.empty()) return;
    const shm::ControlRegion& region = map_.region();
    auto at = own_.begin();
    std::advance(at, std::ptrdiff_t(random_.below(own_.size())));
    const uint64_t page = uint64_t(*at) * region.region_pages() + random_.below(region.region_pages());
    const uint64_t value = random_.next();
    std::memcpy(pages_.data() + page * region.page_bytes() + 8 * random_.below(region.page_bytes() / 8), &value, 8);
  }

  void rent() {
    if (!rents_) return;
    static constexpr uint64_t kOdd[] = {0, 1, 2, 63, 64, 65, 1000, 1ull << 32, ~0ull};
    wire::RentRequest request{};
    request.runs = kOdd[random_.below(std::size(kOdd))];
    request.run_pages = kOdd[random_.below(std::size(kOdd))];
    request.tenant = random_.one_in(2) ? random_.next() : 0;
    if (!wire::send_packet(map_.socket(), wire::encode(Type::kRent, 1, 0, wire::bytes_of(request)), -1, 1000)) return;
    auto reply = wire::receive_packet(map_.socket(), far_too_long_ms());
    if (!reply) return;
    const auto rented = wire::decode_rent_reply(wire::payload_of(reply->bytes));
    if (!rented) return;
    for (const uint32_t index : rented->regions) own_.insert(index);
  }

  FileDescriptor connect() {
    auto socket = wire::connect_to(socket_path_, 1000);
    return socket ? std::move(*socket) : FileDescriptor();
  }

  void send_garbage() {
    const FileDescriptor socket = connect();
    std::vector<std::byte> packet(1 + random_.below(random_.one_in(8) ? 60'000 : 200));
    for (std::byte& byte : packet) byte = std::byte(random_.next());
    if (packet.size() >= sizeof(wire::MessageHeader) && random_.one_in(2)) {  // as far as the payload
      const wire::MessageHeader header{wire::kMagic,
                                       wire::kVersion,
                                       uint16_t(1 + random_.below(wire::kTypeMax)),
                                       1,
                                       0,
                                       uint32_t(packet.size() - sizeof(wire::MessageHeader)),
                                       0};
      std::memcpy(packet.data(), &header, sizeof(header));
    }
    ::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void attach_and_leave() {
    const FileDescriptor socket = connect();
    wire::AttachRequest request{};
    std::strcpy(request.pool, "default");
    request.previous_lane = random_.one_in(2) ? uint32_t(random_.below(16)) : 0;
    request.previous_generation = uint32_t(random_.below(4));
    const auto packet = wire::encode(Type::kAttach, 1, 0, wire::bytes_of(request));
    ::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void ask_and_not_read() {
    const FileDescriptor socket = connect();
    static constexpr std::string_view kQuestion = R"({"command":"status"})";
    const auto packet = wire::encode(Type::kAdmin, 1, 0, std::as_bytes(std::span(kQuestion.data(), kQuestion.size())));
    for (int i = 0; i < 100; ++i) ::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void connect_and_wait() {
    waiting_.push_back(connect());
    if (waiting_.size() > 20) waiting_.pop_front();
  }

  const std::string socket_path_;
  Random random_;
  const bool rents_;
  const ControlMap map_;
  Mapping pages_;
  std::set<uint32_t> own_;  // regions
  std::deque<FileDescriptor> waiting_;
};

}  // namespace

int run_vandal(int argument_count, char** arguments) {
  if (argument_count != 5) return 2;
  Board board(std::atoi(arguments[2]));
  const auto user = uid_t(std::strtoul(arguments[4], nullptr, 10));
  if (user != 0 && (::setgroups(0, nullptr) != 0 || ::setgid(user) != 0 || ::setuid(user) != 0)) return 126;
  Vandal vandal(arguments[0], std::strtoull(arguments[1], nullptr, 10), user != 0);
  BoardWords::Worker& me = board->worker[size_t(std::atoi(arguments[3])) % kWorkersMax];
  // All of them are attached before one begins: what it does takes every lane that the user may have.
  me.hits.store(1);
  while (me.kept.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  while (true) {
    vandal.step();
    me.operations.fetch_add(1);
  }
}

}  // namespace maru::test
