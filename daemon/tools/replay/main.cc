// maru-replay: real requests against a pool, from several processes at once, with every byte checked.
#include "daemon/tools/replay/board.h"
#include "daemon/tools/replay/calls_report.h"
#include "daemon/tools/replay/client_processes.h"
#include "daemon/tools/replay/options.h"
#include "daemon/tools/replay/progress.h"
#include "daemon/tools/replay/replay_client.h"
#include "daemon/tools/replay/report.h"
#include "daemon/tools/trace/trace.h"
#include "libmaru/base/standard_streams.h"

#include <cstdio>
#include <maru/maru.h>
#include <memory>

namespace maru::replay {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;

int fail(const Error& error) {
  std::fprintf(stderr, "maru-replay: %s\n", error.text().c_str());
  return kFailed;
}

void print_client_errors(const Options& options, Board& board) {
  for (uint32_t i = 0; i < options.clients; ++i) {
    const ClientBoard& client = board.clients[i];
    switch (client.state.load(std::memory_order_acquire)) {
      case ClientState::kFailed: std::fprintf(stderr, "maru-replay: client %u: %s\n", i, client.error); break;
      case ClientState::kDone: break;
      default: std::fprintf(stderr, "maru-replay: client %u ended before its share was done\n", i);
    }
  }
}

int replay(const Options& options, int argc, char** argv) {
  const Result<trace::Trace> trace = trace::read_trace(options.trace_path, options.requests_max);
  if (!trace) return fail(trace.error());
  Result<SharedBoard> shared = SharedBoard::create();
  if (!shared) return fail(shared.error());
  Board& board = shared->board();

  Result<ClientProcesses> clients = ClientProcesses::start(options, argc, argv, shared->descriptor());
  if (!clients) return fail(clients.error());
  if (!clients->wait_until_attached()) {
    // The others would wait for a start that does not come; they are killed when `clients` goes.
    print_client_errors(options, board);
    return kFailed;
  }

  // All clients are attached and hold their share of the requests in memory: only the replay itself is timed.
  Progress progress(board, options.clients, trace->requests.size(), options.progress);
  clients->release();
  while (!clients->wait_until_gone(100)) progress.show();
  progress.finish();
  const uint32_t failed = clients->failed_count();
  if (failed != 0) print_client_errors(options, board);

  // Nobody writes the board any more.
  const Report report(options, *trace, board);
  if (options.json)
    std::printf("%s\n", report.json().dump(2).c_str());
  else
    std::fputs(report.text().c_str(), stdout);
  return report.is_clean(failed) ? 0 : kFailed;
}

int replay_recordings(const Options& options) {
  const Result<Recordings> recordings = read_recordings(options.recordings);
  if (!recordings) return fail(recordings.error());
  const auto report = std::make_unique<CallReport>();
  const CallSettings settings{options.socket_path, options.pool, options.order, options.speed, options.recorded_payload_max};
  if (const Result<void> played = play(*recordings, settings, *report); !played) return fail(played.error());
  if (options.json)
    std::printf("%s\n", calls_json(*recordings, *report).dump(2).c_str());
  else
    std::fputs(calls_text(*recordings, *report).c_str(), stdout);
  return has_new_errors(*report) ? kFailed : 0;
}

}  // namespace
}  // namespace maru::replay

int main(int argc, char** argv) {
  maru::hold_standard_streams();
  using namespace maru::replay;
  const maru::Result<Options> options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "maru-replay: %s\nTry maru-replay --help\n", options.error().doing.c_str());
    return kUsageError;
  }
  if (options->help) return std::fputs(kUsage, stdout), 0;
  if (options->version) return std::printf("maru-replay %s\n", maru_version()), 0;
  if (!options->recordings.empty()) return replay_recordings(*options);
  if (options->is_client) return run_client(*options);
  return replay(*options, argc, argv);
}
