#include "daemon/tierd/tiers/s3/s3_answers.h"

#include "daemon/tierd/tiers/s3/trimmed.h"

#include <algorithm>
#include <charconv>
#include <ctime>

namespace maru::tierd {

namespace {

constexpr size_t kTextBytesMax = 300;  // of text for people
constexpr uint32_t kRetryAfterMax = 3600;
constexpr size_t kEntityBytesMax = 12;

// All of the text is one number.
std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<S3Headers::Range> range_in(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  const size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with(kUnit) || dash == std::string_view::npos || slash == std::string_view::npos || slash < dash)
    return std::nullopt;
  const auto first = number_in(text.substr(kUnit.size(), dash - kUnit.size()));
  const auto last = number_in(text.substr(dash + 1, slash - dash - 1));
  const auto total = number_in(text.substr(slash + 1));
  if (!first || !last || !total || *first > *last || *last >= *total) return std::nullopt;
  return S3Headers::Range{*first, *last, *total};
}

// The program sets no locale, so months have English names.
constexpr const char* kHeaderTime = "%a, %d %b %Y %H:%M:%S GMT";  // "Fri, 24 May 2013 00:00:00 GMT"
constexpr const char* kListTime = "%Y-%m-%dT%H:%M:%S";            // "2013-05-24T00:00:00.000Z", without its fraction

std::optional<int64_t> date_in(std::string_view text, const char* form) {
  std::tm parts = {};
  const char* const end = strptime(std::string(text).c_str(), form, &parts);
  if (!end) return std::nullopt;
  return timegm(&parts);
}

void append_entity(std::string_view name, std::string& text) {
  constexpr struct {
    std::string_view name;
    char meaning;
  } kNamed[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [known, meaning] : kNamed)
    if (name == known) text += meaning;
  if (name.empty() || name[0] != '#') return;
  // Only ASCII: our names and tokens have nothing else.
  const bool is_hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
  const std::string_view digits = name.substr(is_hex ? 2 : 1);
  uint32_t code = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, is_hex ? 16 : 10);
  if (read.ec == std::errc() && code > 0 && code < 128) text += char(code);
}

std::string unescaped(std::string_view xml) {
  std::string text;
  while (!xml.empty()) {
    // The longest name of a character that an answer needs is "&#x10FFFF;".
    const size_t end = xml[0] == '&' ? xml.substr(0, kEntityBytesMax).find(';') : std::string_view::npos;
    if (end == std::string_view::npos) {
      text += xml[0];
      xml.remove_prefix(1);
      continue;
    }
    append_entity(xml.substr(1, end - 1), text);
    xml.remove_prefix(end + 1);
  }
  return text;
}

// The content of the first element of this name; nothing: it is not there, or does not end. `*ret_after`: the text behind it.
std::optional<std::string_view> element(std::string_view xml, std::string_view name, std::string_view* ret_after) {
  for (size_t at = 0; (at = xml.find('<', at)) != std::string_view::npos; ++at) {
    if (xml.compare(at + 1, name.size(), name) != 0) continue;
    if (at + 1 + name.size() >= xml.size()) return std::nullopt;
    const char behind = xml[at + 1 + name.size()];
    if (behind != '>' && behind != ' ' && behind != '/') continue;  // a longer name
    const size_t end = xml.find('>', at);
    if (end == std::string_view::npos) return std::nullopt;
    std::string_view content;
    size_t after = end + 1;
    if (xml[end - 1] != '/') {
      const std::string closing = "</" + std::string(name) + ">";
      const size_t close = xml.find(closing, end);
      if (close == std::string_view::npos) return std::nullopt;
      content = xml.substr(end + 1, close - end - 1);
      after = close + closing.size();
    }
    if (ret_after) *ret_after = xml.substr(after);
    return content;
  }
  return std::nullopt;
}

std::string text_of(std::string_view xml, std::string_view name) {
  const auto found = element(xml, name, nullptr);
  return found ? unescaped(trimmed(*found)) : std::string();
}

// For a log: printable, and not long.
std::string shown(std::string text) {
  if (text.size() > kTextBytesMax) text.resize(kTextBytesMax);
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

}  // namespace

void take_header_line(std::string_view line, S3Headers& headers) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  std::string name(line.substr(0, colon));
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (name == "content-length") headers.content_length = number_in(value);
  if (name == "content-range") headers.range = range_in(value);
  if (name == "etag") headers.etag = shown(std::string(value));
  if (name == "x-amz-bucket-region") headers.region = shown(std::string(value));
  if (name == "retry-after")
    headers.retry_after_s = uint32_t(std::min<uint64_t>(number_in(value).value_or(0), kRetryAfterMax));
  if (name == "date") headers.date = date_in(value, kHeaderTime);
  if (name == "last-modified") headers.modified = date_in(value, kHeaderTime);
}

S3Error parse_s3_error(std::string_view xml) {
  const auto found = element(xml, "Error", nullptr);
  if (!found) return {};
  return {shown(text_of(*found, "Code")), shown(text_of(*found, "Message")), shown(text_of(*found, "Region")),
          shown(text_of(*found, "Endpoint"))};
}

std::optional<S3Listing> parse_s3_listing(std::string_view xml) {
  const auto result = element(xml, "ListBucketResult", nullptr);
  if (!result) return std::nullopt;
  S3Listing listing;
  std::string_view rest = *result;
  while (const auto object = element(rest, "Contents", &rest)) {
    const auto bytes = number_in(text_of(*object, "Size"));
    const auto modified = date_in(text_of(*object, "LastModified"), kListTime);
    if (bytes) listing.objects.push_back({text_of(*object, "Key"), *bytes, modified.value_or(0)});
  }
  if (text_of(*result, "IsTruncated") != "true") return listing;
  listing.next = text_of(*result, "NextContinuationToken");
  // A page that goes on and does not say where is no page: the rest would be taken for absent.
  return listing.next.empty() ? std::nullopt : std::optional(std::move(listing));
}

}  // namespace maru::tierd
