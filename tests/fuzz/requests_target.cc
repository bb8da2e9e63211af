// Any bytes as packets to marud: the codec, and the dispatcher on top of a real pool. An input is a sequence of steps: which
// connection, with how many descriptors, and the packet. Whatever it was, every packet has one outcome (a reply that a
// client can decode, or a drop that says why), and the pool passes its audit in the end.
#include "daemon/requests.h"
#include "libmaru/wire/codec.h"
#include "tests/fuzz/target.h"
#include "tests/support/temporary_directory.h"

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
// A pool is used for so many inputs before it is made anew: what one input left is part of the next one's world.
constexpr int kInputsPerPool = 64;

class World {
 public:
  World() : state_(directory_.file("state")) {
    ::mkdir(directory_.file("state").c_str(), 0700);
    for (const char* name : {"default", "other"}) {
      daemon::PoolSpec spec;
      spec.pool.name = name;
      spec.pool.page_bytes = 4096;
      spec.pool.region_bytes = 64 << 10;
      spec.pool.lanes = 8;
      spec.pool.pins_max = 64;
      spec.pool.touch_entries = 64;
      spec.bytes = 1 << 20;
      spec.huge_pages = daemon::HugePages::kNever;
      std::map<std::string, FileDescriptor> stored;
      auto hosted = HostedPool::start(spec, state_, stored, now().unix_ms);
      must(hosted.has_value(), "a pool does not start");
      pools_.push_back(std::move(*hosted));
    }
    requests_.set_start(now());
    for (size_t i = 0; i < kConnections; ++i) {
      daemon::Peer peer;
      peer.who = {::getpid(), ::geteuid(), ::getegid(), 1000 + i};
      peer.command = "fuzz";
      peer.pidfd = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      sessions_.push_back(std::make_unique<Session>(i + 1, FileDescriptor(), std::move(peer)));
    }
  }

  void packet(size_t connection, size_t descriptors, const std::vector<uint8_t>& bytes) {
    Session::Received received;
    received.bytes = std::as_bytes(std::span(bytes));
    for (size_t i = 0; i < descriptors; ++i)
      received.descriptors.emplace_back(i == 0 ? ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                                               : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
    settle(*sessions_[connection], requests_.handle(*sessions_[connection], received, now()));
    for (const auto& again : requests_.settle_waiting(now()))
      settle(*sessions_[again.session - 1], requests_.attach_again(*sessions_[again.session - 1], again, now()));
    for (const auto& pool : pools_) {
      if (pool->serving()) pool->serving()->turn(now().unix_ms);
      must(!pool->fence_if_lost(), "a pool was fenced");
    }
  }

  void expect_sound() {
    for (const auto& pool : pools_) {
      const auto reply = pool->serving()->admin("check", {{"command", "check"}, {"quiesce", true}}, now().unix_ms);
      must(reply.contains("violations") && reply["violations"].empty(), reply.dump().c_str());
    }
  }

 private:
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
    }
    if (outcome.drop.empty()) return;
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
  daemon::DeviceCommands devices_{config_,    pools_, lanes_, state_, [] { return std::optional<daemon::Config>(); },
                                  [](bool) {}};
  Requests requests_{config_, pools_, lanes_, devices_};
  std::vector<std::unique_ptr<Session>> sessions_;
};

void append(Writer& input, size_t connection, size_t descriptors, Type type, std::span<const std::byte> payload) {
  const auto packet = wire::encode(type, 9, 0, payload);
  input.number(connection | descriptors << 4, 1).number(packet.size(), 2).bytes(packet);
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
  append(input, 1, 0, Type::kPing, {});
  append(input, 0, 0, Type::kDetach, {});
  return input.take();
}

Input administration() {
  Writer input;
  for (const char* text :
       {R"({"command":"status"})", R"({"command":"clients"})", R"({"command":"regions"})", R"({"command":"map"})",
        R"({"command":"watch","watch":1,"cursor":7})", R"({"command":"blocks","cursor":0,"limit":10,"prefix":"k"})",
        R"({"command":"block","key":"k"})", R"({"command":"pins","cursor":0,"limit":5})",
        R"({"command":"evict","pages":3,"pool":"other"})", R"({"command":"clear"})",
        R"({"command":"check","quiesce":true})", R"({"command":"quota.set","tenant":"0x00ff","soft":1,"hard":null})",
        R"({"command":"quota.get","tenant":"a"})", R"({"command":"quota.list","cursor":1,"limit":3})",
        R"({"command":"quota.remove","tenant":"0x00ff"})", R"({"command":"quota.default","hard":5})",
        R"({"command":"quota.mode","listed":true})"})
    append(input, 0, 0, Type::kAdmin, std::as_bytes(std::span(text, std::strlen(text))));
  return input.take();
}

// The rest, except what ends a process or makes pools.
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
                           R"({"command":"watch"})",
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

std::vector<Input> first_inputs() { return {all_kinds(), administration(), more_administration(), handing_back()}; }

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
    world->packet(who % kConnections, (who >> 4) % (kDescriptorsMax + 1), packet);
  }
  world->expect_sound();
  return 0;
}
