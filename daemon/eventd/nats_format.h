// Batches of events as messages for NATS; docs/events.md has them as tables.
#pragma once

#include "daemon/eventd/blocks.h"

#include <cstdint>
#include <optional>
#include <string>

namespace maru::eventd {

// Ours: a map {version, publisher, sequence, published_at, events}; each event is a map of about 100 bytes for one block.
struct PoolMessage {
  std::string publisher;  // the stream's name
  uint64_t sequence = 0;
  uint64_t published_ms = 0;  // Unix
};
std::string encode_pool_message(const PoolMessage& message, const EventList& events);

// Dynamo's: an envelope {publisher_id, sequence, published_at, topic, payload}, and in its payload an array of router events.
struct DynamoMessage {
  uint64_t publisher_id = 0;
  uint64_t worker_id = 0;
  uint64_t sequence = 0;
  uint64_t published_ms = 0;
  std::optional<int64_t> rank;
  uint64_t* next_event_id = nullptr;  // is raised by each event
};
// Leaves out and counts blocks without tokens, and blocks with a salt, whose place in Dynamo's hashes is not known. Empty:
// nothing is left.
std::string encode_dynamo_message(const DynamoMessage& message, const EventList& events, uint64_t& ret_left_out);

}  // namespace maru::eventd
