#include "daemon/tools/replay/options.h"

#include "daemon/tools/replay/board.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <getopt.h>

namespace maru::replay {

const char* const kUsage =
    R"(Usage: maru-replay --trace FILE [options]
       maru-replay --recording FILE... [options]
       maru-replay --recording FILE... --export FILE [--lct-schema N]

Replays a trace of requests against a pool of marud, with several client
processes at once. For each request a client matches the prefix, reads and
verifies the blocks that hit, stores the missing ones as a chain, and releases.
Every byte of every block that hits is compared with what must be there.

With recordings of libmaru-record it plays the recorded calls, each recorded
thread with a client of its own, and compares what they find. It does the same
with storage traces of LMCache's server (.lct), and turns each into the other.

  --trace FILE       requests, one JSON object with "hash_ids" a line
  --recording FILE   the calls of one process, or a storage trace of LMCache;
                     again for each further process
  --export FILE      write the calls there, and play nothing: as a trace of
                     LMCache where the name ends with ".lct", else as one
                     recording
  --lct-schema N     of such a trace: 1 or 2 (default 2)
  --order ORDER      of recorded calls: "time" as they were made, "fast" each
                     thread on its own, "dependency" (default) likewise, but
                     a call waits for those that decide its result
  --speed X          with --order time: X times as fast (default 1)
  --socket PATH      marud's socket (default: as libmaru, $MARU_SOCKET first)
  --pool NAME        pool (default: "default")
  --clients N        client processes, 1 to 64 (default 4); the next request
                     goes to whoever is free
  --payload BYTES    bytes of a block (default 16384; of a recorded block at
                     most, default: as recorded)
  --tier PATH        maru-tierd's socket: each request asks it for its blocks
                     first, and holds them until its end
  --compute-us N     wait so long for each block that was not found, as an
                     engine that computes does (default 0)
  --requests N       stop after the first N requests of the trace
  --verify           each client afterwards reads once more what is still there
                     of its share of the blocks
  --json             print the result as one JSON object
  --no-progress      print nothing while it runs
  --help, --version

Exit status: 0 everything that was read was right; 1 wrong bytes, or a client
failed, or a recorded call failed that did not when it was recorded; 2 the
command line is wrong.
)";

namespace {

enum Option : int {
  kTrace = 1000,
  kRecording,
  kExport,
  kLctSchema,
  kOrder,
  kSpeed,
  kSocket,
  kPool,
  kClients,
  kPayload,
  kRequests,
  kTier,
  kComputeUs,
  kVerify,
  kJson,
  kNoProgress,
  kHelp,
  kVersion,
  kClientIndex,
};

const option kLongOptions[] = {
    {"trace", required_argument, nullptr, kTrace},
    {"recording", required_argument, nullptr, kRecording},
    {"export", required_argument, nullptr, kExport},
    {"lct-schema", required_argument, nullptr, kLctSchema},
    {"order", required_argument, nullptr, kOrder},
    {"speed", required_argument, nullptr, kSpeed},
    {"socket", required_argument, nullptr, kSocket},
    {"pool", required_argument, nullptr, kPool},
    {"clients", required_argument, nullptr, kClients},
    {"payload", required_argument, nullptr, kPayload},
    {"requests", required_argument, nullptr, kRequests},
    {"tier", required_argument, nullptr, kTier},
    {"compute-us", required_argument, nullptr, kComputeUs},
    {"verify", no_argument, nullptr, kVerify},
    {"json", no_argument, nullptr, kJson},
    {"no-progress", no_argument, nullptr, kNoProgress},
    {"help", no_argument, nullptr, kHelp},
    {"version", no_argument, nullptr, kVersion},
    {"client-index", required_argument, nullptr, kClientIndex},  // for the program itself
    {nullptr, 0, nullptr, 0},
};

Result<uint64_t> parse_number(const char* option_name, const char* text, uint64_t least, uint64_t most) {
  uint64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stopped != end || value < least || value > most)
    return failure(EINVAL, std::string(option_name) + " wants a number from " + std::to_string(least) + " to " +
                               std::to_string(most) + ", not \"" + text + "\"");
  return value;
}

Result<Order> parse_order(const std::string& text) {
  if (text == "time") return Order::kTime;
  if (text == "fast") return Order::kFast;
  if (text == "dependency") return Order::kDependency;
  return failure(EINVAL, "--order wants time, fast or dependency, not \"" + text + "\"");
}

}  // namespace

Result<Options> parse_options(int argc, char** argv) {
  Options options;
  opterr = 0;
  for (int chosen; (chosen = ::getopt_long(argc, argv, "", kLongOptions, nullptr)) != -1;) {
    Result<uint64_t> number = 0;
    switch (chosen) {
      case kTrace: options.trace_path = optarg; break;
      case kRecording: options.recordings.emplace_back(optarg); break;
      case kExport: options.export_path = optarg; break;
      case kLctSchema:
        number = parse_number("--lct-schema", optarg, 1, 2);
        if (number) options.lct_schema = uint32_t(*number);
        break;
      case kOrder: {
        const auto order = parse_order(optarg);
        if (!order) return tl::unexpected<Error>(order.error());
        options.order = *order;
        break;
      }
      case kSpeed: {
        char* end = nullptr;
        options.speed = std::strtod(optarg, &end);
        if (end == optarg || *end != '\0' || !(options.speed >= 0.001 && options.speed <= 1e6))
          return failure(EINVAL, std::string("--speed wants a number from 0.001 to 1000000, not \"") + optarg + "\"");
        break;
      }
      case kSocket: options.socket_path = optarg; break;
      case kPool: options.pool = optarg; break;
      case kClients:
        number = parse_number("--clients", optarg, 1, kClientsMax);
        if (number) options.clients = uint32_t(*number);
        break;
      case kPayload:
        number = parse_number("--payload", optarg, 1, 1ull << 40);
        if (number) options.payload_bytes = options.recorded_payload_max = *number;
        break;
      case kRequests:
        number = parse_number("--requests", optarg, 1, UINT64_MAX);
        if (number) options.requests_max = *number;
        break;
      case kTier: options.tier_path = optarg; break;
      case kComputeUs:
        number = parse_number("--compute-us", optarg, 0, 1'000'000);
        if (number) options.compute_us = uint32_t(*number);
        break;
      case kVerify: options.verify_afterwards = true; break;
      case kJson: options.json = true; break;
      case kNoProgress: options.progress = false; break;
      case kHelp: options.help = true; return options;
      case kVersion: options.version = true; return options;
      case kClientIndex:
        number = parse_number("--client-index", optarg, 0, kClientsMax - 1);
        options.is_client = true;
        if (number) options.client_index = uint32_t(*number);
        break;
      default: return failure(EINVAL, std::string("unknown option, or one without its argument: ") + argv[optind - 1]);
    }
    if (!number) return tl::unexpected<Error>(number.error());
  }
  if (optind < argc) return failure(EINVAL, std::string("unexpected argument ") + argv[optind]);
  if (options.trace_path.empty() && options.recordings.empty())
    return failure(EINVAL, "--trace or --recording is missing");
  if (!options.trace_path.empty() && !options.recordings.empty())
    return failure(EINVAL, "--trace and --recording exclude each other: give one of them");
  if (!options.export_path.empty() && options.recordings.empty())
    return failure(EINVAL, "--export wants --recording with the calls that it is to write");
  return options;
}

}  // namespace maru::replay
