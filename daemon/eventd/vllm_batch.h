// Batches of events as vLLM publishes them, and SGLang, TensorRT-LLM and others after it; docs/events.md has them as tables.
//
// A batch is an array of three: a time in seconds, the events, and the rank among data-parallel engines, or nil. An event is a
// map with its type and its fields. Routers decode strictly, so the writer keeps to exactly this form. Engines of before the
// middle of 2026 write events as arrays, and some batches as maps; the reader takes all these forms.
#pragma once

#include "daemon/eventd/blocks.h"
#include "libmaru/base/result.h"

#include <optional>
#include <string>
#include <string_view>

namespace maru::eventd {

// Of a batch that is read; vLLM's batches are far smaller.
inline constexpr size_t kBatchBytesMax = 16u << 20;
inline constexpr size_t kBlocksOfEventMax = 1u << 16;

std::string encode_batch(double seconds, const EventList& events, std::optional<int64_t> rank);

struct EngineBatch {
  double seconds = 0;
  std::optional<int64_t> rank;
  std::vector<RouterEvent> events;
};

// Any bytes. Errors: EBADMSG, with the mistake as text.
Result<EngineBatch> decode_batch(std::string_view bytes);

}  // namespace maru::eventd
