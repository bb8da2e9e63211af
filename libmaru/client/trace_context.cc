#include "libmaru/client/trace_context.h"

#include <cstring>

namespace maru::client {
namespace {

// Lower-case digits, as the W3C has them. False: another sign is among them.
bool read_hex(std::string_view text, uint64_t* ret_value) {
  uint64_t value = 0;
  for (const char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
    value = value << 4 | uint64_t(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  *ret_value = value;
  return true;
}

void write_hex(uint64_t value, size_t digits, char* ret_text) {
  for (size_t i = digits; i-- > 0; value >>= 4) ret_text[i] = "0123456789abcdef"[value & 0xF];
}

}  // namespace

// 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
std::optional<TraceContext> parse_traceparent(std::string_view text) {
  if (text.size() < kTraceparentBytes || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  TraceContext context;
  uint64_t version = 0, flags = 0;
  if (!read_hex(text.substr(0, 2), &version) || !read_hex(text.substr(3, 16), &context.trace_high) ||
      !read_hex(text.substr(19, 16), &context.trace_low) || !read_hex(text.substr(36, 16), &context.span) ||
      !read_hex(text.substr(53, 2), &flags))
    return std::nullopt;
  constexpr uint64_t kNoVersion = 0xFF;
  const bool ends_well = text.size() == kTraceparentBytes || (version != 0 && text[kTraceparentBytes] == '-');
  if (version == kNoVersion || !ends_well || (context.trace_high | context.trace_low) == 0 || context.span == 0)
    return std::nullopt;
  context.flags = uint8_t(flags);
  return context;
}

void format_traceparent(const TraceContext& context, char (&ret_text)[kTraceparentBytes + 1]) {
  std::memset(ret_text, '-', kTraceparentBytes);
  ret_text[kTraceparentBytes] = '\0';
  write_hex(0, 2, ret_text);
  write_hex(context.trace_high, 16, ret_text + 3);
  write_hex(context.trace_low, 16, ret_text + 19);
  write_hex(context.span, 16, ret_text + 36);
  write_hex(context.flags, 2, ret_text + 53);
}

}  // namespace maru::client
