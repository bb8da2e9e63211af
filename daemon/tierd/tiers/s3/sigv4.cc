#include "daemon/tierd/tiers/s3/sigv4.h"

#include <memory>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <vector>

namespace maru::tierd {

namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256", kService = "s3", kEnd = "aws4_request";

std::string_view as_text(const Sha256& sum) { return {reinterpret_cast<const char*>(sum.data()), sum.size()}; }

Sha256 hmac(std::string_view key, std::string_view text) {
  Sha256 sum = {};
  unsigned bytes = 0;
  HMAC(EVP_sha256(), key.data(), int(key.size()), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       sum.data(), &bytes);
  return sum;
}

// "20130524T000000Z"; its first eight are the day.
std::string timestamp(std::time_t now) {
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts)};
}

std::string signed_headers(const S3Request& request) {
  std::string names;
  for (const auto& [name, value] : request.headers) names += (names.empty() ? "" : ";") + name;
  return names;
}

}  // namespace

Sha256 sha256_of(std::initializer_list<std::string_view> pieces) {
  Sha256 sum = {};
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (const std::string_view piece : pieces) EVP_DigestUpdate(context.get(), piece.data(), piece.size());
  EVP_DigestFinal_ex(context.get(), sum.data(), nullptr);
  return sum;
}

std::string hex_of(const Sha256& sum) {
  std::string text;
  for (const uint8_t byte : sum) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string uri_encoded(std::string_view text, bool keeps_slashes) {
  std::string encoded;
  for (const char c : text) {
    const bool stays = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (c == '/' && keeps_slashes);
    if (stays) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', "0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
    }
  }
  return encoded;
}

std::string canonical_query(const std::map<std::string, std::string>& query) {
  std::map<std::string, std::string> encoded;  // in the order of the encoded names
  for (const auto& [name, value] : query) encoded[uri_encoded(name, false)] = uri_encoded(value, false);
  std::string text;
  for (const auto& [name, value] : encoded) text += (text.empty() ? "" : "&") + name + "=" + value;
  return text;
}

std::string canonical_request(const S3Request& request, std::string_view payload_hash) {
  std::string text = request.verb + "\n" + request.path + "\n" + canonical_query(request.query) + "\n";
  for (const auto& [name, value] : request.headers) text += name + ":" + value + "\n";
  return text + "\n" + signed_headers(request) + "\n" + std::string(payload_hash);
}

void sign(S3Request& request, std::string_view payload_hash, const S3Credentials& credentials, std::string_view region,
          std::time_t now) {
  const std::string time = timestamp(now), day = time.substr(0, 8);
  request.headers.erase("authorization");
  request.headers["x-amz-date"] = time;
  request.headers["x-amz-content-sha256"] = payload_hash;
  if (!credentials.session_token.empty()) request.headers["x-amz-security-token"] = credentials.session_token;
  const std::string scope = day + "/" + std::string(region) + "/" + std::string(kService) + "/" + std::string(kEnd);
  const std::string to_sign = std::string(kAlgorithm) + "\n" + time + "\n" + scope + "\n" +
                              hex_of(sha256_of({canonical_request(request, payload_hash)}));
  Sha256 key = hmac("AWS4" + credentials.secret_access_key, day);
  for (const std::string_view part : {region, kService, kEnd}) key = hmac(as_text(key), part);
  const std::string names = signed_headers(request);
  request.headers["authorization"] = std::string(kAlgorithm) + " Credential=" + credentials.access_key_id + "/" +
                                     scope + ", SignedHeaders=" + names +
                                     ", Signature=" + hex_of(hmac(as_text(key), to_sign));
}

}  // namespace maru::tierd
