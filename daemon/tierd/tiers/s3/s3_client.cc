#include "daemon/tierd/tiers/s3/s3_client.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace maru::tierd {

namespace {

constexpr std::chrono::milliseconds kRetryPauseMin{50}, kRetryPauseMax{2000};
constexpr int64_t kSkewMax = 15 * 60;  // seconds that S3 allows between its clock and the signer's

std::chrono::milliseconds until(S3Call::Clock::time_point when) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(when - S3Call::Clock::now());
}

bool may_pass(uint32_t status, const std::string& code) {
  switch (status) {
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504: return true;
    case 400: return code == "RequestTimeout";
    case 409: return code == "ConditionalRequestConflict" || code == "OperationAborted";
    default: return false;
  }
}

int result_of(uint32_t status, const std::string& code) {
  if (status / 100 == 2) return 0;
  if (status == 404) return code == "NoSuchBucket" ? -ENODEV : -ENOENT;
  if (status == 412) return -EEXIST;
  if (status == 416) return -EBADMSG;  // an object without a byte
  if (status == 403 || status == 401 || status / 100 == 3 || code == "AuthorizationHeaderMalformed" ||
      code == "ExpiredToken" || code == "InvalidToken")
    return -EACCES;
  if (status == 507 || code == "QuotaExceeded" || code == "XMinioStorageFull") return -ENOSPC;
  if (code == "EntityTooLarge") return -EFBIG;
  return status == 429 || status == 503 ? -EBUSY : -EIO;
}

// The remedy for a refusal. Empty: an unknown refusal.
std::string remedy(const S3Service& service, uint32_t status, const S3Headers& headers, const S3Error& error) {
  if (error.code == "NoSuchBucket")
    return "expected the bucket \"" + service.bucket + "\" at " + service.host + "; create it, or correct bucket";
  const std::string region = error.region.empty() ? headers.region : error.region;
  if (status / 100 == 3 || error.code == "AuthorizationHeaderMalformed")
    return "found region = \"" + service.region + "\", expected " +
           (region.empty() ? "the region of the bucket \"" + service.bucket + "\"" : "\"" + region + "\"") +
           "; correct region" + (error.endpoint.empty() ? "" : ", and endpoint to \"" + error.endpoint + "\"");
  if (error.code == "RequestTimeTooSkewed") {
    const std::string found =
        headers.date ? std::to_string(int64_t(std::time(nullptr)) - *headers.date) + " s" : std::string("far");
    return "this machine's clock is " + found + " from the server's, expected " + std::to_string(kSkewMax) +
           " s at most; set the clock, by timedatectl set-ntp true";
  }
  if (error.code == "SignatureDoesNotMatch") return "expected the secret of this access key; correct secret_access_key";
  if (error.code == "InvalidAccessKeyId") return "expected an access key that the server knows; correct access_key_id";
  if (error.code == "ExpiredToken" || error.code == "InvalidToken")
    return "expected a session token that is valid now; renew the temporary credentials";
  if (status == 403 || status == 401)
    return "expected the rights s3:ListBucket on the bucket \"" + service.bucket +
           "\", and s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix; grant them";
  if (error.code == "NotImplemented") return "expected a server with conditional PUT; set if_none_match = false";
  return {};
}

}  // namespace

struct S3Client::Job {
  S3Call call;
  std::string payload_hash;
  uint64_t signed_by = 0;  // the number of the credentials
  uint32_t tries = 0;
  std::chrono::milliseconds pause = kRetryPauseMin;
};

Result<std::unique_ptr<S3Client>> S3Client::create(const S3Service& service) {
  auto credentials = read_credentials(service.credentials);
  if (!credentials) return tl::unexpected(credentials.error());
  auto http = HttpTransfers::create(service.http, service.connections);
  if (!http) return failure(ENOMEM, "make a client of HTTP; give this program more memory");
  return std::unique_ptr<S3Client>(new S3Client(service, std::move(*credentials), std::move(http)));
}

S3Client::S3Client(const S3Service& service, S3Credentials credentials, std::unique_ptr<HttpTransfers> http)
    : service_(service), credentials_(std::move(credentials)), http_(std::move(http)) {}

S3Client::~S3Client() = default;

void S3Client::start(S3Call call) {
  auto job = std::make_shared<Job>();
  job->call = std::move(call);
  (job->call.has_body ? writes_ : reads_).push_back(std::move(job));
}

void S3Client::turn(std::chrono::milliseconds at_most) {
  const Clock::time_point now = Clock::now();
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    auto job = std::move(delayed_.begin()->second);
    delayed_.erase(delayed_.begin());
    (job->call.has_body ? writes_ : reads_).push_back(std::move(job));
  }
  dispatch();
  if (!delayed_.empty())
    at_most = std::clamp(until(delayed_.begin()->first) + std::chrono::milliseconds(1), std::chrono::milliseconds(0),
                         at_most);
  http_->turn(at_most);
}

void S3Client::dispatch() {
  const size_t writes_max = std::max<size_t>(1, service_.connections * 3 / 4);
  while (http_->under_way() < service_.connections) {
    const bool may_write = !writes_.empty() && writes_under_way_ < writes_max;
    if (reads_.empty() && !may_write) return;
    auto& queue = reads_.empty() || (may_write && writes_under_way_ == 0) ? writes_ : reads_;
    auto job = std::move(queue.front());
    queue.pop_front();
    if (job->call.deadline > Clock::now()) {
      send(std::move(job));
      continue;
    }
    S3Call::Outcome late;
    late.result = -ETIMEDOUT;
    late.trouble = "the server did not answer in time";
    job->call.done(late);
  }
}

void S3Client::send(std::shared_ptr<Job> job) {
  S3Call& call = job->call;
  if (call.begin) call.begin();
  ++job->tries;
  S3Request request;
  request.verb = call.verb;
  request.query = call.query;
  request.headers = call.headers;
  request.headers["host"] = (service_.is_virtual_host ? service_.bucket + "." : "") + service_.host;
  request.path = service_.base_path;
  if (!service_.is_virtual_host) request.path += "/" + service_.bucket;
  if (!call.name.empty() || request.path.empty()) request.path += "/" + call.name;
  request.path = uri_encoded(request.path, true);
  if (job->payload_hash.empty())
    job->payload_hash = call.has_body && !service_.signs_payload
                            ? std::string(kUnsignedPayload)
                            : hex_of(sha256_of({call.body[0], call.body[1], call.body[2]}));
  job->signed_by = credentials_number_;
  sign(request, job->payload_hash, credentials_, service_.region, std::time(nullptr));

  HttpRequest http;
  http.verb = request.verb;
  http.url = service_.scheme + "://" + request.headers["host"] + request.path;
  if (const std::string query = canonical_query(request.query); !query.empty()) http.url += "?" + query;
  for (const auto& [name, value] : request.headers) http.headers.push_back(name + ": " + value);
  if (call.has_body) http.headers.emplace_back("Expect:");  // no question before the body
  http.body = call.body;
  http.has_body = call.has_body;
  http.timeout = until(call.deadline);
  http.sink = call.sink;
  http.done = [this, job](HttpAnswer& answer) { answered(job, answer); };
  writes_under_way_ += call.has_body;
  http_->start(std::move(http));
}

void S3Client::answered(const std::shared_ptr<Job>& job, HttpAnswer& answer) {
  writes_under_way_ -= job->call.has_body;
  bool may_try_again = false;
  S3Call::Outcome outcome = judge(answer, job->signed_by, &may_try_again);
  if (may_try_again && try_again(job, outcome.headers)) return;
  outcome.body = std::move(answer.body);
  job->call.done(outcome);
}

bool S3Client::try_again(const std::shared_ptr<Job>& job, const S3Headers& headers) {
  if (job->tries >= service_.attempts_max) return false;
  std::uniform_int_distribution<int64_t> jitter(job->pause.count() / 2, job->pause.count());
  const std::chrono::milliseconds pause =
      std::max(std::chrono::milliseconds(jitter(random_)), std::chrono::milliseconds(headers.retry_after_s * 1000ll));
  job->pause = std::min(job->pause * 2, kRetryPauseMax);
  if (until(job->call.deadline) <= pause) return false;
  ++retries_;
  delayed_.emplace(Clock::now() + pause, job);
  return true;
}

// Temporary credentials end, and their file then has the next credentials. Of many calls that were signed by the old ones the
// first to be refused reads the file.
bool S3Client::has_other_credentials(uint64_t than) {
  if (than != credentials_number_) return true;
  if (service_.credentials.path.empty()) return false;
  auto found = read_credentials(service_.credentials);
  if (!found || (found->access_key_id == credentials_.access_key_id &&
                 found->secret_access_key == credentials_.secret_access_key &&
                 found->session_token == credentials_.session_token))
    return false;
  credentials_ = std::move(*found);
  ++credentials_number_;
  return true;
}

S3Call::Outcome S3Client::judge(const HttpAnswer& answer, uint64_t signed_by, bool* ret_may_try_again) {
  S3Call::Outcome outcome;
  outcome.status = answer.status;
  outcome.headers = answer.headers;
  if (answer.status == 0) {
    *ret_may_try_again = !answer.is_untrusted;
    outcome.result = answer.is_untrusted ? -EACCES : answer.is_late ? -ETIMEDOUT : -ENOTCONN;
    outcome.is_refusal = answer.is_untrusted;
    outcome.trouble = service_.host + ": " + answer.trouble;
    if (answer.is_untrusted)
      outcome.trouble +=
          "; expected a certificate that an authority of ca_file or of the system has signed; correct "
          "ca_file or endpoint";
    return outcome;
  }
  const S3Error error = answer.status / 100 == 2 ? S3Error{} : parse_s3_error(answer.body);
  outcome.result = result_of(answer.status, error.code);
  if (outcome.result == 0 || outcome.result == -ENOENT || outcome.result == -EEXIST) return outcome;
  *ret_may_try_again = may_pass(answer.status, error.code);
  outcome.trouble =
      service_.host + ": the server says \"" +
      (error.code.empty() ? "status " + std::to_string(answer.status) : error.code + ": " + error.message) + "\"";
  const std::string to_do = remedy(service_, answer.status, answer.headers, error);
  outcome.is_refusal = !to_do.empty();
  if (outcome.is_refusal) outcome.trouble += "; " + to_do;
  if (outcome.result == -EACCES && has_other_credentials(signed_by)) *ret_may_try_again = true;
  return outcome;
}

}  // namespace maru::tierd
