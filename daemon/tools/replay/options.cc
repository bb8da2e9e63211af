#include "daemon/tools/replay/options.h"

#include "daemon/tools/replay/board.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <getopt.h>

namespace maru::replay {

const char* const kUsage =
    R"(Usage: maru-replay --trace FILE [options]

Replays a trace of requests against a pool of marud, with several client
processes at once. For each request a client matches the prefix, reads and
verifies the blocks that hit, stores the missing ones as a chain, and releases.
Every byte of every block that hits is compared with what must be there.

  --trace FILE       requests, one JSON object with "hash_ids" a line
  --socket PATH      marud's socket (default: as libmaru, $MARU_SOCKET first)
  --pool NAME        pool (default: "default")
  --clients N        client processes, 1 to 64 (default 4); the next request
                     goes to whoever is free
  --payload BYTES    bytes of a block (default 16384)
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
failed; 2 the command line is wrong.
)";

namespace {

enum Option : int {
  kTrace = 1000,
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

}  // namespace

Result<Options> parse_options(int argc, char** argv) {
  Options options;
  opterr = 0;
  for (int chosen; (chosen = ::getopt_long(argc, argv, "", kLongOptions, nullptr)) != -1;) {
    Result<uint64_t> number = 0;
    switch (chosen) {
      case kTrace: options.trace_path = optarg; break;
      case kSocket: options.socket_path = optarg; break;
      case kPool: options.pool = optarg; break;
      case kClients:
        number = parse_number("--clients", optarg, 1, kClientsMax);
        if (number) options.clients = uint32_t(*number);
        break;
      case kPayload:
        number = parse_number("--payload", optarg, 1, 1ull << 40);
        if (number) options.payload_bytes = *number;
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
  if (options.trace_path.empty()) return failure(EINVAL, "--trace is missing");
  return options;
}

}  // namespace maru::replay
