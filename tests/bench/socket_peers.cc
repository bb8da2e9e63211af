// memcached and redis on a private Unix socket, driven by a raw client that pipelines. They are measured with the
// server on the client's CPU and on another one, and the better placement counts: on a virtual machine a wake-up
// across CPUs costs more than the request.
#include "tests/bench/floors.h"
#include "tests/bench/peers.h"
#include "tests/bench/processes.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>

namespace maru::bench {

namespace {

class SocketPeer : public Peer {
 public:
  SocketPeer(std::unique_ptr<Child> server, int fd) : server_(std::move(server)), fd_(fd) {}
  ~SocketPeer() override {
    close(fd_);
    server_->end(true);
  }
  unsigned placements() const override { return cpu_count() > 1 ? 2 : 1; }
  void place(unsigned placement) override {
    for (const int task : tasks_of_server()) run_on_cpu(placement, task);
  }

 protected:
  // Whoever measures runs on CPU 0; servers may have threads of their own.
  std::vector<int> tasks_of_server() const {
    std::vector<int> tasks;
    std::error_code ignored;
    const std::string directory = "/proc/" + std::to_string(server_->pid()) + "/task";
    for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
      tasks.push_back(std::stoi(entry.path().filename().string()));
    }
    return tasks;
  }

  void flush() {
    for (size_t sent = 0; sent < out_.size();) {
      const ssize_t count = send(fd_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) throw std::runtime_error(name() + " closed the connection");
      sent += size_t(count);
    }
    out_.clear();
  }
  void receive() {
    if (begin_ == end_) begin_ = end_ = 0;
    if (end_ == sizeof in_) {
      std::memmove(in_, in_ + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    ssize_t count;
    do {
      count = recv(fd_, in_ + end_, sizeof in_ - end_, 0);
    } while (count < 0 && errno == EINTR);
    if (count <= 0) throw std::runtime_error(name() + " closed the connection");
    end_ += size_t(count);
  }
  // One line without its end; valid until the next read.
  std::string_view line() {
    for (size_t scanned = 0;;) {
      const void* found = std::memchr(in_ + begin_ + scanned, '\n', end_ - begin_ - scanned);
      if (found) {
        const size_t length = size_t(static_cast<const char*>(found) - (in_ + begin_));
        const std::string_view text(in_ + begin_, length - 1);
        begin_ += length + 1;
        return text;
      }
      scanned = end_ - begin_;
      receive();
    }
  }
  void bytes(void* to, size_t count) {
    while (end_ - begin_ < count) receive();
    std::memcpy(to, in_ + begin_, count);
    begin_ += count;
  }
  void text(std::string_view part) { out_.append(part); }

  std::unique_ptr<Child> server_;
  int fd_;
  std::string out_;
  char in_[1 << 16];
  size_t begin_ = 0, end_ = 0;
};

PeerRecord record_of(uint64_t index) { return {{index, ~index, index * 3}}; }

class Memcached final : public SocketPeer {
 public:
  using SocketPeer::SocketPeer;
  std::string name() const override { return "memcached"; }

  void load(uint64_t keys) override {
    for (uint64_t i = 0; i < keys; ++i) {
      const PeerRecord record = record_of(i);
      text("set ");
      append_key(key_of(i));
      text(" 0 0 24 noreply\r\n");
      text({reinterpret_cast<const char*>(&record), sizeof record});
      text("\r\n");
      if (out_.size() > 60'000) flush();
    }
    text("mn\r\n");
    flush();
    expect(line() == "MN", "load");
  }
  bool exists(const Key& key) override {
    text("mg ");
    append_key(key);
    text("\r\n");
    flush();
    return line() == "HD";
  }
  uint64_t exists_batch(const Key* keys, uint64_t count) override {
    for (uint64_t i = 0; i < count; ++i) {
      text("mg ");
      append_key(keys[i]);
      text("\r\n");
    }
    flush();
    uint64_t present = 0;
    for (uint64_t i = 0; i < count; ++i) present += line() == "HD";
    return present;
  }
  bool lookup(const Key& key, PeerRecord& record) override {
    text("mg ");
    append_key(key);
    text(" v\r\n");
    flush();
    if (!line().starts_with("VA")) return false;
    char end[2];
    bytes(&record, sizeof record);
    bytes(end, sizeof end);
    return true;
  }
  bool put(const Key& key, const void* value64) override {
    text("ms ");
    append_key(key);
    text(" 64\r\n");
    text({static_cast<const char*>(value64), kSmallValueBytes});
    text("\r\n");
    flush();
    return line() == "HD";
  }
  bool remove(const Key& key) override {
    text("md ");
    append_key(key);
    text("\r\n");
    flush();
    return line() == "HD";
  }

 private:
  void expect(bool good, const char* what) {
    if (!good) throw std::runtime_error(std::string("memcached: unexpected answer to ") + what);
  }
  // The protocol is text, so the digest is written with 6 bits a character.
  void append_key(const Key& key) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-";
    char characters[22];
    for (int i = 0; i < 11; ++i) {
      characters[i] = digits[key.lo >> (i < 10 ? 6 * i : 60) & 63];
      characters[11 + i] = digits[key.hi >> (i < 10 ? 6 * i : 60) & 63];
    }
    out_.append(characters, sizeof characters);
  }
};

class Redis final : public SocketPeer {
 public:
  using SocketPeer::SocketPeer;
  std::string name() const override { return "redis"; }

  void load(uint64_t keys) override {
    uint64_t answered = 0;
    for (uint64_t i = 0; i < keys; ++i) {
      const PeerRecord record = record_of(i);
      text("*3\r\n$3\r\nSET\r\n");
      append_key(key_of(i));
      text("$24\r\n");
      text({reinterpret_cast<const char*>(&record), sizeof record});
      text("\r\n");
      if (out_.size() > 60'000 || i + 1 == keys) {
        flush();
        for (; answered <= i; ++answered) expect(line() == "+OK", "load");
      }
    }
  }
  bool exists(const Key& key) override { return one("*2\r\n$6\r\nEXISTS\r\n", key) == ":1"; }
  uint64_t exists_batch(const Key* keys, uint64_t count) override {
    text("*");
    text(std::to_string(count + 1));
    text("\r\n$6\r\nEXISTS\r\n");
    for (uint64_t i = 0; i < count; ++i) append_key(keys[i]);
    flush();
    return std::stoull(std::string(line().substr(1)));
  }
  bool lookup(const Key& key, PeerRecord& record) override {
    if (one("*2\r\n$3\r\nGET\r\n", key) != "$24") return false;
    char end[2];
    bytes(&record, sizeof record);
    bytes(end, sizeof end);
    return true;
  }
  bool put(const Key& key, const void* value64) override {
    text("*3\r\n$3\r\nSET\r\n");
    append_key(key);
    text("$64\r\n");
    text({static_cast<const char*>(value64), kSmallValueBytes});
    text("\r\n");
    flush();
    return line() == "+OK";
  }
  bool remove(const Key& key) override { return one("*2\r\n$3\r\nDEL\r\n", key) == ":1"; }

 private:
  void expect(bool good, const char* what) {
    if (!good) throw std::runtime_error(std::string("redis: unexpected answer to ") + what);
  }
  std::string_view one(std::string_view command, const Key& key) {
    text(command);
    append_key(key);
    flush();
    return line();
  }
  void append_key(const Key& key) {
    text("$16\r\n");
    text({reinterpret_cast<const char*>(&key), sizeof key});
    text("\r\n");
  }
};

template <class ServerPeer>
std::unique_ptr<Peer> start(const std::vector<std::string>& command, const std::string& socket,
                            const std::string& log) {
  auto server = std::make_unique<Child>(command, log);
  const int fd = connect_stream(socket, 10'000, *server);
  if (fd < 0) throw std::runtime_error(command[0] + " did not start:\n" + tail_of(log));
  return std::make_unique<ServerPeer>(std::move(server), fd);
}

}  // namespace

// Memory is bounded at twice what the keys need.
std::unique_ptr<Peer> start_memcached(const std::string& directory, uint64_t keys) {
  const std::string program = find_program("memcached");
  if (program.empty()) return nullptr;
  unsigned hash_power = 16;
  while ((1ull << hash_power) < keys + keys / 4) ++hash_power;
  const std::string socket = directory + "/memcached.sock";
  std::vector<std::string> command = {program,
                                      "-s",
                                      socket,
                                      "-a",
                                      "0700",
                                      "-t",
                                      "1",
                                      "-U",
                                      "0",
                                      "-m",
                                      std::to_string(128 + keys * 256 / (1 << 20)),
                                      "-o",
                                      "hashpower=" + std::to_string(hash_power) + ",no_lru_crawler"};
  if (geteuid() == 0) command.insert(command.end(), {"-u", "root"});
  return start<Memcached>(command, socket, directory + "/memcached.log");
}

std::unique_ptr<Peer> start_redis(const std::string& directory, uint64_t keys) {
  const std::string program = find_program("redis-server");
  if (program.empty()) return nullptr;
  const std::string socket = directory + "/redis.sock";
  return start<Redis>({program, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "700", "--save", "",
                       "--appendonly", "no", "--dir", directory, "--maxmemory",
                       std::to_string((128ull << 20) + keys * 256), "--maxmemory-policy", "noeviction"},
                      socket, directory + "/redis.log");
}

}  // namespace maru::bench
