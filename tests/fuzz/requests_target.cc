// Any bytes as packets to marud: the codec, and the dispatcher on top of real pools that are in use. An input is a sequence of
// steps: which connection, with how many descriptors, and the packet; or what a well-behaved client of a pool does in between.
// Whatever it was, every packet has one outcome (a reply that a client can decode, now or later, or a drop that says why), and
// the pools pass their audits in the end.
#include "daemon/server/requests.h"
#include "libmaru/wire/codec.h"
#include "tests/fuzz/resident.h"
#include "tests/fuzz/target.h"
#include "tests/support/temporary_directory.h"

#include <array>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

namespace maru::fuzz {
namespace {

using daemon::HostedPool;
using daemon::HostedPools;
using daemon::Outcome;
using daemon::Requests;
using daemon::Session;
using wire::Type;

constexpr size_t kConnections = 3;
constexpr size_t kDescriptorsMax = 3;
constexpr size_t kMemoryOfLost = kDescriptorsMax + 1;  // in place of a number of descriptors: that one
// A bit in a step's first byte: it is a step of a resident. The lowest bit says which.
constexpr uint64_t kOfResident = 8;
const char* const kPools[] = {"default", "other", "lost"};
constexpr size_t kResidents = 2;
constexpr uid_t kStranger = 65534;  // who is the last connection, and may do little
// A pool is used for so many inputs before it is made anew: what one input left is part of the next one's world.
constexpr int kInputsPerPool = 64;
// Far more than any answer takes in pools this small.
constexpr uint64_t kTurnsMax = 1u << 20;

class World {
 public:
  World() : state_(directory_.file("state")) {
    ::mkdir(directory_.file("state").c_str(), 0700);
    config_.adopt_grace_ms = 1u << 30;  // what is lost waits for the one who has it
    config_.user_limits.regions = 2;
    config_.user_limits.pins = 8;
    for (const char* name : kPools) pools_.push_back(start(spec_of(name)));
    // The memory of the last one is with a client of the marud before.
    const daemon::Device& lost = pools_.back()->serving()->device();
    for (const int fd : {lost.fd(), lost.control_fd()})  // in the order of AttachReply
      lost_memory_.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    pools_.back()->stop(true);
    pools_.back() = start(spec_of(kPools[2]));
    must(!pools_.back()->serving(), "a pool does not wait for its memory");
    requests_.set_start(now());
    for (size_t i = 0; i < kConnections + kResidents; ++i) {
      daemon::Peer peer;
      const bool is_stranger = i == kConnections - 1;
      peer.who = {::getpid(), is_stranger ? kStranger : ::geteuid(), is_stranger ? kStranger : ::getegid(), 1000 + i};
      peer.command = "fuzz";
      peer.pidfd = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      sessions_.push_back(std::make_unique<Session>(i + 1, FileDescriptor(), std::move(peer)));
    }
    for (size_t i = 0; i < kResidents; ++i) move_in(i);
  }

  void packet(size_t connection, size_t descriptors, const std::vector<uint8_t>& bytes) {
    Session::Received received;
    received.bytes = std::as_bytes(std::span(bytes));
    for (size_t i = 0; descriptors != kMemoryOfLost && i < descriptors; ++i)
      received.descriptors.emplace_back(i == 0 ? ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                                               : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (size_t i = 0; descriptors == kMemoryOfLost && i < lost_memory_.size(); ++i)
      received.descriptors.emplace_back(::fcntl(lost_memory_[i].get(), F_DUPFD_CLOEXEC, 3));
    Session& session = *sessions_[connection];
    settle(session, requests_.handle(session, received, now()));
    // What else a connection brings waits behind a request for memory.
    finish_waiting([&] { return !requests_.has_waiting_rent(session.id()); });
    for (const auto& again : requests_.settle_waiting(now()))
      settle(*sessions_[again.session - 1], requests_.attach_again(*sessions_[again.session - 1], again, now()));
    turn();
  }

  void resident(size_t which, const std::vector<uint8_t>& bytes) {
    Reader reader(bytes.data(), bytes.size());
    const auto what = uint8_t(reader.number(1)), number = uint8_t(reader.number(1)), other = uint8_t(reader.number(1));
    residents_[which]->step(what, number, other, now().unix_ms);
    turn();
  }

  void expect_sound() {
    for (const auto& pool : pools_) {
      if (!pool->serving()) continue;
      const auto reply = pool->serving()->admin("check", {{"command", "check"}, {"quiesce", true}}, now().unix_ms);
      must(reply.contains("violations") && reply["violations"].empty(), reply.dump().c_str());
    }
  }

 private:
  static daemon::PoolSpec spec_of(const std::string& name) {
    daemon::PoolSpec spec;
    spec.pool.name = name;
    spec.pool.page_bytes = 4096;
    spec.pool.region_bytes = 64 << 10;
    spec.pool.lanes = 8;
    spec.pool.pins_max = 64;
    spec.pool.touch_entries = 64;
    spec.bytes = 1 << 20;
    spec.huge_pages = daemon::HugePages::kNever;
    if (name == kPools[0]) spec.users = {kStranger};
    if (name == kPools[1]) spec.readers = {kStranger};
    if (name == kPools[2]) spec.admins = {kStranger};
    return spec;
  }
  std::unique_ptr<HostedPool> start(const daemon::PoolSpec& spec) {
    std::map<std::string, FileDescriptor> stored;
    auto hosted = HostedPool::start(spec, state_, stored, now().unix_ms);
    must(hosted.has_value(), "a pool does not start");
    return std::move(*hosted);
  }

  void move_in(size_t which) {
    Session& session = *sessions_[kConnections + which];
    const auto ask = [this, &session](Type type, std::span<const std::byte> payload) {
      const auto bytes = wire::encode(type, 1, 0, payload);
      Session::Received received;
      received.bytes = bytes;
      settle(session, requests_.handle(session, received, now()));
      finish_waiting([&] { return answers_.contains(session.id()); });
      return std::optional(std::move(answers_.extract(session.id()).mapped()));
    };
    wire::AttachRequest attach{};
    std::strcpy(attach.pool, kPools[which]);
    const auto reply = ask(Type::kAttach, wire::bytes_of(attach));
    const auto attached = wire::read_exactly<wire::AttachReply>(wire::payload_of(*reply));
    must(attached.has_value(), "somebody who means well gets no lane");
    residents_.push_back(std::make_unique<Resident>(pools_[which]->serving()->device().control_fd(), *attached, ask));
    residents_.back()->settle_in(now().unix_ms);
  }

  // Some answers take turns, as many as a slow machine needs for them.
  template <typename Done>
  void finish_waiting(Done is_done) {
    for (uint64_t turns = 0; !is_done(); ++turns) {
      must(turns < kTurnsMax, "an answer does not come");
      turn();
    }
  }

  // What marud does between packets.
  void turn() {
    while (requests_.step_survey()) continue;
    for (const uint64_t id : requests_.ready_rents())
      settle(*sessions_[id - 1], requests_.rent_again(*sessions_[id - 1], now()));
    for (auto& notice : requests_.late_answers(now())) {
      Outcome outcome;
      outcome.reply = std::move(notice.packet);
      settle(*sessions_[notice.session - 1], std::move(outcome));
    }
    while (lifecycle_.step(now())) continue;
    for (const auto& pool : pools_) {
      if (pool->serving()) pool->serving()->turn(now().unix_ms);
      must(!pool->fence_if_lost(), "a pool was fenced");
    }
    (void)requests_.drained_notices();
  }

  static bool is_resident(const Session& session) { return session.id() > kConnections; }
  static daemon::Moment now() {
    const auto seconds = uint64_t(std::time(nullptr));
    return {seconds * 1000, seconds * 1000};
  }
  void settle(Session& session, Outcome outcome) {
    if (outcome.reply) {
      const auto& bytes = outcome.reply->bytes;
      must(bytes.size() <= limits::kMessageBytesMax, "a reply that is too long");
      // A request of another version may have any type, and gets it back.
      must(wire::decode_reply(bytes).has_value() || outcome.drop_after_reply, "a reply that no client can read");
      if (is_resident(session)) answers_[session.id()] = std::move(outcome.reply->bytes);
    }
    if (outcome.drop.empty()) return;
    must(!is_resident(session), "somebody who means well is dropped");
    const uint64_t watch = session.lane_watch;
    session.lane_watch = 0;
    requests_.forget(session.id());
    if (auto* lane = watch ? lanes_.find(watch) : nullptr) {
      // Its process ends with it, as far as the pool is concerned.
      const uint32_t pool = lane->pool, number = lane->lane;
      lanes_.remove(watch);
      pools_[pool]->serving()->client_died(number);
    }
  }

  test::TemporaryDirectory directory_;
  daemon::StateDirectory state_;
  daemon::Config config_;
  HostedPools pools_;
  daemon::LaneWatches lanes_;
  daemon::PoolLifecycle lifecycle_{config_, pools_, lanes_, state_, [] { return daemon::Reading(); }, [](bool) {}};
  Requests requests_{config_, pools_, lanes_, lifecycle_};
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<FileDescriptor> lost_memory_;
  std::vector<std::unique_ptr<Resident>> residents_;
  std::map<uint64_t, std::vector<std::byte>> answers_;  // to residents, by session
};

void append(Writer& input, size_t connection, size_t descriptors, Type type, std::span<const std::byte> payload) {
  const auto packet = wire::encode(type, 9, 0, payload);
  input.number(connection | descriptors << 4, 1).number(packet.size(), 2).bytes(packet);
}

void append_admin(Writer& input, size_t connection, const char* text) {
  append(input, connection, 0, Type::kAdmin, std::as_bytes(std::span(text, std::strlen(text))));
}

void append_attach(Writer& input, size_t connection, const char* pool, uint32_t flags = 0, size_t descriptors = 0) {
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, pool);
  attach.flags = flags;
  append(input, connection, descriptors, Type::kAttach, wire::bytes_of(attach));
}

void append_resident(Writer& input, size_t which, std::initializer_list<uint8_t> step) {
  input.number(which | kOfResident, 1).number(step.size(), 2).bytes(step);
}

Input all_kinds() {
  Writer input;
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, "default");
  append(input, 0, 0, Type::kAttach, wire::bytes_of(attach));
  std::strcpy(attach.pool, "other");
  append(input, 1, 0, Type::kAttach, wire::bytes_of(attach));
  for (const auto& [runs, run_pages] : {std::pair<uint64_t, uint64_t>{1, 1}, {40, 1}, {2, 7}, {500, 1}, {1, 16}}) {
    wire::RentRequest rent{};
    rent.runs = runs;
    rent.run_pages = run_pages;
    append(input, runs % 2, 0, Type::kRent, wire::bytes_of(rent));
  }
  for (const uint64_t account : {0, 1, 63, 64}) {
    wire::CreditRequest credit{};
    credit.tenant = account + 1;
    credit.bytes = 4096;
    credit.account = uint32_t(account);
    append(input, account % 2, 0, Type::kCredit, wire::bytes_of(credit));
  }
  wire::DeleteTreeRequest tree{1, 2};
  append(input, 0, 0, Type::kDeleteTree, wire::bytes_of(tree));
  append(input, 0, 0, Type::kMakeRoom, wire::bytes_of(wire::RoomRequest{1, 2, 0, 0}));
  append(input, 0, 0, Type::kHasCopies, wire::bytes_of(std::array<uint64_t, 2>{1, uint64_t{3} << 32 | 2}));
  append(input, 1, 0, Type::kPing, {});
  append(input, 0, 0, Type::kDetach, {});
  return input.take();
}

Input administration() {
  Writer input;
  for (const char* text :
       {R"({"command":"status"})", R"({"command":"clients"})", R"({"command":"regions"})", R"({"command":"map"})",
        R"({"command":"blocks","cursor":0,"limit":10,"prefix":"k"})", R"({"command":"block","key":"k"})",
        R"({"command":"pins","cursor":0,"limit":5})", R"({"command":"evict","pages":3,"pool":"other"})",
        R"({"command":"clear"})", R"({"command":"check","quiesce":true})",
        R"({"command":"quota.set","tenant":"0x00ff","soft":1,"hard":null})", R"({"command":"quota.get","tenant":"a"})",
        R"({"command":"quota.list","cursor":1,"limit":3})", R"({"command":"quota.remove","tenant":"0x00ff"})",
        R"({"command":"quota.default","hard":5})", R"({"command":"quota.mode","listed":true})"})
    append(input, 0, 0, Type::kAdmin, std::as_bytes(std::span(text, std::strlen(text))));
  return input.take();
}

// The rest, except what makes pools. What is to be fenced is not: the descriptors that stand for processes are none.
Input more_administration() {
  Writer input;
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, "default");
  append(input, 0, 0, Type::kAttach, wire::bytes_of(attach));
  for (const char* text : {R"({"command":"policy"})",
                           R"({"command":"policy.set","name":"s3fifo","options":{"probation":0.25}})",
                           R"({"command":"policy.set","name":"lru"})",
                           R"({"command":"delete_tree","key":"0x6b","tenant":"a"})",
                           R"({"command":"memory.list","cursor":0})",
                           R"({"command":"memory.poison","key":"k"})",
                           R"({"command":"memory.poison","page":1})",
                           R"({"command":"host.list"})",
                           R"({"command":"host.declare_dead","host":1,"force":true})",
                           R"({"command":"device.list"})",
                           R"({"command":"status","pool":"other"})",
                           R"({"command":"clients","pool":"default","cursor":0})",
                           R"({"command":"quota.set","id":1,"soft":4096,"hard":8192,"pool":"other"})",
                           R"({"command":"quota.set","tenant":"listed","listed":true})",
                           R"({"command":"quota.default","soft":9})",
                           R"({"command":"quota.list","pool":"other"})",
                           R"({"command":"quota.get","id":1,"pool":"other"})",
                           R"({"command":"metrics"})",
                           R"({"command":"metrics","pool":"other"})",
                           R"({"command":"client.fence","pool":"default","lane":1})",
                           R"({"command":"client.fence","lane":1})",
                           R"({"command":"client.fence","pid":999999999,"start_time":1})",
                           R"({"command":"client.forget","pool":"default","lane":1,"generation":1})",
                           R"({"command":"blocks","tenant":"a","type":"kv","min_priority":1,"pinned":true})",
                           R"({"command":"check"})"})
    append(input, 0, 0, Type::kAdmin, std::as_bytes(std::span(text, std::strlen(text))));
  return input.take();
}

Input handing_back() {
  Writer input;
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, "default");
  attach.flags = wire::kAttachHandsBack;
  attach.previous_lane = 1;
  attach.previous_generation = 1;
  append(input, 0, 1, Type::kAttach, wire::bytes_of(attach));
  append(input, 1, 2, Type::kAttach, wire::bytes_of(attach));
  append(input, 2, 0, Type::kAttach, wire::bytes_of(attach));
  return input.take();
}

// Blocks come and go while administrators look at them and move them out.
Input with_blocks() {
  Writer input;
  for (const char* text :
       {R"({"command":"status"})", R"({"command":"block","key":"k3"})", R"({"command":"blocks","prefix":"k1"})",
        R"({"command":"blocks","pinned":true})", R"({"command":"blocks","tenant":1,"limit":1})",
        R"({"command":"blocks","type":"kv_cache","min_priority":1})", R"({"command":"pins","overdue":true})",
        R"({"command":"delete_tree","key":"k2"})", R"({"command":"evict","pages":2})", R"({"command":"quota.list"})",
        R"({"command":"policy.set","name":"lfu"})", R"({"command":"memory.poison","key":"k7","tenant":3})",
        R"({"command":"memory.list"})", R"({"command":"block","key":"k3"})", R"({"command":"clear"})",
        R"({"command":"check","quiesce":true})"}) {
    append_admin(input, 0, text);
    append_resident(input, 0, {0, 12, 2});
    append_resident(input, 0, {1, 13, 1});
  }
  for (uint8_t what = 0; what < 6; ++what) append_resident(input, 1, {what, 2, 3});
  append_admin(input, 1, R"({"command":"delete_tree","key":"k0","kind":"bytes","pool":"other"})");
  append_admin(input, 1, R"({"command":"map","pool":"other"})");
  return input.take();
}

// A client that takes all there is from those who were first, and a tenant that may not.
Input pressure() {
  Writer input;
  append_admin(input, 0, R"({"command":"quota.set","tenant":"t","soft":4096,"hard":8192})");
  append_admin(input, 0, R"({"command":"quota.set","tenant":"t","soft":9,"hard":8})");
  append_admin(input, 0, R"({"command":"quota.default","soft":4096,"hard":65536})");
  append_attach(input, 0, "default");
  for (const uint64_t tenant : {0, 1, 2}) {
    wire::CreditRequest credit{};
    credit.tenant = tenant + 1;
    credit.bytes = 4096;
    append(input, 0, 0, Type::kCredit, wire::bytes_of(credit));
    wire::RentRequest rent{};
    rent.runs = 100;
    rent.run_pages = 1 + tenant;
    rent.tenant = tenant;
    append(input, 0, 0, Type::kRent, wire::bytes_of(rent));
    append_resident(input, 0, {1, 14, uint8_t(tenant)});
  }
  append_admin(input, 0, R"({"command":"quota.list","limit":1})");
  append_admin(input, 0, R"({"command":"quota.remove","tenant":"t"})");
  append_admin(input, 0, R"({"command":"clients"})");
  wire::BadMemoryReport bad = {3, 0};
  append(input, 0, 0, Type::kBadMemory, wire::bytes_of(bad));
  return input.take();
}

// Who is not root: may read here, write there, and administrate a pool that waits; then it comes back.
Input strangers() {
  Writer input;
  append_admin(input, 2, R"({"command":"evict","pages":1})");
  append_admin(input, 2, R"({"command":"device.list"})");
  append_admin(input, 2, R"({"command":"client.fence","pid":1})");
  append_admin(input, 2, R"({"command":"status"})");
  append_admin(input, 2, R"({"command":"regions","pool":"lost"})");
  append_attach(input, 2, "lost");
  append_attach(input, 2, "other");
  append_attach(input, 2, "other", wire::kAttachReadOnly);
  wire::RentRequest rent{};
  rent.runs = rent.run_pages = 1;
  append(input, 2, 0, Type::kRent, wire::bytes_of(rent));
  wire::DeleteTreeRequest tree{};
  append(input, 2, 0, Type::kDeleteTree, wire::bytes_of(tree));
  append(input, 2, 0, Type::kDetach, {});
  append_attach(input, 2, "default");
  for (int i = 0; i < 4; ++i) append(input, 2, 0, Type::kRent, wire::bytes_of(rent));
  append_attach(input, 0, "lost");
  append_attach(input, 0, "lost");
  append_attach(input, 1, "lost", wire::kAttachHandsBack, 1);
  append_attach(input, 1, "lost", wire::kAttachHandsBack, kMemoryOfLost);
  append_admin(input, 1, R"({"command":"policy","pool":"lost"})");
  return input.take();
}

// Devices that go, and stay after all.
Input leaving() {
  Writer input;
  append_attach(input, 0, "other");
  append_admin(input, 0, R"({"command":"device.drain","name":"other"})");
  append_resident(input, 1, {1, 15, 0});
  append_admin(input, 1, R"({"command":"device.list"})");
  append_admin(input, 1, R"({"command":"clients","pool":"other"})");
  append_admin(input, 1, R"({"command":"device.cancel","name":"other"})");
  append_admin(input, 1, R"({"command":"device.remove","name":"other","deadline_ms":1000})");
  append_attach(input, 1, "other");
  append_admin(input, 1, R"({"command":"device.cancel","name":"other"})");
  append_resident(input, 1, {1, 15, 0});
  append_admin(input, 1, R"({"command":"client.fence","pid":1,"pool":"other"})");
  return input.take();
}

// The same bytes as what a client gets from marud.
void decode_as_client(const std::vector<uint8_t>& bytes) {
  const auto packet = std::as_bytes(std::span(bytes));
  (void)wire::decode_reply(packet);
  if (const auto reply = wire::decode_rent_reply(packet)) {
    std::span<const std::byte> rest(reply->evicted_keys);
    size_t keys = 0;
    while (const auto key = wire::next_evicted_key(rest)) {
      must(key->key.size() <= limits::kKeyBytesMax, "a key that is too long");
      ++keys;
    }
    must(keys <= reply->evicted_keys.size(), "more keys than bytes");
  }
}

}  // namespace

std::vector<Input> first_inputs() {
  return {all_kinds(),   administration(), more_administration(), handing_back(),
          with_blocks(), pressure(),       strangers(),           leaving()};
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  static std::unique_ptr<World> world;
  static int inputs = 0;
  if (inputs == 0) maru::daemon::log_start(maru::daemon::LogLevel::kError);
  if (inputs++ % kInputsPerPool == 0) {
    world.reset();
    world = std::make_unique<World>();
  }
  Reader reader(data, size);
  while (!reader.is_over()) {
    const uint64_t who = reader.number(1);
    const std::vector<uint8_t> packet = reader.bytes(reader.number(2));
    decode_as_client(packet);
    if ((who & kOfResident) != 0)
      world->resident(who % kResidents, packet);
    else
      world->packet((who & 7) % kConnections, (who >> 4) % (kMemoryOfLost + 1), packet);
  }
  world->expect_sound();
  return 0;
}
