// The configuration of maru-eventd; maru-eventd.toml(5) describes it.
#pragma once

#include "daemon/config/table.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace maru::eventd {

struct PoolSettings {
  std::string name = "default";
  std::string socket_path;  // empty: as libmaru
  std::string label;        // how [[zeromq]] and [[nats]] call it; its name where it is not said
};

// The settings that every stream has.
struct StreamSettings {
  std::string name;
  int line = 0;
  std::vector<PoolSettings> pools;
  std::string medium = "CPU";
  bool tells_hashes_alone = true;
  std::set<std::string> tenants;
  uint32_t batch_ms = 5;
  uint64_t batch_bytes = 128u << 10;
  uint32_t snapshot_pause_ms = 30'000;  // between announcements of everything that others asked for
};

// The feed of an engine that a stream passes on.
struct RelaySettings {
  std::string endpoint;  // that the engine publishes at
  std::string replay;    // empty: it has none
  std::string topic;     // the beginning of the topics that count
};

struct ZeromqSettings : StreamSettings {
  std::string endpoint;
  bool connects = false;                // instead of listening
  std::string replay;                   // with a frame for the topic; empty: none
  std::string replay_without_topic;     // empty: none
  std::vector<std::string> topics{""};  // each batch is published under each of them
  std::optional<int64_t> rank = 0;      // of data-parallel engines
  uint32_t heartbeat_ms = 5000;         // without a batch, until an empty one is published; 0: never
  uint32_t hwm = 1000;                  // batches that wait for one subscriber
  uint32_t replay_batches = 10'000;
  uint64_t replay_bytes = 256u << 20;
  std::optional<RelaySettings> relay;
};

struct NatsSettings : StreamSettings {
  enum class Format : uint8_t { kMaru, kDynamo };
  std::string url;
  std::string credentials_file, token_file;  // empty: none
  Format format = Format::kMaru;
  std::string subject;
  uint64_t worker_id = 0;     // Dynamo's
  uint64_t publisher_id = 0;  // likewise
  std::optional<int64_t> rank = 0;
  uint64_t buffer_bytes = 8u << 20;  // while the server is away
  bool jetstream = false;
  std::string jetstream_name;           // of the stream that holds the subject; empty: some administrator made one
  uint64_t jetstream_bytes = 1u << 30;  // that it keeps
  uint32_t jetstream_hours = 24;        // for which it keeps them
};

// Spans of clients, to a collector.
struct TraceSettings {
  std::string socket_path = "/run/maru-eventd/spans.sock";  // where clients hand out their rings
  std::string endpoint;                                     // of the collector, for OTLP over HTTP
  std::vector<std::string> headers;                         // "Name: value"
  uint32_t batch_spans = 1024;
  uint32_t batch_ms = 200;  // between looks into the rings
  uint32_t timeout_ms = 10'000;
  uint32_t retry_s = 60;  // for which a request is sent again
  uint32_t clients_max = 256;
  uint32_t user_clients_max = 0;  // each user may have so many; 0: half of clients_max
};

struct Settings {
  std::string state_dir;  // empty: none
  std::vector<ZeromqSettings> zeromq;
  std::vector<NatsSettings> nats;
  std::optional<TraceSettings> traces;
  std::vector<std::string> warnings;  // odd settings that are no mistakes
};

Settings read_settings(daemon::ConfigTable& root, std::vector<daemon::ConfigProblem>& problems);

}  // namespace maru::eventd
