#include "tests/bench/marud_process.h"

#include "maru/format/wire.h"
#include "tests/bench/clock.h"
#include "tests/bench/floors.h"

#include <cstring>
#include <fstream>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

namespace maru::bench {

namespace {

constexpr uint64_t kMiB = 1ull << 20;

// The control region takes about 230 bytes a page and the lanes their pins and touches; too much is harmless, because
// memory that is not touched is not used.
uint64_t pool_bytes_for(const PoolShape& shape) {
  const uint64_t lane_bytes = 2ull * shape.pins_max * 8 + shape.pins_max / 4 * 8 + shape.touch_entries * 8ull + 4096;
  const uint64_t bytes = shape.pages * (shape.page_bytes + 320) + shape.lanes * lane_bytes + 128 * kMiB;
  return (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
}

}  // namespace

MarudProcess::MarudProcess(const std::string& program, const PoolShape& shape) : program_(program) {
  socket_path_ = directory_.file("marud.sock");
  config_path_ = directory_.file("marud.toml");
  log_path_ = directory_.file("marud.log");
  std::ofstream config(config_path_);
  config << "[daemon]\nsocket = \"" << socket_path_ << "\"\nstate_dir = \"" << directory_.file("state") << "\"\n\n"
         << "[[pool]]\nname = \"default\"\n";
  if (shape.in_file) {
    config << "backend = \"file\"\npath = \"" << directory_.file("pool") << "\"\n";
  } else {
    config << "backend = \"memory\"\n";
  }
  config << "size = " << pool_bytes_for(shape) << "\n"
         << "page_bytes = " << shape.page_bytes << "\n"
         << "lanes = " << shape.lanes << "\n"
         << "pins = " << shape.pins_max << "\n"
         << "touch_entries = " << shape.touch_entries << "\n"
         << "key_inline_bytes = 32\n";
  config << shape.more;
  if (shape.region_bytes) config << "region_bytes = " << shape.region_bytes << "\n";
  config.close();
  start();
  // Formatting a large pool takes its time.
  const uint64_t deadline_ns = now_ns() + 60'000'000'000ull;
  maru_client* client = nullptr;
  int result;
  while ((result = try_attach(socket_path_, 0, &client)) != 0) {
    if (!process_->running() || now_ns() > deadline_ns) {
      throw std::runtime_error(program_ + " did not start (" + std::strerror(-result) + "):\n" + log());
    }
    usleep(2000);
  }
  maru_detach(client);
}

MarudProcess::~MarudProcess() { process_->end(true); }

void MarudProcess::start() {
  process_ = std::make_unique<Child>(std::vector<std::string>{program_, "--config", config_path_}, log_path_);
}

std::string MarudProcess::ask(const std::string& json) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path_.c_str(), sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  std::vector<char> message(limits::kMessageBytesMax);
  wire::MessageHeader header{};
  header.magic = wire::kMagic;
  header.version = wire::kVersion;
  header.type = uint16_t(wire::Type::kAdmin);
  header.request_id = 1;
  header.bytes = uint32_t(json.size());
  std::memcpy(message.data(), &header, sizeof header);
  std::memcpy(message.data() + sizeof header, json.data(), json.size());
  ssize_t count = -1;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, message.data(), sizeof header + json.size(), MSG_NOSIGNAL) > 0) {
    count = recv(fd, message.data(), message.size(), 0);
  }
  close(fd);
  if (count < ssize_t(sizeof header)) throw std::runtime_error("marud did not answer " + json);
  std::memcpy(&header, message.data(), sizeof header);
  const std::string text(message.data() + sizeof header, size_t(count) - sizeof header);
  if (header.status < 0) throw std::runtime_error("marud refused " + json + ": " + text);
  return text;
}

int try_attach(const std::string& socket_path, uint32_t thread_cache_pages, maru_client** ret_client) {
  maru_attach_options options{};
  options.size = sizeof options;
  options.socket_path = socket_path.c_str();
  options.thread_cache_pages = thread_cache_pages;
  options.timeout_ms = 30'000;
  return maru_attach(&options, ret_client);
}

Client::Client(const std::string& socket_path, uint32_t thread_cache_pages) {
  must(try_attach(socket_path, thread_cache_pages, &client_), "attach");
}

maru_geometry Client::geometry() const {
  maru_geometry geometry{};
  geometry.size = sizeof geometry;
  must(maru_get_geometry(client_, &geometry), "geometry");
  return geometry;
}

int must(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string("maru ") + what + ": " + std::strerror(-result));
  return result;
}

bool pool_has_huge_pages() { return huge_pages_mapped("maru") || huge_pages_mapped("/anon_hugepage"); }

}  // namespace maru::bench
