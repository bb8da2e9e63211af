// The request that a call is part of, and its text between programs: the W3C's traceparent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace maru::client {

struct TraceContext {
  uint64_t trace_high = 0, trace_low = 0;
  uint64_t span = 0;  // 0: there is no request
  uint8_t flags = 0;

  static constexpr uint8_t kSampled = 1;
  bool is_some() const { return span != 0; }
  bool is_sampled() const { return (flags & kSampled) != 0; }
};

inline constexpr size_t kTraceparentBytes = 55;

// Nothing: the text is none. Versions after 00 may have more behind the flags, as the W3C asks readers to allow.
std::optional<TraceContext> parse_traceparent(std::string_view text);
// With a zero behind it.
void format_traceparent(const TraceContext& context, char (&ret_text)[kTraceparentBytes + 1]);

}  // namespace maru::client
