#include "daemon/tools/replay/replay_client.h"

#include "daemon/tools/replay/block_content.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <maru/maru.hpp>
#include <maru/prefetch.h>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <system_error>
#include <unistd.h>
#include <unordered_set>
#include <vector>

namespace maru::replay {
namespace {

uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000u + uint64_t(now.tv_nsec);
}

// Times one operation into its histogram.
class Timed {
 public:
  Timed(ClientBoard& board, Operation operation) : histogram_(board.of(operation)), started_ns_(now_ns()) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { histogram_.record(now_ns() - started_ns_); }

 private:
  LatencyHistogram& histogram_;
  uint64_t started_ns_;
};

// The replay of requests over one attachment. Buffers are reused from request to request, so that the measured calls are
// the pool's and not the allocator's.
class Replayer {
 public:
  Replayer(Client& client, ClientBoard& board, const Options& options)
      : client_(client), board_(board), options_(options), payload_bytes_(options.payload_bytes) {}

  // An error is a result that no client should meet. The answers of a full pool are counted, and are not errors.
  Outcome<void> replay(const trace::Request& request) {
    name_blocks(request);
    const Ticket ticket = ask_tier();
    Outcome<Match> match = match_prefix();
    if (!match) return Failed{match.error()};
    if (Outcome<void> read = read_and_verify(*match); !read) return read;
    board_.hit_blocks.add(match->blocks());
    board_.blocks.add(keys_.size());
    compute(keys_.size() - match->blocks());
    if (match->blocks() < keys_.size() && !store_missing(*match)) {
      // The block that was to be the parent went between two stores. A second match finds the place to go on, once.
      board_.parent_gone.add(1);
      match = match_prefix();
      if (!match) return Failed{match.error()};
      if (match->blocks() < keys_.size() && !store_missing(*match)) board_.parent_gone_twice.add(1);
    }
    {
      Timed timed(board_, Operation::kRelease);
      failed_call_ = "maru_release_match";
      match->release();
    }
    board_.requests.add(1);
    return {};
  }

  // Reads a request's blocks that are still present once more: this client's share of the distinct blocks.
  Outcome<void> check(const trace::Request& request, uint64_t share, uint64_t shares) {
    name_blocks(request);
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (digests_[i][1] % shares != share || !checked_.insert(digests_[i][0]).second) continue;
      failed_call_ = "maru_retrieve";
      const Outcome<View> view = client_.retrieve(keys_[i]);
      if (!view && view.error() == ENOENT) continue;
      if (!view) return Failed{view.error()};
      board_.checked_blocks.add(1);
      board_.checked_wrong_bytes.add(wrong_bytes(digests_[i], view->c()));
    }
    return {};
  }

  const char* failed_call() const { return failed_call_; }

 private:
  void name_blocks(const trace::Request& request) {
    prefix_digests(request, payload_bytes_, digests_);
    keys_.clear();
    for (const BlockDigest& digest : digests_) keys_.push_back(Key::digest128(digest.data()));
  }

  struct ReleaseTicket {
    void operator()(maru_prefetch_ticket* ticket) const { maru_prefetch_release(ticket); }
  };
  using Ticket = std::unique_ptr<maru_prefetch_ticket, ReleaseTicket>;

  // Waits until the tier has loaded the blocks that the pool lacks. The ticket holds them until it ends.
  Ticket ask_tier() {
    if (options_.tier_path.empty()) return {};
    std::vector<maru_key> wanted;
    for (const Key& key : keys_) wanted.push_back(key);
    if (wanted.size() > MARU_PREFETCH_KEYS_MAX) wanted.resize(MARU_PREFETCH_KEYS_MAX);
    maru_prefetch_options how = {};
    how.size = sizeof how;
    how.socket_path = options_.tier_path.c_str();
    how.deadline_ms = 60'000;
    maru_prefetch_status_info status = {};
    status.size = sizeof status;
    maru_prefetch_ticket* found = nullptr;
    const int asked = maru_prefetch(wanted.data(), wanted.size(), &how, &found);
    Ticket ticket(found);
    if (asked != 0 || maru_prefetch_wait(found, -1, &status) != 0)
      board_.tier_failures.add(1);
    else
      board_.tier_blocks.add(status.loaded);
    return ticket;
  }

  // As long as an engine would.
  void compute(uint64_t blocks) const {
    const uint64_t ns = blocks * options_.compute_us * 1000;
    const timespec pause = {time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
    if (ns > 0) ::nanosleep(&pause, nullptr);
  }

  Outcome<Match> match_prefix() {
    failed_call_ = "maru_match_prefix";
    Timed timed(board_, Operation::kMatch);
    return client_.match_prefix(keys_);
  }

  Outcome<void> read_and_verify(const Match& match) {
    if (match.blocks() == 0) return {};
    failed_call_ = "maru_resolve";
    views_.resize(match.blocks());
    Timed timed(board_, Operation::kReadVerify);
    if (Outcome<void> resolved = match.resolve(keys_, views_); !resolved) return resolved;
    for (size_t i = 0; i < views_.size(); ++i) {
      board_.verified_bytes.add(payload_bytes_);
      board_.wrong_bytes.add(wrong_bytes(digests_[i], views_[i]));
    }
    return {};
  }

  // A block of the wrong length is wrong from end to end.
  uint64_t wrong_bytes(const BlockDigest& digest, const maru_view& view) const {
    if (view.data == nullptr || view.bytes != payload_bytes_) return payload_bytes_;
    return count_wrong_bytes(digest, {static_cast<const std::byte*>(view.data), size_t(view.bytes)});
  }

  // Stores the blocks behind the match as a chain under its deepest. False: a parent was gone; everything that was not
  // stored has been given back.
  bool store_missing(const Match& match) {
    const size_t first = match.blocks();
    const size_t missing = keys_.size() - first;
    Outcome<Buffers> buffers = [&] {
      Timed timed(board_, Operation::kAlloc);
      return client_.alloc_batch(payload_bytes_, missing);
    }();
    if (!buffers) {
      count_failure(buffers.error(), missing);
      return true;
    }
    {
      Timed timed(board_, Operation::kFill);
      for (size_t i = 0; i < missing; ++i) fill_block(digests_[first + i], buffers->bytes(i));
    }
    ChainStored chain;
    {
      Timed timed(board_, Operation::kStore);
      chain = client_.store_chain(std::span(keys_).subspan(first), *buffers, store_under(match.deepest()));
    }
    board_.stored_blocks.add(chain.stored);
    board_.duplicate_blocks.add(chain.done - chain.stored);
    if (chain.error == ENOLINK) return false;
    if (chain.error != 0) count_failure(chain.error, missing - chain.done);
    return true;
  }

  void count_failure(int code, size_t blocks) {
    if (code == ENOSPC) {
      board_.no_space_requests.add(1);
      board_.no_space_blocks.add(blocks);
    } else {
      board_.failed_stores.add(1);
      board_.failed_store_errno.set(uint64_t(code));
    }
  }

  Client& client_;
  ClientBoard& board_;
  const Options& options_;
  const uint64_t payload_bytes_;
  const char* failed_call_ = "";
  std::vector<BlockDigest> digests_;
  std::vector<Key> keys_;
  std::vector<maru_view> views_;
  std::unordered_set<uint64_t> checked_;
};

int fail(ClientBoard& board, const std::string& text) {
  std::snprintf(board.error, sizeof(board.error), "%s", text.c_str());
  board.state.store(ClientState::kFailed, std::memory_order_release);
  return 1;
}

std::string call_text(const char* call, int code) {
  return std::string(call) + ": " + std::generic_category().message(code);
}

// Blocks until the starter closes its end of the pipe.
void wait_for_start() {
  char byte = 0;
  while (::read(kStartDescriptor, &byte, 1) < 0 && errno == EINTR) {
  }
}

// Waits until no other client stores any more: blocks that count as still present must be present all at once. False: another
// client hangs or was killed.
bool wait_for_others(const Board& board, uint32_t clients, int timeout_ms) {
  const auto is_replaying = [&](uint32_t client) {
    const auto state = board.clients[client].state.load(std::memory_order_acquire);
    return state == ClientState::kStarting || state == ClientState::kAttached;
  };
  const uint64_t until_ns = now_ns() + uint64_t(timeout_ms) * 1'000'000;
  for (uint32_t client = 0; client < clients; ++client)
    while (is_replaying(client)) {
      if (now_ns() > until_ns) return false;
      const timespec pause = {0, 1'000'000};
      ::nanosleep(&pause, nullptr);
    }
  return true;
}

void note_pool(const Client& client, ClientBoard& board) {
  const Outcome<maru_geometry> geometry = client.geometry();
  if (!geometry) return;
  board.pool_bytes.set(geometry->pool_bytes);
  board.control_bytes.set(geometry->control_bytes);
  board.page_bytes.set(geometry->page_bytes);
  board.pages.set(geometry->pages);
  board.region_pages.set(geometry->region_pages);
}

void note_statistics(const Client& client, ClientBoard& board) {
  const Outcome<maru_statistics> statistics = client.statistics();
  if (!statistics) return;
  board.evicted_blocks.set(statistics->evicted);
  board.rents.set(statistics->rents);
  board.search_fallbacks.set(statistics->search_fallbacks);
}

}  // namespace

int run_client(const Options& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Result<SharedBoard> shared = SharedBoard::open(FileDescriptor(kBoardDescriptor));
  if (!shared) {
    std::fprintf(stderr, "maru-replay: client %u: %s\n", options.client_index, shared.error().text().c_str());
    return 1;
  }
  ClientBoard& board = shared->board().clients[options.client_index];
  const Result<trace::Trace> trace = trace::read_trace(options.trace_path, options.requests_max);
  if (!trace) return fail(board, trace.error().text());

  maru_attach_options how = attach_options();
  how.timeout_ms = 60'000;  // a machine that is busy with the replay may take its time, and nothing has failed then
  how.socket_path = options.socket_path.empty() ? nullptr : options.socket_path.c_str();
  how.pool = options.pool.empty() ? nullptr : options.pool.c_str();
  Outcome<Client> client = Client::attach(how);
  if (!client) return fail(board, call_text("maru_attach", client.error()));
  note_pool(*client, board);
  board.state.store(ClientState::kAttached, std::memory_order_release);
  const char attached = 1;
  if (::write(kAliveDescriptor, &attached, 1) != 1) return fail(board, call_text("tell the starter", errno));
  wait_for_start();

  // From here on the clients run against each other.
  Replayer replayer(*client, board, options);
  board.started_ns.set(now_ns());
  std::atomic<uint64_t>& next = shared->board().next_request;
  for (size_t i = next.fetch_add(1); i < trace->requests.size(); i = next.fetch_add(1)) {
    if (const Outcome<void> replayed = replayer.replay(trace->requests[i]); !replayed)
      return fail(board, "request " + std::to_string(i) + ": " + call_text(replayer.failed_call(), replayed.error()));
  }
  board.ended_ns.set(now_ns());
  note_statistics(*client, board);
  board.state.store(ClientState::kReplayed, std::memory_order_release);
  if (options.verify_afterwards) {
    if (!wait_for_others(shared->board(), options.clients, int(how.timeout_ms)))
      return fail(board, "the other clients have not ended their replay a minute after this one");
    for (size_t i = 0; i < trace->requests.size(); ++i) {
      const Outcome<void> checked = replayer.check(trace->requests[i], options.client_index, options.clients);
      if (!checked)
        return fail(board, "check " + std::to_string(i) + ": " + call_text(replayer.failed_call(), checked.error()));
    }
  }
  client->detach();
  board.state.store(ClientState::kDone, std::memory_order_release);
  return 0;
}

}  // namespace maru::replay
