// Memory that a test shares with its worker processes beside the pool: what they have done, and when they are to stop.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>

namespace maru::test {

inline constexpr uint32_t kWorkersMax = 8;

struct BoardWords {
  std::atomic<uint32_t> stop;  // workers finish what they are doing, detach and end with status 0
  struct alignas(64) Worker {
    std::atomic<uint64_t> operations;  // done, whatever came of them
    std::atomic<uint64_t> hits;        // blocks read and found right
    std::atomic<uint64_t> stores;      // blocks stored
    std::atomic<uint64_t> kept;        // keys 0 to kept - 1 are stored and stay (keeper.h)
    std::atomic<uint64_t> epochs;      // of marud: as last seen
    std::atomic<uint64_t> refused;     // stores beyond a tenant's limit
  } worker[kWorkersMax];
};

class Board {
 public:
  Board() : fd_(::memfd_create("maru-test-board", MFD_CLOEXEC)) {
    if (!fd_.is_open() || ::ftruncate(fd_.get(), sizeof(BoardWords)) != 0) throw std::runtime_error("make a board");
    map();
  }
  explicit Board(int inherited_fd) : fd_(inherited_fd) { map(); }

  BoardWords* operator->() const { return reinterpret_cast<BoardWords*>(memory_.data()); }
  int fd() const { return fd_.get(); }
  // Of all workers.
  uint64_t total(std::atomic<uint64_t> BoardWords::Worker::* word) const {
    uint64_t sum = 0;
    for (BoardWords::Worker& worker : (*this)->worker) sum += (worker.*word).load();
    return sum;
  }

 private:
  void map() {
    auto mapped = Mapping::map_shared(fd_.get(), 0, sizeof(BoardWords), PROT_READ | PROT_WRITE);
    if (!mapped) throw std::runtime_error(mapped.error().text());
    memory_ = std::move(*mapped);
  }
  FileDescriptor fd_;
  Mapping memory_;
};

}  // namespace maru::test
