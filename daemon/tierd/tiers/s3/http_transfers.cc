#include "daemon/tierd/tiers/s3/http_transfers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <curl/curl.h>
#include <mutex>

namespace maru::tierd {

namespace {

constexpr long kReadBufferBytes = 512 << 10, kUploadBufferBytes = 1 << 20;  // of libcurl, for each transfer
constexpr size_t kIdleHandlesMax = 64;

bool is_success(uint32_t status) { return status / 100 == 2; }

// The code says that no other try would end differently: a matter of trust, and not of the network.
bool is_matter_of_trust(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CERTPROBLEM ||
         code == CURLE_SSL_ISSUER_ERROR;
}

}  // namespace

struct HttpTransfers::Multi {
  CURLM* handle = curl_multi_init();
  ~Multi() {
    if (handle) curl_multi_cleanup(handle);
  }
};

struct HttpTransfers::Transfer {
  HttpRequest request;
  HttpAnswer answer;
  CURL* handle = nullptr;
  curl_slist* headers = nullptr;
  uint64_t sent = 0;
  std::array<char, CURL_ERROR_SIZE> error = {};

  ~Transfer() { curl_slist_free_all(headers); }

  uint64_t body_bytes() const { return request.body[0].size() + request.body[1].size() + request.body[2].size(); }

  size_t send(char* room, size_t bytes) {
    uint64_t skipped = sent;
    size_t copied = 0;
    for (const std::string_view piece : request.body) {
      const uint64_t skips = std::min<uint64_t>(skipped, piece.size());
      skipped -= skips;
      const size_t here = std::min<uint64_t>(piece.size() - skips, bytes - copied);
      if (here > 0) std::memcpy(room + copied, piece.data() + skips, here);
      copied += here;
    }
    sent += copied;
    return copied;
  }

  // As libcurl counts: another number than `bytes.size()` ends the transfer.
  size_t receive(std::string_view bytes) {
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    if (request.sink && is_success(uint32_t(status))) {
      if (request.sink(bytes, uint32_t(status), answer.headers)) return bytes.size();
      answer.was_cut_short = true;
      return 0;
    }
    if (answer.body.size() + bytes.size() > kBodyBytesMax) return 0;
    answer.body += bytes;
    return bytes.size();
  }
};

std::unique_ptr<HttpTransfers> HttpTransfers::create(const HttpWish& wish, uint32_t connections) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_ALL); });
  auto multi = std::make_unique<Multi>();
  if (!multi->handle) return nullptr;
  curl_multi_setopt(multi->handle, CURLMOPT_MAXCONNECTS, long(connections));
  curl_multi_setopt(multi->handle, CURLMOPT_PIPELINING, long(CURLPIPE_NOTHING));
  return std::unique_ptr<HttpTransfers>(new HttpTransfers(wish, std::move(multi)));
}

HttpTransfers::HttpTransfers(const HttpWish& wish, std::unique_ptr<Multi> multi)
    : wish_(wish), multi_(std::move(multi)) {}

HttpTransfers::~HttpTransfers() {
  for (const auto& [handle, transfer] : transfers_) {
    curl_multi_remove_handle(multi_->handle, handle);
    curl_easy_cleanup(handle);
  }
  for (void* const handle : idle_) curl_easy_cleanup(handle);
}

void HttpTransfers::start(HttpRequest request) {
  auto transfer = std::make_unique<Transfer>();
  Transfer* const self = transfer.get();
  self->request = std::move(request);
  if (!idle_.empty()) {
    self->handle = idle_.back();
    idle_.pop_back();
  } else {
    self->handle = curl_easy_init();
  }
  CURL* const handle = self->handle;
  for (const std::string& header : self->request.headers)
    self->headers = curl_slist_append(self->headers, header.c_str());
  const auto set = [handle](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
  set(CURLOPT_URL, self->request.url.c_str());
  set(CURLOPT_HTTPHEADER, self->headers);
  set(CURLOPT_HTTP_VERSION, long(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PATH_AS_IS, 1L);  // the path that is signed is the path that is sent
  set(CURLOPT_NOSIGNAL, 1L);
  // A name that is still looked up at the deadline: otherwise libcurl would wait for its resolver, and all transfers with it.
  set(CURLOPT_QUICK_EXIT, 1L);
  set(CURLOPT_TCP_NODELAY, 1L);
  set(CURLOPT_NOPROXY, "*");  // a proxy of the environment would see, and may change, signed requests
  set(CURLOPT_BUFFERSIZE, kReadBufferBytes);
  set(CURLOPT_CONNECTTIMEOUT_MS, long(wish_.connect_timeout_ms));
  set(CURLOPT_TIMEOUT_MS, std::max(1L, long(self->request.timeout.count())));
  set(CURLOPT_ERRORBUFFER, self->error.data());
  if (!wish_.ca_file.empty()) set(CURLOPT_CAINFO, wish_.ca_file.c_str());
  set(CURLOPT_SSL_VERIFYPEER, wish_.verifies_peer ? 1L : 0L);
  set(CURLOPT_SSL_VERIFYHOST, wish_.verifies_peer ? 2L : 0L);
  set(CURLOPT_WRITEDATA, self);
  set(
      CURLOPT_WRITEFUNCTION,
      +[](char* bytes, size_t, size_t n, void* user) { return static_cast<Transfer*>(user)->receive({bytes, n}); });
  set(CURLOPT_HEADERDATA, self);
  set(
      CURLOPT_HEADERFUNCTION, +[](char* bytes, size_t, size_t n, void* user) {
        take_header_line({bytes, n}, static_cast<Transfer*>(user)->answer.headers);
        return n;
      });
  if (self->request.has_body) {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_UPLOAD_BUFFERSIZE, kUploadBufferBytes);
    set(CURLOPT_INFILESIZE_LARGE, curl_off_t(self->body_bytes()));
    set(CURLOPT_READDATA, self);
    set(
        CURLOPT_READFUNCTION,
        +[](char* room, size_t, size_t n, void* user) { return static_cast<Transfer*>(user)->send(room, n); });
    // A connection that had gone before the first byte was sent: libcurl begins again on another connection.
    set(CURLOPT_SEEKDATA, self);
    set(
        CURLOPT_SEEKFUNCTION, +[](void* user, curl_off_t offset, int origin) {
          if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
          static_cast<Transfer*>(user)->sent = uint64_t(offset);
          return CURL_SEEKFUNC_OK;
        });
  }
  set(CURLOPT_CUSTOMREQUEST, self->request.verb.c_str());
  transfers_[handle] = std::move(transfer);
  curl_multi_add_handle(multi_->handle, handle);
}

void HttpTransfers::turn(std::chrono::milliseconds at_most) {
  int running = 0;
  curl_multi_perform(multi_->handle, &running);
  const size_t before = transfers_.size();
  finish_ended();
  if (transfers_.size() != before) return;  // there may be more to start
  curl_multi_poll(multi_->handle, nullptr, 0, int(at_most.count()), nullptr);
}

void HttpTransfers::wake() { curl_multi_wakeup(multi_->handle); }

void HttpTransfers::finish_ended() {
  int left = 0;
  while (CURLMsg* const message = curl_multi_info_read(multi_->handle, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    CURL* const handle = message->easy_handle;
    const CURLcode code = message->data.result;
    const auto found = transfers_.find(handle);
    const std::unique_ptr<Transfer> transfer = std::move(found->second);
    transfers_.erase(found);
    HttpAnswer& answer = transfer->answer;
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK || answer.was_cut_short) {
      answer.status = uint32_t(status);
    } else {
      answer.trouble = transfer->error[0] ? transfer->error.data() : curl_easy_strerror(code);
      answer.is_late = code == CURLE_OPERATION_TIMEDOUT;
      answer.is_untrusted = is_matter_of_trust(code);
    }
    curl_multi_remove_handle(multi_->handle, handle);
    curl_easy_reset(handle);  // it refers to nothing of this transfer any more
    if (idle_.size() < kIdleHandlesMax)
      idle_.push_back(handle);
    else
      curl_easy_cleanup(handle);
    transfer->request.done(answer);
  }
}

}  // namespace maru::tierd
