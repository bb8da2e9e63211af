// The tier in S3 behind maru/tier.h, and its options.
#include "daemon/tierd/tiers/built_in.h"
#include "daemon/tierd/tiers/calls_of.h"
#include "daemon/tierd/tiers/s3/s3_tier.h"

#include <cstdlib>

namespace maru::tierd {
namespace {

constexpr size_t kPrefixBytesMax = 200;  // names stay below the 1,024 bytes that S3 allows

bool has_only(std::string_view text, std::string_view more) {
  for (const char c : text)
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && more.find(c) == std::string_view::npos) return false;
  return true;
}

constexpr std::string_view kUpperCase = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

// Empty: it is fine.
std::string read_endpoint(const std::string& text, S3Service& service) {
  const std::string expected = "endpoint: found \"" + text +
                               "\", expected a scheme and a host, such as \"https://s3.eu-west-1.amazonaws.com\" or "
                               "\"http://127.0.0.1:9000\"";
  const size_t scheme_end = text.find("://");
  if (scheme_end == std::string::npos) return expected;
  service.scheme = text.substr(0, scheme_end);
  if (service.scheme != "http" && service.scheme != "https") return expected;
  const std::string rest = text.substr(scheme_end + 3);
  const size_t slash = rest.find('/');
  service.host = rest.substr(0, slash);
  service.base_path = slash == std::string::npos ? "" : rest.substr(slash);
  while (service.base_path.ends_with("/")) service.base_path.pop_back();
  if (service.host.empty() || !has_only(service.host, std::string(kUpperCase) + "-._:[]") ||
      !has_only(service.base_path, std::string(kUpperCase) + "-._~/"))
    return expected;
  // The usual port is no part of the host's name in a request, and so of no signature.
  const std::string_view usual = service.scheme == "https" ? ":443" : ":80";
  if (service.host.ends_with(usual)) service.host.resize(service.host.size() - usual.size());
  return {};
}

std::string read_bucket(const std::string& bucket, const std::string& addressing, S3Service& service) {
  if (bucket.size() < 3 || bucket.size() > 63 || !has_only(bucket, "-."))
    return "bucket: found \"" + bucket + "\", expected a name of 3 to 63 of a-z, 0-9, - and .";
  service.bucket = bucket;
  const bool has_dot = bucket.find('.') != std::string::npos;
  if (addressing == "path") {
    service.is_virtual_host = false;
  } else if (addressing == "virtual") {
    service.is_virtual_host = true;
    if (has_dot && service.scheme == "https" && service.http.verifies_peer)
      return "addressing: found \"virtual\" and a dot in the bucket \"" + bucket +
             "\", for which no certificate verifies; expected \"path\"";
  } else if (addressing == "auto") {
    service.is_virtual_host = service.host.ends_with(".amazonaws.com") && !has_dot;
  } else {
    return "addressing: found \"" + addressing + "\", expected auto, path or virtual";
  }
  return {};
}

std::string default_region() {
  for (const char* const name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (const char* const region = std::getenv(name); region && *region) return region;
  return "us-east-1";
}

std::string read_service(OptionReader& reader, S3Service& service) {
  service.region = reader.text("region", default_region());
  if (service.region.empty() || !has_only(service.region, "-"))
    return "region: found \"" + service.region + "\", expected a name such as \"eu-west-1\"";
  service.http.verifies_peer = reader.flag("verify", true);
  service.http.ca_file = reader.text("ca_file", "");
  service.http.connect_timeout_ms = uint32_t(reader.number("connect_timeout_ms", 2000, 1, 600'000));
  service.connections = uint32_t(reader.number("connections", service.connections, 1, 256));
  service.attempts_max = uint32_t(reader.number("attempts", service.attempts_max, 1, 20));
  service.credentials.given = {reader.text("access_key_id", ""), reader.text("secret_access_key", ""),
                               reader.text("session_token", "")};
  service.credentials.path = reader.text("credentials_file", "");
  service.credentials.profile = reader.text("profile", service.credentials.profile);
  if (auto wrong = read_endpoint(reader.text("endpoint", "https://s3." + service.region + ".amazonaws.com"), service);
      !wrong.empty())
    return wrong;
  const std::string payload_hash = reader.text("sign_payload", "auto");
  if (payload_hash != "auto" && payload_hash != "true" && payload_hash != "false")
    return "sign_payload: found \"" + payload_hash + "\", expected auto, true or false";
  // With TLS no attacker can change the body on its way.
  service.signs_payload = payload_hash == "true" || (payload_hash == "auto" && service.scheme == "http");
  return read_bucket(reader.text("bucket", ""), reader.text("addressing", "auto"), service);
}

std::string read_wish(OptionReader& reader, S3Wish& wish) {
  std::string wrong = read_service(reader, wish.service);
  wish.prefix = reader.text("prefix", wish.prefix);
  if (wrong.empty() && (wish.prefix.size() > kPrefixBytesMax || wish.prefix.starts_with("/") ||
                        !has_only(wish.prefix, std::string(kUpperCase) + "-._~/")))
    wrong = "prefix: found \"" + wish.prefix + "\", expected at most " + std::to_string(kPrefixBytesMax) +
            " of letters, digits and -._~/, not with / at first";
  wish.lists = reader.flag("list", true);
  wish.list_every_s = uint32_t(reader.number("list_every_s", wish.list_every_s, 0, 1u << 30));
  wish.list_memory = reader.number("list_memory", wish.list_memory, 64u << 10, 1ull << 40);
  wish.if_none_match = reader.flag("if_none_match", false);
  wish.timeout_ms = uint32_t(reader.number("timeout_ms", wish.timeout_ms, 1, 600'000));
  wish.part_bytes = reader.number("part_bytes", wish.part_bytes, 16384, 1ull << 33);
  wish.depth_bytes = reader.number("depth_bytes", wish.depth_bytes, 4096, 1ull << 40);
  const std::string mistake = reader.mistake(
      "endpoint, region, bucket, prefix, addressing, access_key_id, secret_access_key, session_token, "
      "credentials_file, "
      "profile, ca_file, verify, sign_payload, if_none_match, list, list_every_s, list_memory, timeout_ms, "
      "connect_timeout_ms, "
      "attempts, connections, part_bytes or depth_bytes");
  return wrong.empty() ? mistake : wrong;
}

struct S3Plugin {
  using Tier = S3Tier;
  using Wish = S3Wish;
  static constexpr const char* kName = "s3";
  static constexpr auto read = read_wish;
  static std::string problem(const Error& error) { return error.doing; }
};

}  // namespace

const maru_tier_calls kS3Tier = calls_of<S3Plugin>();

}  // namespace maru::tierd
