// A layout as a JSON object with one level. The reader knows as much of JSON as such an object has: text without escapes, and
// whole numbers. It allocates nothing.
#include "libmaru/layout/encoded.h"
#include "libmaru/layout/geometry.h"
#include "libmaru/layout/names.h"
#include "libmaru/layout/reason.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <iterator>
#include <string_view>

namespace maru::layout {
namespace {

using namespace std::string_view_literals;

constexpr char kFormat[] = "maru-layout";

struct FieldOfNames {
  std::string_view name;
  uint32_t maru_layout::* member;
  std::span<const Name> names;
};
constexpr FieldOfNames kTexts[] = {
    {"kind", &maru_layout::kind, kKinds},
    {"order", &maru_layout::order, kOrders},
    {"dtype", &maru_layout::dtype, kDtypes},
};

struct FieldOfNumber {
  std::string_view name;
  uint64_t maru_layout::* member;
  bool may_be_absent;
};
constexpr FieldOfNumber kNumbers[] = {
    {"blocks", &maru_layout::blocks, false},
    {"layers", &maru_layout::layers, false},
    {"page_tokens", &maru_layout::page_tokens, false},
    {"heads", &maru_layout::heads, false},
    {"head_dim", &maru_layout::head_dim, false},
    {"alignment", &maru_layout::alignment, true},
    {"heads_total", &maru_layout::heads_total, true},
    {"first_head", &maru_layout::first_head, true},
    {"layers_total", &maru_layout::layers_total, true},
    {"first_layer", &maru_layout::first_layer, true},
};

void write_hex(const Fingerprint& fingerprint, char* text) {
  for (size_t i = 0; i < fingerprint.size(); ++i) std::snprintf(text + 2 * i, 3, "%02x", fingerprint[i]);
}

// Returns the number of bytes without the zero, or less than 0.
int write(const maru_layout& layout, char (&text)[MARU_LAYOUT_JSON_BYTES_MAX]) {
  char hex[2 * MARU_LAYOUT_FINGERPRINT_BYTES + 1];
  write_hex(fingerprint(layout), hex);
  return std::snprintf(
      text, sizeof(text),
      R"({"format": "%s", "version": %u, "kind": "%s", "order": "%s", "dtype": "%s", "outer": %u, "blocks": %)" PRIu64
      R"(, "layers": %)" PRIu64 R"(, "page_tokens": %)" PRIu64 R"(, "heads": %)" PRIu64 R"(, "head_dim": %)" PRIu64
      R"(, "alignment": %)" PRIu64 R"(, "heads_total": %)" PRIu64 R"(, "first_head": %)" PRIu64
      R"(, "layers_total": %)" PRIu64 R"(, "first_layer": %)" PRIu64 R"(, "fingerprint": "%s"})",
      kFormat, kVersion, text_of(kKinds, layout.kind), text_of(kOrders, layout.order), text_of(kDtypes, layout.dtype),
      layout.outer, layout.blocks, layout.layers, layout.page_tokens, layout.heads, layout.head_dim, layout.alignment,
      layout.heads_total, layout.first_head, layout.layers_total, layout.first_layer, hex);
}

struct Value {
  bool is_text = false;
  std::string_view text;
  uint64_t number = 0;
};

// Takes a text apart, from the front.
class Scanner {
 public:
  Scanner(const char* text, size_t bytes, maru_layout_reason* reason) : text_(text, bytes), reason_(reason) {}

  // Whether the next character after white space is this one; then it is taken.
  bool takes(char character) {
    skip_white();
    if (at_ == text_.size() || text_[at_] != character) return false;
    ++at_;
    return true;
  }
  int expect(char character) { return takes(character) ? 0 : wrong("a '%c'", character); }
  int end() {
    skip_white();
    return at_ == text_.size() ? 0 : wrong("the end");
  }
  int read_text(std::string_view& ret_text) {
    if (const int status = expect('"'); status < 0) return status;
    const size_t end = text_.find_first_of("\"\\"sv, at_);
    if (end == text_.npos) return at_ = text_.size(), wrong("a closing '\"'");
    if (text_[end] == '\\') return at_ = end, wrong("text without escapes");
    ret_text = text_.substr(at_, end - at_);
    at_ = end + 1;
    return 0;
  }
  int read_value(Value& ret_value) {
    skip_white();
    if (at_ < text_.size() && text_[at_] == '"') {
      ret_value.is_text = true;
      return read_text(ret_value.text);
    }
    return read_number(ret_value.number);
  }

 private:
  void skip_white() { at_ = std::min(text_.find_first_not_of(" \t\r\n"sv, at_), text_.size()); }
  int read_number(uint64_t& ret_number) {
    const size_t first = at_;
    uint64_t number = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      if (__builtin_mul_overflow(number, uint64_t{10}, &number) ||
          __builtin_add_overflow(number, uint64_t(text_[at_] - '0'), &number))
        return at_ = first, wrong("a whole number below 2^64");
    if (at_ == first) return wrong("text or a whole number");
    if (text_[first] == '0' && at_ - first > 1) return at_ = first, wrong("a number without leading zeros");
    ret_number = number;
    return 0;
  }
  [[gnu::format(printf, 2, 3)]] int wrong(const char* expected, ...) {
    char what[64];
    va_list arguments;
    va_start(arguments, expected);
    std::vsnprintf(what, sizeof(what), expected, arguments);
    va_end(arguments);
    if (at_ == text_.size()) return fail(reason_, EBADMSG, "the JSON text ends at byte %zu, expected %s", at_, what);
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte > ' ' && byte < 0x7F)
      return fail(reason_, EBADMSG, "at byte %zu of the JSON text: found '%c', expected %s", at_, byte, what);
    return fail(reason_, EBADMSG, "at byte %zu of the JSON text: found the byte 0x%02x, expected %s", at_, byte, what);
  }

  std::string_view text_;
  maru_layout_reason* reason_;
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(maru_layout_reason* reason) : reason_(reason) { layout_.size = sizeof(layout_); }

  int take(std::string_view name, const Value& value) {
    const int member = member_of(name);
    if (member < 0)
      return fail(reason_, EBADMSG, "the JSON text has a member \"%.*s\", which no layout has", shown(name),
                  name.data());
    if (seen_ >> member & 1)
      return fail(reason_, EBADMSG, "the JSON text has the member \"%.*s\" twice", shown(name), name.data());
    seen_ |= 1u << member;
    return set(member, name, value);
  }

  int finish(maru_layout& ret_layout) {
    for (int member = 0; member < kMembers; ++member)
      if (!(seen_ >> member & 1) && !may_be_absent(member))
        return fail(reason_, EBADMSG, "the JSON text lacks the member \"%s\"", name_of(member).data());
    if (format_ != kFormat)
      return fail(reason_, EBADMSG, "the format is \"%.*s\", expected \"%s\"", shown(format_), format_.data(), kFormat);
    if (version_ != kVersion)
      return fail(reason_, EPROTONOSUPPORT, "the layout has version %llu, and this library reads version %u",
                  ull(version_), kVersion);
    if (outer_ > 2) return fail(reason_, EINVAL, "outer is %llu, expected 1 to 2", ull(outer_));
    layout_.outer = uint32_t(outer_);
    Geometry geometry;
    if (const int status = read_geometry(&layout_, geometry, reason_); status < 0) return status;
    char hex[2 * MARU_LAYOUT_FINGERPRINT_BYTES + 1];
    write_hex(fingerprint(geometry.layout), hex);
    if ((seen_ >> kFingerprint & 1) && fingerprint_ != hex)
      return fail(reason_, EBADMSG, "the fingerprint is \"%.*s\", expected \"%s\"", shown(fingerprint_),
                  fingerprint_.data(), hex);
    ret_layout = geometry.layout;
    return 0;
  }

 private:
  static constexpr int kTextsFirst = 4, kNumbersFirst = kTextsFirst + int(std::size(kTexts));
  static constexpr int kFormatMember = 0, kVersionMember = 1, kOuter = 2, kFingerprint = 3;
  static constexpr int kMembers = kNumbersFirst + int(std::size(kNumbers));
  static constexpr std::string_view kOthers[] = {"format", "version", "outer", "fingerprint"};

  static int shown(std::string_view text) { return int(text.size() < 40 ? text.size() : 40); }
  static std::string_view name_of(int member) {
    if (member < kTextsFirst) return kOthers[member];
    return member < kNumbersFirst ? kTexts[member - kTextsFirst].name : kNumbers[member - kNumbersFirst].name;
  }
  static int member_of(std::string_view name) {
    for (int member = 0; member < kMembers; ++member)
      if (name_of(member) == name) return member;
    return -1;
  }
  static bool may_be_absent(int member) {
    return member == kFingerprint || (member >= kNumbersFirst && kNumbers[member - kNumbersFirst].may_be_absent);
  }

  int set(int member, std::string_view name, const Value& value) {
    const bool wants_text =
        member == kFormatMember || member == kFingerprint || (member >= kTextsFirst && member < kNumbersFirst);
    if (value.is_text != wants_text)
      return fail(reason_, EBADMSG, "\"%.*s\" is %s, expected %s", shown(name), name.data(),
                  value.is_text ? "text" : "a number", wants_text ? "text" : "a number");
    switch (member) {
      case kFormatMember: format_ = value.text; return 0;
      case kVersionMember: version_ = value.number; return 0;
      case kOuter: outer_ = value.number; return 0;
      case kFingerprint: fingerprint_ = value.text; return 0;
    }
    if (member >= kNumbersFirst) {
      layout_.*kNumbers[member - kNumbersFirst].member = value.number;
      return 0;
    }
    const FieldOfNames& field = kTexts[member - kTextsFirst];
    const std::optional<uint32_t> number = number_of(field.names, value.text);
    if (!number)
      return fail(reason_, EINVAL, "%.*s is \"%.*s\", expected %s or another of maru/layout.h", shown(name),
                  name.data(), shown(value.text), value.text.data(), field.names.front().text);
    layout_.*field.member = *number;
    return 0;
  }

  maru_layout_reason* reason_;
  maru_layout layout_ = {};
  uint32_t seen_ = 0;
  std::string_view format_, fingerprint_;
  uint64_t version_ = 0, outer_ = 0;
};

int read(Scanner& scanner, Reader& reader) {
  if (const int status = scanner.expect('{'); status < 0) return status;
  if (scanner.takes('}')) return scanner.end();
  do {
    std::string_view name;
    Value value;
    if (const int status = scanner.read_text(name); status < 0) return status;
    if (const int status = scanner.expect(':'); status < 0) return status;
    if (const int status = scanner.read_value(value); status < 0) return status;
    if (const int status = reader.take(name, value); status < 0) return status;
  } while (scanner.takes(','));
  if (const int status = scanner.expect('}'); status < 0) return status;
  return scanner.end();
}

}  // namespace
}  // namespace maru::layout

using namespace maru::layout;

extern "C" {

MARU_LAYOUT_PUBLIC int maru_layout_to_json(const maru_layout* layout, char* ret_text, size_t room,
                                           maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(layout, geometry, reason); status < 0) return status;
  if (ret_text == nullptr) return fail(reason, EINVAL, "ret_text is NULL");
  char text[MARU_LAYOUT_JSON_BYTES_MAX];
  const auto bytes = size_t(write(geometry.layout, text)) + 1;
  if (room < bytes)
    return fail(reason, ENOSPC, "the JSON text has %zu bytes with its zero, and there is room for %zu", bytes, room);
  std::memcpy(ret_text, text, bytes);
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_from_json(const char* text, size_t n, maru_layout* ret_layout,
                                             maru_layout_reason* reason) {
  if ((text == nullptr && n > 0) || ret_layout == nullptr) return fail(reason, EINVAL, "text or ret_layout is NULL");
  Scanner scanner(text, n, reason);
  Reader reader(reason);
  if (const int status = read(scanner, reader); status < 0) return status;
  maru_layout layout;
  if (const int status = reader.finish(layout); status < 0) return status;
  *ret_layout = layout;
  return 0;
}

}  // extern "C"
