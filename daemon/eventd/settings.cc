#include "daemon/eventd/settings.h"

#include "daemon/eventd/endpoint.h"
#include "daemon/eventd/media.h"

#include <algorithm>
#include <map>

namespace maru::eventd {
namespace {

using daemon::ConfigProblem;
using daemon::ConfigTable;
using Problems = std::vector<ConfigProblem>;

bool is_name(const std::string& text) {
  constexpr size_t kMost = 63;
  return !text.empty() && text.size() <= kMost && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == '.';
         });
}

std::string read_name(ConfigTable& table, const char* key) {
  const auto value = table.text(key);
  if (value && !is_name(*value))
    table.wrong(key, "1 to 63 letters, digits, '-', '_' or '.', and no '.' at the beginning");
  return value.value_or("");
}

std::vector<PoolSettings> read_pools(ConfigTable& root, Problems& problems) {
  std::vector<PoolSettings> pools;
  std::map<std::string, int> lines;
  for (ConfigTable& table : root.tables("pool")) {
    PoolSettings pool;
    if (table.has("name")) pool.name = read_name(table, "name");
    if (auto value = table.text("socket")) {
      if (value->front() != '/') table.wrong("socket", "an absolute path, such as \"/run/marud/marud.sock\"");
      pool.socket_path = *value;
    }
    pool.label = table.has("label") ? read_name(table, "label") : pool.name;
    const auto [before, is_new] = lines.emplace(pool.label, table.line());
    if (!is_new)
      problems.push_back({table.line(), "pool.label: found \"" + pool.label + "\", which is that of the pool in line " +
                                            std::to_string(before->second) + ", too; expected another one"});
    table.refuse_unknown();
    pools.push_back(pool);
  }
  if (pools.empty()) pools.push_back({"default", "", "default"});
  return pools;
}

void read_stream(ConfigTable& table, const std::vector<PoolSettings>& pools, StreamSettings& stream,
                 Settings& settings) {
  stream.line = table.line();
  stream.name = read_name(table, "name");
  if (!table.has("name")) table.missing("name", "a name for the stream, which its metrics and its log have");
  stream.pools = pools;
  if (table.has("pools")) {
    stream.pools.clear();
    for (const std::string& label : table.texts("pools", "the label of a [[pool]]")) {
      const auto found =
          std::find_if(pools.begin(), pools.end(), [&](const auto& pool) { return pool.label == label; });
      if (found == pools.end())
        table.wrong("pools", "labels of pools in this file; found none with the label \"" + label + "\"");
      else
        stream.pools.push_back(*found);
    }
  }
  if (auto value = table.text("medium")) stream.medium = *value;
  if (const std::string warning = medium_warning(stream.medium); !warning.empty())
    settings.warnings.push_back("stream \"" + stream.name + "\": " + warning);
  if (auto value = table.boolean("hash_only")) stream.tells_hashes_alone = *value;
  if (table.has("tenants"))
    for (const std::string& tenant : table.texts("tenants", "the name of a tenant")) stream.tenants.insert(tenant);
  if (auto value = table.integer("batch_ms", 0, 60'000)) stream.batch_ms = uint32_t(*value);
  if (auto value = table.size("batch_bytes")) {
    if (*value < 1024 || *value > 16u << 20) table.wrong("batch_bytes", "a size from \"1KiB\" to \"16MiB\"");
    stream.batch_bytes = *value;
  }
  if (auto value = table.integer("snapshot_pause_ms", 0, 3'600'000)) stream.snapshot_pause_ms = uint32_t(*value);
}

std::string read_endpoint(ConfigTable& table, const char* key, bool listens) {
  const auto value = table.text(key);
  if (!value) return "";
  if (const std::string expected = endpoint_mistake(*value, listens); !expected.empty()) table.wrong(key, expected);
  return *value;
}

void read_rank(ConfigTable& table, std::optional<int64_t>& rank) {
  if (auto value = table.integer("data_parallel_rank", 0, INT32_MAX)) rank = *value;
}

RelaySettings read_relay(ConfigTable table) {
  RelaySettings relay;
  relay.endpoint = read_endpoint(table, "endpoint", false);
  if (!table.has("endpoint"))
    table.missing("endpoint", "where the engine publishes its events, such as \"tcp://host:5557\"");
  relay.replay = read_endpoint(table, "replay", false);
  if (auto value = table.text("topic")) relay.topic = *value;
  table.refuse_unknown();
  return relay;
}

void read_topics(ConfigTable& table, ZeromqSettings& stream, Problems& problems) {
  const std::string topic = table.text("topic").value_or("");
  const std::vector<std::string> pods = table.has("pods") ? table.texts("pods", "a name") : std::vector<std::string>();
  std::vector<std::string> mistakes;
  stream.topics = topics_of(topic, pods, table.text("model").value_or(""), mistakes);
  for (const std::string& mistake : mistakes) problems.push_back({table.line(), "zeromq." + mistake});
}

ZeromqSettings read_zeromq(ConfigTable& table, const std::vector<PoolSettings>& pools, Settings& settings,
                           Problems& problems) {
  ZeromqSettings stream;
  read_stream(table, pools, stream, settings);
  stream.connects = table.one_of("mode", {"bind", "connect"}).value_or("bind") == "connect";
  stream.endpoint = read_endpoint(table, "endpoint", !stream.connects);
  if (!table.has("endpoint")) table.missing("endpoint", "where subscribers find the events, such as \"tcp://*:5557\"");
  stream.replay = read_endpoint(table, "replay", true);
  stream.replay_without_topic = read_endpoint(table, "replay_without_topic", true);
  read_topics(table, stream, problems);
  read_rank(table, stream.rank);
  if (auto value = table.integer("heartbeat_ms", 0, 3'600'000)) stream.heartbeat_ms = uint32_t(*value);
  if (auto value = table.integer("hwm", 1, 1'000'000)) stream.hwm = uint32_t(*value);
  if (auto value = table.integer("replay_batches", 1, 10'000'000)) stream.replay_batches = uint32_t(*value);
  if (auto value = table.size("replay_bytes")) stream.replay_bytes = *value;
  if (auto relay = table.table("relay")) stream.relay = read_relay(std::move(*relay));
  table.refuse_unknown();
  return stream;
}

// A subject to publish to: parts of letters, digits and signs between points, and no wildcard.
bool is_subject(const std::string& text) {
  return !text.empty() && text.size() <= 255 && text.front() != '.' && text.back() != '.' &&
         text.find("..") == std::string::npos && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return c > ' ' && c < 0x7f && c != '*' && c != '>';
         });
}

void read_subject(ConfigTable& table, NatsSettings& stream) {
  if (auto value = table.text("subject")) {
    stream.subject = *value;
    if (!is_subject(*value))
      table.wrong("subject", "words between points, such as \"maru.events\", without spaces, * and >");
  }
  const bool is_dynamo = stream.format == NatsSettings::Format::kDynamo;
  std::string subject;
  for (const auto& [key, word] : {std::pair("namespace", "namespace."), std::pair("component", ".component."),
                                  std::pair("endpoint", ".endpoint.")}) {
    const auto value = table.text(key);
    if (value && (!is_dynamo || !is_subject(*value)))
      table.wrong(key, is_dynamo ? "a word, as Dynamo's deployment has it" : "nothing: it is for format = \"dynamo\"");
    if (!value && is_dynamo && stream.subject.empty())
      table.missing(key, "a word, as Dynamo's deployment has it, or the whole subject");
    subject += word + value.value_or("");
  }
  if (stream.subject.empty()) stream.subject = is_dynamo ? subject + ".kv-events" : "maru.events";
}

void read_jetstream(ConfigTable table, NatsSettings& stream) {
  stream.jetstream = true;
  if (auto value = table.text("name")) {
    if (!is_name(*value) || value->find('.') != std::string::npos) table.wrong("name", "letters, digits, '-' and '_'");
    stream.jetstream_name = *value;
  }
  if (auto value = table.size("bytes")) stream.jetstream_bytes = *value;
  if (auto value = table.integer("hours", 1, 24 * 365)) stream.jetstream_hours = uint32_t(*value);
  table.refuse_unknown();
}

NatsSettings read_nats(ConfigTable& table, const std::vector<PoolSettings>& pools, Settings& settings) {
  NatsSettings stream;
  stream.batch_ms = 100;
  read_stream(table, pools, stream, settings);
  stream.url = table.text("url").value_or("");
  if (stream.url.empty())
    table.missing("url", "the address of a server, such as \"nats://127.0.0.1:4222\"");
  else if (!stream.url.starts_with("nats://") && !stream.url.starts_with("tls://"))
    table.wrong("url", "nats://HOST:PORT or tls://HOST:PORT");
  for (auto [key, path] :
       {std::pair("credentials_file", &stream.credentials_file), std::pair("token_file", &stream.token_file)})
    if (auto value = table.text(key)) {
      if (value->front() != '/') table.wrong(key, "an absolute path");
      *path = *value;
    }
  if (table.one_of("format", {"maru", "dynamo"}).value_or("maru") == "dynamo")
    stream.format = NatsSettings::Format::kDynamo;
  read_subject(table, stream);
  for (auto [key, number] :
       {std::pair("worker_id", &stream.worker_id), std::pair("publisher_id", &stream.publisher_id)})
    if (auto value = table.integer(key, 0, INT64_MAX)) *number = uint64_t(*value);
  if (stream.format == NatsSettings::Format::kDynamo && !table.has("worker_id"))
    table.missing("worker_id", "the number of the Dynamo worker that the pool's blocks count for");
  read_rank(table, stream.rank);
  if (auto value = table.size("buffer_bytes")) {
    if (*value > 1u << 30) table.wrong("buffer_bytes", "a size of at most \"1GiB\"");
    stream.buffer_bytes = *value;
  }
  if (auto jetstream = table.table("jetstream")) read_jetstream(std::move(*jetstream), stream);
  table.refuse_unknown();
  return stream;
}

bool is_header(const std::string& text) {
  const size_t colon = text.find(':');
  return colon != std::string::npos && colon != 0 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= ' ' && c != 0x7f; });
}

TraceSettings read_traces(ConfigTable table) {
  constexpr size_t kSocketPathMax = 107;
  TraceSettings traces;
  if (auto value = table.text("socket")) {
    if (value->front() != '/' || value->size() > kSocketPathMax)
      table.wrong("socket", "an absolute path of at most " + std::to_string(kSocketPathMax) + " bytes");
    traces.socket_path = *value;
  }
  traces.endpoint = table.text("endpoint").value_or("");
  if (traces.endpoint.empty())
    table.missing("endpoint", "the collector's address for traces, such as \"http://127.0.0.1:4318/v1/traces\"");
  else if (!traces.endpoint.starts_with("http://") && !traces.endpoint.starts_with("https://"))
    table.wrong("endpoint", "http://HOST:PORT/v1/traces, or https://");
  if (table.has("headers")) traces.headers = table.texts("headers", "\"NAME: VALUE\"");
  if (!std::all_of(traces.headers.begin(), traces.headers.end(), is_header))
    table.wrong("headers", "lines such as \"Authorization: Bearer TOKEN\", without control characters");
  if (auto value = table.integer("batch_spans", 1, 8192)) traces.batch_spans = uint32_t(*value);
  if (auto value = table.integer("batch_ms", 1, 60'000)) traces.batch_ms = uint32_t(*value);
  if (auto value = table.integer("timeout_ms", 1, 600'000)) traces.timeout_ms = uint32_t(*value);
  if (auto value = table.integer("retry_s", 0, 86'400)) traces.retry_s = uint32_t(*value);
  if (auto value = table.integer("clients", 1, 32'768)) traces.clients_max = uint32_t(*value);
  if (auto value = table.integer("user_clients", 1, 32'768)) {
    traces.user_clients_max = uint32_t(*value);
    if (traces.user_clients_max > traces.clients_max)
      table.wrong("user_clients", "at most clients, which is " + std::to_string(traces.clients_max));
  }
  table.refuse_unknown();
  return traces;
}

// Two streams with one name or at one endpoint.
void check_differences(const Settings& settings, Problems& problems) {
  std::map<std::string, int> names, endpoints;
  const auto check = [&](std::map<std::string, int>& seen, const std::string& what, const std::string& value,
                         int line) {
    if (value.empty() || value.ends_with(":*")) return;
    const auto [before, is_new] = seen.emplace(value, line);
    if (!is_new)
      problems.push_back({line, what + ": found \"" + value + "\", which the stream in line " +
                                    std::to_string(before->second) + " has, too; expected another one"});
  };
  for (const ZeromqSettings& stream : settings.zeromq) {
    check(names, "zeromq.name", stream.name, stream.line);
    if (!stream.connects) check(endpoints, "zeromq.endpoint", stream.endpoint, stream.line);
    check(endpoints, "zeromq.replay", stream.replay, stream.line);
    check(endpoints, "zeromq.replay_without_topic", stream.replay_without_topic, stream.line);
  }
  for (const NatsSettings& stream : settings.nats) check(names, "nats.name", stream.name, stream.line);
}

}  // namespace

Settings read_settings(ConfigTable& root, Problems& problems) {
  Settings settings;
  if (auto table = root.table("eventd")) {
    if (auto value = table->text("state_dir")) {
      if (value->front() != '/') table->wrong("state_dir", "an absolute path, such as \"/var/lib/maru-eventd\"");
      settings.state_dir = *value;
    }
    table->refuse_unknown();
  }
  const std::vector<PoolSettings> pools = read_pools(root, problems);
  for (ConfigTable& table : root.tables("zeromq"))
    settings.zeromq.push_back(read_zeromq(table, pools, settings, problems));
  for (ConfigTable& table : root.tables("nats")) settings.nats.push_back(read_nats(table, pools, settings));
  if (auto table = root.table("traces")) settings.traces = read_traces(std::move(*table));
  if (settings.zeromq.empty() && settings.nats.empty() && !settings.traces && problems.empty())
    root.missing("zeromq", "something to publish: [[zeromq]], [[nats]] or [traces]");
  check_differences(settings, problems);
  return settings;
}

}  // namespace maru::eventd
