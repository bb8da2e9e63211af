#include "tests/support/control_map.h"

#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/support/wait_until.h"

#include <cstring>
#include <stdexcept>

namespace maru::test {
namespace {

class Texts final : public shm::FindingSink {
 public:
  std::vector<std::string> lines;
  void found(const shm::Finding& finding) override {
    char text[200];
    std::snprintf(text, sizeof(text), "%s at %llu slot %u (%llx %llx %llx)",
                  shm::invariant_info(finding.invariant).name, static_cast<unsigned long long>(finding.index),
                  finding.slot, static_cast<unsigned long long>(finding.words[0]),
                  static_cast<unsigned long long>(finding.words[1]), static_cast<unsigned long long>(finding.words[2]));
    lines.emplace_back(text);
  }
};

}  // namespace

ControlMap::ControlMap(const std::string& socket_path, const std::string& pool) {
  const auto must = [](auto&& result, const char* doing) {
    if (!result) throw std::runtime_error(std::string(doing) + ": " + result.error().text());
    return std::move(*result);
  };
  socket_ = must(wire::connect_to(socket_path), "connect");
  wire::AttachRequest request{};
  std::memcpy(request.pool, pool.data(), pool.size());
  const auto packet = wire::encode(wire::Type::kAttach, 1, 0, wire::bytes_of(request));
  if (!wire::send_packet(socket_.get(), packet, -1, far_too_long_ms()))
    throw std::runtime_error("cannot send an attach");
  wire::Packet reply = must(wire::receive_packet(socket_.get(), far_too_long_ms()), "attach");
  const auto header = must(wire::decode_reply(reply.bytes), "attach");
  const auto attached = wire::read_exactly<wire::AttachReply>(wire::payload_of(reply.bytes));
  if (header.status != 0 || !attached || !reply.fd.is_open()) throw std::runtime_error("marud refused an attach");
  attached_ = *attached;
  device_ = std::move(reply.fd);
  control_device_ = std::move(reply.second);
  const int control_fd = control_device_.is_open() ? control_device_.get() : device_.get();
  control_ = must(Mapping::map_shared(control_fd, 0, attached_.control_bytes, PROT_READ | PROT_WRITE), "map");
  if (const char* problem = shm::ControlRegion::attach(control_.bytes(), attached_.pool_bytes, &region_))
    throw std::runtime_error(std::string("the control region: ") + problem);
}

std::string ControlMap::PageCounts::text() const {
  static constexpr const char* kNames[] = {"OUT",   "FREE",     "RESERVED", "SEALED",   "TAIL",
                                           "READY", "RETIRING", "RETIRED",  "POISONED", "unknown"};
  std::string line;
  for (size_t i = 0; i <= format::kPageStateCount; ++i)
    if (of[i] != 0) line += std::string(kNames[i]) + " " + std::to_string(of[i]) + " ";
  return line;
}

ControlMap::PageCounts ControlMap::count_pages() const {
  PageCounts counts;
  for (uint32_t page = 0; page < region_.pages(); ++page) {
    const shm::PageWord word{region_.block(page).word.load_acquire()};
    ++counts.of[std::min<size_t>(size_t(word.state()), format::kPageStateCount)];
  }
  return counts;
}

uint64_t ControlMap::count_pins(uint32_t lane) const {
  uint64_t pins = 0;
  const shm::LaneView view = region_.lane(lane);
  for (const auto& slots : {view.pins, view.pin_overflow})
    for (const AtomicU64& slot : slots) pins += slot.load_acquire() != 0;
  return pins;
}

uint64_t ControlMap::count_pins() const {
  uint64_t pins = 0;
  for (uint32_t lane = 0; lane < region_.lanes(); ++lane) pins += count_pins(lane);
  return pins;
}

std::vector<std::string> ControlMap::audit(shm::AuditMode mode, const shm::LaneSet& live) const {
  Texts texts;
  std::vector<uint64_t> scratch((shm::audit_scratch_bytes(region_) + 7) / 8);
  shm::AuditRequest request;
  request.mode = mode;
  request.live = live;
  shm::audit(region_, request, std::as_writable_bytes(std::span(scratch)), texts);
  return texts.lines;
}

}  // namespace maru::test
