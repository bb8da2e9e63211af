#include "daemon/eventd/http_post.h"

#include "daemon/version.h"

#include <algorithm>
#include <cerrno>
#include <curl/curl.h>

namespace maru::eventd {
namespace {

constexpr size_t kAnswerBytesMax = 64u << 10;

// The first bytes are kept. The rest is read and dropped, so that the connection stays.
size_t on_data(char* data, size_t size, size_t count, void* received) {
  auto& kept = *static_cast<std::string*>(received);
  kept.append(data, std::min(size * count, kAnswerBytesMax - kept.size()));
  return size * count;
}

}  // namespace

struct HttpPost::Curl {
  CURLM* multi = nullptr;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  char trouble[CURL_ERROR_SIZE] = {};
  bool is_refused = false;

  ~Curl() {
    if (multi != nullptr && easy != nullptr) ::curl_multi_remove_handle(multi, easy);
    if (easy != nullptr) ::curl_easy_cleanup(easy);
    if (multi != nullptr) ::curl_multi_cleanup(multi);
    ::curl_slist_free_all(headers);
  }
  template <typename T>
  void set(CURLoption option, T value) {
    is_refused |= ::curl_easy_setopt(easy, option, value) != CURLE_OK;
  }
  void add_header(const std::string& line) {
    curl_slist* longer = ::curl_slist_append(headers, line.c_str());
    is_refused |= longer == nullptr;
    if (longer != nullptr) headers = longer;
  }
};

HttpPost::HttpPost(std::unique_ptr<Curl> curl) : curl_(std::move(curl)) {}

HttpPost::~HttpPost() = default;

Result<std::unique_ptr<HttpPost>> HttpPost::open(const HttpPostSettings& settings) {
  static const CURLcode global = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  auto curl = std::make_unique<Curl>();
  curl->multi = ::curl_multi_init();
  curl->easy = ::curl_easy_init();
  if (global != CURLE_OK || curl->multi == nullptr || curl->easy == nullptr) return failure(ENOMEM, "start libcurl");
  curl->add_header("Content-Type: application/x-protobuf");
  curl->add_header("Expect:");  // no question before the body
  for (const std::string& line : settings.headers) curl->add_header(line);
  std::unique_ptr<HttpPost> made(new HttpPost(std::move(curl)));
  Curl& easy = *made->curl_;
  easy.set(CURLOPT_URL, settings.url.c_str());
  easy.set(CURLOPT_PROTOCOLS_STR, "http,https");
  easy.set(CURLOPT_HTTPHEADER, easy.headers);
  easy.set(CURLOPT_USERAGENT, (std::string("maru-eventd/") + daemon::kVersionText).c_str());
  easy.set(CURLOPT_TIMEOUT_MS, long(settings.timeout_ms));
  easy.set(CURLOPT_NOSIGNAL, 1L);
  easy.set(CURLOPT_QUICK_EXIT, 1L);  // a resolver that hangs is left at the deadline
  easy.set(CURLOPT_ERRORBUFFER, easy.trouble);
  easy.set(CURLOPT_WRITEFUNCTION, &on_data);
  easy.set(CURLOPT_WRITEDATA, &made->received_);
  if (easy.is_refused) return failure(EINVAL, "have libcurl POST to " + settings.url);
  return made;
}

void HttpPost::begin(const std::string& body) {
  received_.clear();
  curl_->trouble[0] = '\0';
  curl_->set(CURLOPT_POSTFIELDSIZE_LARGE, curl_off_t(body.size()));
  curl_->set(CURLOPT_POSTFIELDS, body.data());  // not copied
  is_busy_ = ::curl_multi_add_handle(curl_->multi, curl_->easy) == CURLM_OK;
  if (is_busy_)
    finish();
  else
    answer_ = Answer{0, "", 0, "libcurl does not begin"};
}

void HttpPost::wait(const std::vector<int>& descriptors, int timeout_ms) {
  std::vector<curl_waitfd> entries;
  entries.reserve(descriptors.size());
  for (const int fd : descriptors) entries.push_back({fd, CURL_WAIT_POLLIN, 0});
  ::curl_multi_poll(curl_->multi, entries.data(), unsigned(entries.size()), timeout_ms, nullptr);
  finish();
}

// Goes on, and sees whether that was the end.
void HttpPost::finish() {
  int running = 0;
  ::curl_multi_perform(curl_->multi, &running);
  int left = 0;
  while (const CURLMsg* message = ::curl_multi_info_read(curl_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    ::curl_multi_remove_handle(curl_->multi, curl_->easy);
    is_busy_ = false;
    long status = 0;
    curl_off_t retry_after = 0;
    ::curl_easy_getinfo(curl_->easy, CURLINFO_RESPONSE_CODE, &status);
    ::curl_easy_getinfo(curl_->easy, CURLINFO_RETRY_AFTER, &retry_after);
    answer_ = Answer{int(status), std::move(received_), uint64_t(std::max<curl_off_t>(0, retry_after)), ""};
    received_.clear();
    if (code == CURLE_OK) continue;
    answer_->status = 0;
    answer_->trouble = curl_->trouble[0] != '\0' ? curl_->trouble : ::curl_easy_strerror(code);
  }
}

std::optional<HttpPost::Answer> HttpPost::take_answer() { return std::exchange(answer_, std::nullopt); }

void HttpPost::wake() { ::curl_multi_wakeup(curl_->multi); }

}  // namespace maru::eventd
