#include "daemon/eventd/nats_link.h"

#include <cerrno>
#include <fstream>
#include <nats/nats.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace maru::eventd {
namespace {

constexpr int64_t kConnectMs = 2000, kReconnectMs = 500, kPingMs = 5000, kWriteMs = 2000, kRequestMs = 2000;
constexpr int64_t kUnconfirmedMax = 1024;
constexpr std::chrono::seconds kRefusedPause{5};

std::string text_of(natsStatus status) { return natsStatus_GetText(status); }

tl::unexpected<Error> refused(const char* what, natsStatus status) {
  return failure(EINVAL, std::string(what) + " (libnats: " + text_of(status) + ")");
}

}  // namespace

// Outlives the link: the library's threads may still speak when the connection is gone.
struct NatsLink::News {
  News() : wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  void ring() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake.get(), &one, sizeof(one));
  }

  FileDescriptor wake;
  std::atomic<bool> is_connected = false, came_back = false, was_asked = false, is_closed = false;
  std::atomic<uint64_t> not_kept = 0;
  std::mutex mutex;
  std::string error;  // the last one

  static News& of(void* closure) { return *static_cast<News*>(closure); }
  static void on_connected(natsConnection*, void* closure) {
    News& news = of(closure);
    news.is_connected = news.came_back = true;
    news.ring();
  }
  static void note_error(natsConnection* connection, News& news) {
    const char* error = nullptr;
    const natsStatus status = natsConnection_GetLastError(connection, &error);
    if (status == NATS_OK) return;
    const std::lock_guard lock(news.mutex);
    news.error = error && *error ? error : text_of(status);
  }
  static void on_disconnected(natsConnection* connection, void* closure) {
    note_error(connection, of(closure));
    of(closure).is_connected = false;
    of(closure).ring();
  }
  static void on_closed(natsConnection* connection, void* closure) {
    note_error(connection, of(closure));
    of(closure).is_connected = false;
    of(closure).is_closed = true;
    of(closure).ring();
  }
  static void on_error(natsConnection* connection, natsSubscription*, natsStatus, void* closure) {
    note_error(connection, of(closure));
    of(closure).ring();
  }
  static void on_request(natsConnection*, natsSubscription*, natsMsg* message, void* closure) {
    natsMsg_Destroy(message);
    of(closure).was_asked = true;
    of(closure).ring();
  }
  static void on_not_kept(jsCtx*, jsPubAckErr* error, void* closure) {
    News& news = of(closure);
    {
      const std::lock_guard lock(news.mutex);
      news.error = std::string("JetStream: ") +
                   (error->ErrText && *error->ErrText ? error->ErrText : text_of(error->Err).c_str());
    }
    ++news.not_kept;
    news.ring();
  }
};

NatsLink::NatsLink(const NatsSettings& settings) : settings_(settings), news_(std::make_shared<News>()) {}

Result<std::unique_ptr<NatsLink>> NatsLink::open(const NatsSettings& settings) {
  std::unique_ptr<NatsLink> link(new NatsLink(settings));
  if (auto configured = link->configure(); !configured) return tl::unexpected(configured.error());
  if (auto connected = link->connect(); !connected) return tl::unexpected(connected.error());
  return link;
}

Result<void> NatsLink::configure() {
  if (!settings_.token_file.empty()) {
    std::ifstream file(settings_.token_file);
    if (!std::getline(file, token_) || token_.empty())
      return failure(errno == 0 ? EINVAL : errno,
                     "read the token in " + settings_.token_file + " (one line is expected)");
  }
  natsStatus status = natsOptions_Create(&options_);
  const auto then = [&](natsStatus next) { status = status == NATS_OK ? next : status; };
  then(natsOptions_SetURL(options_, settings_.url.c_str()));
  then(natsOptions_SetName(options_, "maru-eventd"));
  then(natsOptions_SetTimeout(options_, kConnectMs));
  then(natsOptions_SetAllowReconnect(options_, true));
  then(natsOptions_SetMaxReconnect(options_, -1));
  then(natsOptions_SetReconnectWait(options_, kReconnectMs));
  then(natsOptions_SetReconnectBufSize(options_, int(settings_.buffer_bytes)));
  then(natsOptions_SetPingInterval(options_, kPingMs));
  then(natsOptions_SetWriteDeadline(options_, kWriteMs));
  then(natsOptions_SetNoEcho(options_, true));
  then(natsOptions_SetRetryOnFailedConnect(options_, true, News::on_connected, news_.get()));
  then(natsOptions_SetReconnectedCB(options_, News::on_connected, news_.get()));
  then(natsOptions_SetDisconnectedCB(options_, News::on_disconnected, news_.get()));
  then(natsOptions_SetClosedCB(options_, News::on_closed, news_.get()));
  then(natsOptions_SetErrorHandler(options_, News::on_error, news_.get()));
  if (!token_.empty()) then(natsOptions_SetToken(options_, token_.c_str()));
  if (!settings_.credentials_file.empty())
    then(natsOptions_SetUserCredentialsFromFiles(options_, settings_.credentials_file.c_str(), nullptr));
  if (settings_.url.starts_with("tls://")) then(natsOptions_SetSecure(options_, true));
  if (status != NATS_OK) return refused("use the settings of NATS", status);
  return {};
}

Result<void> NatsLink::connect() {
  const natsStatus status = natsConnection_Connect(&connection_, options_);
  if (status == NATS_OK) {
    news_->is_connected = news_->came_back = true;
    news_->ring();
  } else if (status != NATS_NOT_YET_CONNECTED) {
    // A server that refuses is asked again later, since its administrator may change that.
    const std::lock_guard lock(news_->mutex);
    news_->error = nats_GetLastError(nullptr) ? nats_GetLastError(nullptr) : text_of(status);
    news_->is_closed = true;
    connect_due_ = std::chrono::steady_clock::now() + kRefusedPause;
    if (status == NATS_INVALID_ARG || status == NATS_ADDRESS_MISSING)
      return failure(EINVAL, "use the NATS server " + settings_.url + " (" + news_->error + ")");
    return {};
  }
  const std::string subject = settings_.subject + ".resync";
  const natsStatus subscribed =
      natsConnection_Subscribe(&requests_, connection_, subject.c_str(), News::on_request, news_.get());
  // A server that refuses may have ended the connection by now; then the library tells it, too, and look() connects again.
  if (subscribed != NATS_OK && subscribed != NATS_CONNECTION_CLOSED)
    return refused("subscribe to requests", subscribed);
  return {};
}

void NatsLink::disconnect() {
  if (jetstream_) jsCtx_Destroy(jetstream_);
  jetstream_ = nullptr;
  if (requests_) natsSubscription_Destroy(requests_);
  requests_ = nullptr;
  if (connection_) natsConnection_Destroy(connection_);
  connection_ = nullptr;
}

NatsLink::~NatsLink() {
  if (connection_ && news_->is_connected) natsConnection_FlushTimeout(connection_, kWriteMs);
  disconnect();
  if (options_) natsOptions_Destroy(options_);
  // The library may still call back; see News.
  static auto& for_ever = *new std::vector<std::shared_ptr<News>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for_ever.push_back(news_);
}

int NatsLink::fd() const { return news_->wake.get(); }

// Asks the server, which takes a moment, each time that it has come back.
void NatsLink::prepare_jetstream() {
  jetstream_trouble_.clear();
  jsOptions options;
  jsOptions_Init(&options);
  options.Wait = kRequestMs;
  options.PublishAsync.MaxPending = kUnconfirmedMax;
  options.PublishAsync.ErrHandler = News::on_not_kept;
  options.PublishAsync.ErrHandlerClosure = news_.get();
  natsStatus status = jetstream_ ? NATS_OK : natsConnection_JetStream(&jetstream_, connection_, &options);
  jsErrCode code = jsErrCode(0);
  if (status == NATS_OK && !settings_.jetstream_name.empty()) {
    const char* subjects[] = {settings_.subject.c_str()};
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    config.Name = settings_.jetstream_name.c_str();
    config.Subjects = subjects;
    config.SubjectsLen = 1;
    config.MaxBytes = int64_t(settings_.jetstream_bytes);
    config.MaxAge = int64_t(settings_.jetstream_hours) * 3600 * 1'000'000'000;
    status = js_AddStream(nullptr, jetstream_, &config, nullptr, &code);
    if (code == JSStreamNameExistErr) status = NATS_OK;  // another program's limits are its own
  }
  if (status == NATS_OK) return;
  const char* error = nats_GetLastError(nullptr);
  jetstream_trouble_ = "JetStream cannot be used, so that a consumer that is away loses events: " +
                       std::string(error && *error ? error : text_of(status));
  if (jetstream_) jsCtx_Destroy(jetstream_);
  jetstream_ = nullptr;
}

bool NatsLink::publish(std::string_view message, const std::string& id) {
  if (connection_ == nullptr) return false;
  if (jetstream_ && news_->is_connected) {
    jsPubOptions options;
    jsPubOptions_Init(&options);
    options.MsgId = id.c_str();
    options.MaxWait = kWriteMs;
    return js_PublishAsync(jetstream_, settings_.subject.c_str(), message.data(), int(message.size()), &options) ==
           NATS_OK;
  }
  return natsConnection_Publish(connection_, settings_.subject.c_str(), message.data(), int(message.size())) == NATS_OK;
}

NatsLink::State NatsLink::look() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(news_->wake.get(), &count, sizeof(count));
  const auto now = std::chrono::steady_clock::now();
  was_refused_ = !news_->is_connected && (was_refused_ || news_->is_closed);
  if (news_->is_closed && now >= connect_due_) {
    disconnect();
    news_->is_closed = false;
    connect_due_ = now + kRefusedPause;
    (void)connect();
  }
  State state;
  state.is_connected = news_->is_connected;
  state.came_back = news_->came_back.exchange(false);
  state.was_asked = news_->was_asked.exchange(false);
  state.not_kept = news_->not_kept.exchange(0);
  if (state.came_back && state.is_connected && settings_.jetstream) prepare_jetstream();
  if (!state.is_connected) {
    const std::lock_guard lock(news_->mutex);
    const std::string error = news_->error.empty() ? "" : " (" + news_->error + ")";
    // Only a server that refuses makes libnats give up.
    state.trouble = "the server " + settings_.url +
                    (was_refused_ ? " refuses this program" + error +
                                        ". Check credentials_file or token_file, and the "
                                        "server's users"
                                  : " does not answer" + error + ". Check that it runs, and its address");
  } else {
    state.trouble = jetstream_trouble_;
  }
  return state;
}

}  // namespace maru::eventd
