// The board: memory that the replaying processes share with their starter. Each client writes its own part. The starter reads
// all parts, for the progress during the replay and for the report afterwards.
#pragma once

#include "daemon/tools/replay/latency_histogram.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/base/result.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace maru::replay {

inline constexpr uint32_t kClientsMax = 64;

enum class Operation : uint32_t { kMatch, kReadVerify, kAlloc, kFill, kStore, kRelease };
inline constexpr uint32_t kOperations = 6;
inline constexpr std::array<const char*, kOperations> kOperationNames = {"match", "read+verify", "alloc",
                                                                         "fill",  "store",       "release"};

enum class ClientState : uint32_t { kStarting, kAttached, kReplayed, kDone, kFailed };

// A counter with one writer.
class Counter {
 public:
  void add(uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct ClientBoard {
  std::atomic<ClientState> state{ClientState::kStarting};
  char error[256] = {};  // written before the state becomes kFailed

  // The pool as the client found it.
  Counter pool_bytes, control_bytes, page_bytes, pages, region_pages;

  Counter requests;       // finished
  Counter blocks;         // asked for
  Counter hit_blocks;     // of them found as a prefix
  Counter tier_blocks;    // that a tier loaded for this client's requests
  Counter tier_failures;  // requests that the tier did not answer
  Counter verified_bytes;
  Counter wrong_bytes;
  Counter stored_blocks;       // new
  Counter duplicate_blocks;    // another client was faster
  Counter parent_gone;         // stores that met -ENOLINK and were tried again
  Counter parent_gone_twice;   // and given up
  Counter no_space_requests;   // requests whose missing blocks found no memory, and
  Counter no_space_blocks;     // the number of these blocks
  Counter failed_stores;       // with another error, and
  Counter failed_store_errno;  // the last error
  Counter evicted_blocks;      // by requests of this client
  Counter rents;
  Counter search_fallbacks;
  Counter checked_blocks;  // read again after the replay (--verify)
  Counter checked_wrong_bytes;
  Counter started_ns, ended_ns;  // CLOCK_MONOTONIC, of the replay proper

  std::array<LatencyHistogram, kOperations> latency;

  LatencyHistogram& of(Operation operation) { return latency[size_t(operation)]; }
};

struct Board {
  // Requests go in the order of the trace, each to the first free client. So a client that is held up does not fall behind the
  // others by half a trace, which would be another trace.
  std::atomic<uint64_t> next_request{0};
  std::array<ClientBoard, kClientsMax> clients;
};

// Owns the mapping of a board.
class SharedBoard {
 public:
  // Creates an empty board in memory that has no name; descriptor() is handed to the client processes.
  static Result<SharedBoard> create();
  // Maps the board behind a descriptor.
  static Result<SharedBoard> open(FileDescriptor fd);

  Board& board() { return *reinterpret_cast<Board*>(mapping_.data()); }
  int descriptor() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
  Mapping mapping_;
};

}  // namespace maru::replay
