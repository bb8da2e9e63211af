// AWS Signature Version 4, for requests to S3: pure functions of a request, a time and the credentials.
//
//   canonical request   verb, path, query, headers and the hash of the body, each in one form
//   string to sign      "AWS4-HMAC-SHA256", time, scope (day/region/s3/aws4_request), hash of the canonical request
//   key                 HMAC("AWS4" secret, day) -> HMAC(., region) -> HMAC(., "s3") -> HMAC(., "aws4_request")
//   signature           HMAC(key, string to sign), in hex
//
// S3 signs the path as it stands in the request, encoded once.
#pragma once

#include <array>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace maru::tierd {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256_of(std::initializer_list<std::string_view> pieces);
std::string hex_of(const Sha256& sum);

// The value of x-amz-content-sha256 where the body is not part of the signature.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct S3Credentials {
  std::string access_key_id, secret_access_key;
  std::string session_token;  // empty: these are not temporary
};

// A request as it is sent.
struct S3Request {
  std::string verb;                            // "GET"
  std::string path = "/";                      // encoded: "/bucket/a%20name"
  std::map<std::string, std::string> query;    // not encoded
  std::map<std::string, std::string> headers;  // names in lower case; "host" is one of them. All are signed.
};

// Letters, digits and "-._~" stay; all else becomes %XX.
std::string uri_encoded(std::string_view text, bool keeps_slashes);
// Sorted and encoded, as it is signed and as it is sent.
std::string canonical_query(const std::map<std::string, std::string>& query);
std::string canonical_request(const S3Request& request, std::string_view payload_hash);

// Adds x-amz-date, x-amz-content-sha256, x-amz-security-token where there is a token, and then authorization.
void sign(S3Request& request, std::string_view payload_hash, const S3Credentials& credentials, std::string_view region,
          std::time_t now);

}  // namespace maru::tierd
