// maru-replay: real requests against a pool, from several processes at once, with every byte checked.
#include "daemon/tools/replay/board.h"
#include "daemon/tools/replay/calls_report.h"
#include "daemon/tools/replay/client_processes.h"
#include "daemon/tools/replay/lct.h"
#include "daemon/tools/replay/options.h"
#include "daemon/tools/replay/progress.h"
#include "daemon/tools/replay/replay_client.h"
#include "daemon/tools/replay/report.h"
#include "daemon/tools/trace/trace.h"
#include "libmaru/base/standard_streams.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
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

  // All writers of the board have ended.
  const Report report(options, *trace, board);
  if (options.json)
    std::printf("%s\n", report.json().dump(2).c_str());
  else
    std::fputs(report.text().c_str(), stdout);
  return report.is_clean(failed) ? 0 : kFailed;
}

Result<void> write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return failure(errno, "write " + path);
  if (!file.write(bytes.data(), std::streamsize(bytes.size())).flush()) return failure(EIO, "write " + path);
  return {};
}

int export_recordings(const Options& options, const Recordings& recordings) {
  const bool is_lct = options.export_path.ends_with(".lct");
  const Lct made = is_lct ? lct_of(recordings, options.lct_schema) : Lct{recording_of(recordings)};
  if (const auto written = write_file(options.export_path, made.bytes); !written) return fail(written.error());
  std::printf("%zu calls read, %llu of them have no place in %s; %llu bytes were torn, %llu calls unknown\n",
              recordings.calls.size(), static_cast<unsigned long long>(made.left_out), options.export_path.c_str(),
              static_cast<unsigned long long>(recordings.torn_bytes),
              static_cast<unsigned long long>(recordings.unknown));
  return 0;
}

int replay_recordings(const Options& options) {
  const Result<Recordings> recordings = read_recordings(options.recordings);
  if (!recordings) return fail(recordings.error());
  if (!options.export_path.empty()) return export_recordings(options, *recordings);
  const auto report = std::make_unique<CallReport>();
  const CallSettings settings{options.socket_path, options.pool, options.order, options.speed,
                              options.recorded_payload_max};
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
