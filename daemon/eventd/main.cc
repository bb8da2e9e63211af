// maru-eventd: publishes the contents of pools of marud, as they change, in the formats of routers.
#include "daemon/base/log.h"
#include "daemon/beside/program.h"
#include "daemon/eventd/nats_outlet.h"
#include "daemon/eventd/settings.h"
#include "daemon/eventd/span_exporter.h"
#include "daemon/eventd/stream.h"
#include "daemon/eventd/zeromq_outlet.h"

#include <algorithm>

namespace maru::eventd {
namespace {

const char* const kHelp =
    R"(usage: maru-eventd --config FILE [--check-config] [--log-level LEVEL]

Follows pools of marud, and publishes which blocks are there, as they come and
go: by ZeroMQ in vLLM's format, and by NATS. Sends spans of clients' calls to
an OpenTelemetry collector.

  --config FILE       the configuration; maru-eventd.toml(5) describes it
  --check-config      print what is wrong with it, or OK
  --log-level LEVEL   debug, info (default), warning or error
  --help, --version

Exit status: 0 stopped as asked, or the configuration is good; 1 the
configuration is bad, or maru-eventd cannot serve; 2 the command line is wrong.
)";

using daemon::beside::Service;

struct Streams {
  ZmqContext context;  // behind the sockets
  std::vector<std::unique_ptr<Stream>> all;
  std::vector<uint64_t> turns;          // at the last look
  std::unique_ptr<SpanExporter> spans;  // null: not configured
  uint64_t span_turns = 0;

  // Whether each thread has come round since the last look.
  bool go_on() {
    const uint64_t now = spans ? spans->turns() : 0;
    bool all_go_on = !spans || std::exchange(span_turns, now) != now;
    turns.resize(all.size());
    for (size_t i = 0; i < all.size(); ++i) all_go_on &= std::exchange(turns[i], all[i]->turns()) != turns[i];
    return all_go_on;
  }
};

Result<void> open_zeromq(const ZeromqSettings& settings, const std::string& state_dir, Service& service,
                         Streams& streams) {
  const std::string sequence_path = state_dir.empty() ? "" : state_dir + "/" + settings.name + ".sequence";
  auto outlet = ZeromqOutlet::open(streams.context, settings, sequence_path, service.counters());
  if (!outlet) return failure(outlet.error().code, "stream \"" + settings.name + "\": " + outlet.error().doing);
  ZeromqOutlet& zeromq = **outlet;
  daemon::log_info("stream \"{}\": events at {}{}", settings.name, zeromq.endpoint(),
                   zeromq.replay_endpoint().empty() ? "" : ", replay at " + zeromq.replay_endpoint());
  auto stream = std::make_unique<Stream>(settings, std::move(*outlet), service.counters(), service.health());
  if (settings.relay) {
    const auto make = [&](uint32_t source, Contents& contents) {
      return EngineFeed::open(streams.context, settings.name, *settings.relay, source, contents, service.counters(),
                              service.health());
    };
    auto opened = stream->relay(make, [&zeromq](std::optional<int64_t> rank) { zeromq.set_rank(rank); });
    if (!opened) return failure(opened.error().code, "stream \"" + settings.name + "\": " + opened.error().doing);
    daemon::log_info("stream \"{}\": passes on what comes from {}", settings.name, settings.relay->endpoint);
  }
  streams.all.push_back(std::move(stream));
  return {};
}

Result<void> open_nats(const NatsSettings& settings, const std::string& state_dir, Service& service, Streams& streams) {
  const std::string sequence_path = state_dir.empty() ? "" : state_dir + "/" + settings.name + ".sequence";
  auto outlet = NatsOutlet::open(settings, sequence_path, service.counters(), service.health());
  if (!outlet) return failure(outlet.error().code, "stream \"" + settings.name + "\": " + outlet.error().doing);
  daemon::log_info("stream \"{}\": events to the subject {} at {}", settings.name, settings.subject, settings.url);
  streams.all.push_back(std::make_unique<Stream>(settings, std::move(*outlet), service.counters(), service.health()));
  return {};
}

Result<void> serve(const Settings& settings, Service& service) {
  for (const std::string& warning : settings.warnings) daemon::log_warning("{}", warning);
  Streams streams;
  for (const ZeromqSettings& stream : settings.zeromq)
    if (auto opened = open_zeromq(stream, settings.state_dir, service, streams); !opened) return opened;
  for (const NatsSettings& stream : settings.nats)
    if (auto opened = open_nats(stream, settings.state_dir, service, streams); !opened) return opened;
  if (settings.traces) {
    auto opened = SpanExporter::open(*settings.traces, service.counters(), service.health());
    if (!opened) return tl::unexpected(opened.error());
    streams.spans = std::move(*opened);
    daemon::log_info("traces: spans that come to {} go to {}", settings.traces->socket_path, settings.traces->endpoint);
  }
  // From here on every endpoint is ours.
  for (const auto& stream : streams.all) stream->start();
  if (streams.spans) streams.spans->start();
  auto served = service.run([&] { return streams.go_on(); });
  streams.spans.reset();
  streams.all.clear();
  return served;
}

}  // namespace
}  // namespace maru::eventd

int main(int count, char** arguments) {
  using namespace maru::eventd;
  Settings settings;
  const maru::daemon::beside::Program program = {
      "maru-eventd", kHelp,
      [&](maru::daemon::ConfigTable& root, std::vector<maru::daemon::ConfigProblem>& problems) {
        settings = read_settings(root, problems);
      },
      [&](Service& service) { return serve(settings, service); }};
  return maru::daemon::beside::run_program(program, count, arguments);
}
