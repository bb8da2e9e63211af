#include "daemon/tierd/tiers/resp_tier.h"

#include "daemon/tierd/tiers/resp_text.h"
#include "daemon/tierd/tiers/thread_signals.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <system_error>

namespace maru::tierd {

namespace {

constexpr std::chrono::milliseconds kPauseMin{100}, kPauseMax{5000};
constexpr std::chrono::seconds kCountPauseMin{1}, kCountPauseMax{60};  // between lists that fail
constexpr size_t kRequestsMax = 1024;
constexpr int kElementsMax = 65536;         // of a list in an answer; the library would allocate any number
constexpr uint64_t kMemoryOfAnEntry = 256;  // an entry of the catalogue has some more bytes: its room ends before

timeval as_timeval(uint32_t ms) { return {time_t(ms / 1000), suseconds_t(ms % 1000) * 1000}; }

}  // namespace

void RespTier::CloseContext::operator()(redisContext* context) const { redisFree(context); }

RespTier::RespTier(const RespWish& wish)
    : wish_(wish),
      catalogue_([](const std::string& name) { return name; }, wish.list_memory),
      census_(wish.prefix, wish.list_memory / kMemoryOfAnEntry, catalogue_,
              [this](const std::string& key) { return is_changing(key); }) {}

Result<std::unique_ptr<RespTier>> RespTier::open(const RespWish& wish) {
  std::unique_ptr<RespTier> tier(new RespTier(wish));
  tier->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!tier->wake_.is_open() || !tier->completions_.is_open())
    return failure(EMFILE, "make a descriptor; raise the limit of open files");
  const auto connected = tier->connect();
  if (!connected && connected.error().code != ENOTCONN) return tl::unexpected(connected.error());
  tier->thread_ = std::thread([raw = tier.get()] { raw->run(); });
  std::unique_lock lock(tier->mutex_);
  if (connected && wish.lists)
    tier->first_count_.wait_for(lock, std::chrono::milliseconds(wish.timeout_ms), [&] { return tier->is_counted_; });
  lock.unlock();
  return tier;
}

RespTier::~RespTier() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

// -- the connection ------------------------------------------------------------------------------------------------------

Result<void> RespTier::command(std::initializer_list<std::string> words) {
  std::vector<const char*> texts;
  std::vector<size_t> lengths;
  for (const std::string& word : words) texts.push_back(word.data()), lengths.push_back(word.size());
  auto* const reply =
      static_cast<redisReply*>(redisCommandArgv(context_.get(), int(texts.size()), texts.data(), lengths.data()));
  if (!reply) return failure(ENOTCONN, std::string("speak to the server: ") + context_->errstr);
  const std::string answer(text_of(*reply));
  const bool is_refused = reply->type == REDIS_REPLY_ERROR;
  freeReplyObject(reply);
  if (is_refused)
    return failure(EACCES, "log in by " + *words.begin() + ": the server says \"" + answer +
                               "\"; correct user, password or database");
  return {};
}

Result<void> RespTier::connect() {
  const timeval patience = as_timeval(wish_.connect_timeout_ms);
  const std::string where =
      wish_.socket_path.empty() ? wish_.host + ":" + std::to_string(wish_.port) : wish_.socket_path;
  context_.reset(wish_.socket_path.empty() ? redisConnectWithTimeout(wish_.host.c_str(), wish_.port, patience)
                                           : redisConnectUnixWithTimeout(wish_.socket_path.c_str(), patience));
  const auto fail = [&](Error error) -> Result<void> {
    context_.reset();
    const std::lock_guard lock(mutex_);
    trouble_ = where + ": " + error.doing;
    return tl::unexpected(Error{error.code, trouble_});
  };
  if (!context_ || context_->err) return fail({ENOTCONN, context_ ? context_->errstr : "no memory"});
  redisSetTimeout(context_.get(), patience);
  if (!wish_.password.empty()) {
    auto known = wish_.user.empty() ? command({"AUTH", wish_.password}) : command({"AUTH", wish_.user, wish_.password});
    if (!known) return fail(known.error());
  }
  if (wish_.database != 0)
    if (auto chosen = command({"SELECT", std::to_string(wish_.database)}); !chosen) return fail(chosen.error());
  if (auto heard = command({"PING"}); !heard) return fail(heard.error());
  // From here on many commands are under way, and the thread waits in poll().
  context_->flags &= ~REDIS_BLOCK;
  context_->reader->maxbuf = 0;  // its buffer is kept, as the next answers are as large
  if (!library_replies_) library_replies_ = context_->reader->fn;
  replies_ = *library_replies_;
  replies_.createString = [](const redisReadTask* task, char* bytes, size_t length) {
    return static_cast<RespTier*>(task->privdata)->create_string(task, bytes, length);
  };
  replies_.createArray = [](const redisReadTask* task, auto elements) {
    const auto& tier = *static_cast<RespTier*>(task->privdata);
    return elements > kElementsMax ? nullptr : tier.library_replies_->createArray(task, elements);
  };
  context_->reader->fn = &replies_;
  context_->reader->privdata = this;
  ::fcntl(context_->fd, F_SETFL, ::fcntl(context_->fd, F_GETFL) | O_NONBLOCK);
  pause_ = kPauseMin;
  const std::lock_guard lock(mutex_);
  trouble_.clear();
  return {};
}

void RespTier::lose(int code, const std::string& why) {
  context_.reset();
  output_.clear();
  next_connect_ = Clock::now() + pause_;
  pause_ = std::min(pause_ * 2, kPauseMax);
  {
    const std::lock_guard lock(mutex_);
    trouble_ = why;
  }
  for (auto& operation : std::exchange(waiting_, {}))
    if (!operation->is_census) end(*operation, code);
  if (is_counting_) {
    // With the pause of a list that has failed: the list itself may be why the server or a proxy before it broke off.
    census_.abandon();
    counted();
  } else {
    next_count_ = {};  // it may come back with other entries
  }
}

void RespTier::run() {
  // hiredis logs in without MSG_NOSIGNAL, and the server may have gone: an error, and no end of the process.
  block_signals();
  for (;;) {
    std::deque<maru_tier_request> fresh;
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_) return;
      fresh = std::exchange(queue_, {});
    }
    if (!context_ && Clock::now() >= next_connect_) {
      if (auto connected = connect(); !connected) lose(-ENOTCONN, connected.error().doing);
    }
    for (const maru_tier_request& request : fresh) {
      auto operation = std::make_unique<RespOperation>();
      operation->request = request;
      operation->key.assign(static_cast<const char*>(request.key), request.key_bytes);
      operation->deadline = Clock::now() + std::chrono::milliseconds(wish_.timeout_ms);
      begin(std::move(operation));
    }
    if (context_ && wish_.lists && !is_counting_ && Clock::now() >= next_count_) count();
    if (context_ && !exchange()) lose(-EIO, "the connection broke: " + broken_);
    if (context_ && !waiting_.empty() && waiting_.front()->deadline < Clock::now())
      lose(-ETIMEDOUT, "the server did not answer in time");
    std::array<pollfd, 2> wait = {pollfd{wake_.get(), POLLIN, 0}, pollfd{context_ ? context_->fd : -1, POLLIN, 0}};
    if (context_ && !output_.is_empty()) wait[1].events |= POLLOUT;
    ::poll(wait.data(), wait.size(), context_ && waiting_.empty() ? 1000 : 50);
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
  }
}

// Writes and reads as much as goes without waiting.
bool RespTier::exchange() {
  if (const int result = output_.write(context_->fd); result < 0) return break_off(-result);
  for (;;) {
    const ssize_t got = ::recv(context_->fd, input_.data(), input_.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return break_off(got < 0 ? errno : ECONNRESET);
    if (redisReaderFeed(context_->reader, input_.data(), size_t(got)) != REDIS_OK || !take_replies())
      return break_off(EPROTO);
    if (const int result = output_.write(context_->fd); result < 0) return break_off(-result);
    if (size_t(got) < input_.size()) return true;
  }
}

bool RespTier::break_off(int code) {
  broken_ = std::generic_category().message(code);
  if (context_->reader->err != 0) broken_ = context_->reader->errstr;
  return false;
}

// As the library's own function, but for chunks, which would be copied twice.
void* RespTier::create_string(const redisReadTask* task, char* bytes, size_t length) {
  const bool is_chunk = task->type == REDIS_REPLY_STRING && !task->parent && !waiting_.empty() &&
                        waiting_.front()->place_chunk({bytes, length});
  if (!is_chunk) return library_replies_->createString(task, bytes, length);
  auto* const reply = static_cast<redisReply*>(std::calloc(1, sizeof(redisReply)));  // freeReplyObject() frees it
  if (!reply) return nullptr;
  reply->type = task->type;
  reply->len = length;
  return reply;
}

bool RespTier::take_replies() {
  for (;;) {
    void* found = nullptr;
    if (redisReaderGetReply(context_->reader, &found) != REDIS_OK) return false;
    if (!found) return true;
    const std::unique_ptr<void, void (*)(void*)> reply(found, freeReplyObject);
    // An answer without a request: the next one would be taken for the answer to a later request.
    if (waiting_.empty()) return false;
    RespOperation& operation = *waiting_.front();
    --operation.answers_left;
    if (operation.is_census) {
      census_.take(*static_cast<redisReply*>(found));
    } else if (std::string trouble = operation.take(*static_cast<redisReply*>(found));
               !trouble.empty() || is_in_trouble_) {
      is_in_trouble_ = !trouble.empty();
      const std::lock_guard lock(mutex_);
      trouble_ = std::move(trouble);
    }
    if (operation.answers_left > 0) continue;
    // An answer to a command that is not sent yet: the server answers something else.
    if (operation.output_end > output_.sent_bytes()) return false;
    // A load or a deletion has seen its head, and asks on: at the end of the line.
    auto ended = std::move(waiting_.front());
    waiting_.pop_front();
    if (ended->is_census) {
      census_.is_under_way() ? ask_census() : counted();
      continue;
    }
    if (ended->asks_on() && ended->accept_head()) {
      ask(*ended);
      if (ended->answers_left > 0) {
        waiting_.push_back(std::move(ended));
        continue;
      }
    }
    end(*ended, ended->result);
  }
}

// -- the content of the server -------------------------------------------------------------------------------------------

void RespTier::count() {
  is_counting_ = true;
  census_.begin();
  ask_census();
}

void RespTier::ask_census() {
  auto step = std::make_unique<RespOperation>();
  step->is_census = true;
  step->deadline = Clock::now() + std::chrono::milliseconds(wish_.timeout_ms);
  step->answers_left = census_.ask(output_);
  step->output_end = output_.added_bytes();
  waiting_.push_back(std::move(step));
}

void RespTier::counted() {
  is_counting_ = false;
  const std::string& trouble = census_.trouble();
  if (trouble.empty()) {
    next_count_ =
        wish_.list_every_s > 0 ? Clock::now() + std::chrono::seconds(wish_.list_every_s) : Clock::time_point::max();
    count_pause_ = kCountPauseMin;
  } else {
    next_count_ = Clock::now() + count_pause_;
    count_pause_ = std::min(count_pause_ * 2, kCountPauseMax);
  }
  const std::lock_guard lock(mutex_);
  list_trouble_ = trouble;
  is_counted_ = true;
  first_count_.notify_all();
}

bool RespTier::is_changing(const std::string& key) const {
  return std::ranges::any_of(waiting_, [&](const auto& operation) {
    const bool is_change = !operation->is_census &&
                           (operation->request.kind == MARU_TIER_STORE || operation->request.kind == MARU_TIER_DELETE);
    return is_change && operation->key == key;
  });
}

// Takes the answer to a request into the catalogue.
void RespTier::note(const RespOperation& operation, int result) {
  if (!wish_.lists) return;
  const bool is_store = operation.request.kind == MARU_TIER_STORE;
  const bool is_delete = operation.request.kind == MARU_TIER_DELETE;
  if (result == -ENOENT || (result == 0 && is_delete)) {
    catalogue_.erase(operation.key);
  } else if (result == 0) {
    const uint64_t attributes_bytes = is_store ? operation.request.attributes_bytes : operation.head.attributes.size();
    catalogue_.put(operation.key, operation.key, about_resp_entry(operation.key, operation.head, attributes_bytes));
  }
}

// -- operations ----------------------------------------------------------------------------------------------------------

size_t RespTier::submit(const maru_tier_request* requests, size_t n) {
  size_t taken = 0;
  {
    const std::lock_guard lock(mutex_);
    for (; taken < n && requests_under_way_ < kRequestsMax; ++taken) {
      const uint64_t bytes = requests[taken].payload_bytes;
      if (bytes_under_way_ > 0 && bytes_under_way_ + bytes > wish_.depth_bytes) break;
      bytes_under_way_ += bytes;
      ++requests_under_way_;
      queue_.push_back(requests[taken]);
    }
  }
  if (taken > 0) eventfd_write(wake_.get(), 1);
  return taken;
}

void RespTier::begin(std::unique_ptr<RespOperation> operation) {
  if (!context_) return end(*operation, -ENOTCONN);
  const maru_tier_request& request = operation->request;
  if (request.kind != MARU_TIER_STORE) {
    const std::string name = resp_head_name(wish_.prefix, operation->key);
    output_.add({{"GET"}, {name}});
    operation->answers_left = 1;
    operation->output_end = output_.added_bytes();
    waiting_.push_back(std::move(operation));
    return;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  RespHead head = {request.payload_bytes,
                   request.payload_checksum,
                   wish_.chunk_bytes,
                   request.note,
                   uint64_t(std::chrono::duration_cast<std::chrono::microseconds>(now).count()),
                   std::string(static_cast<const char*>(request.attributes), request.attributes_bytes)};
  if (head.chunks() > kRespChunksMax) return end(*operation, -EFBIG);
  const std::string ttl = std::to_string(wish_.ttl_ms);
  const auto set = [&](const std::string& name, RespWord value) {
    if (wish_.ttl_ms == 0)
      output_.add({{"SET"}, {name}, value});
    else
      output_.add({{"SET"}, {name}, value, {"PX"}, {ttl}});
    ++operation->answers_left;
  };
  const std::string_view payload(static_cast<const char*>(request.payload), request.payload_bytes);
  for (uint64_t i = 0; i < head.chunks(); ++i)
    set(resp_chunk_name(wish_.prefix, operation->key, head.payload_checksum, i),
        {payload.substr(i * head.chunk_bytes, head.chunk_bytes), true});
  const std::string head_bytes = encode_resp_head(head, operation->key);
  set(resp_head_name(wish_.prefix, operation->key), {head_bytes});
  head.attributes.clear();
  operation->head = std::move(head);
  operation->output_end = output_.added_bytes();
  waiting_.push_back(std::move(operation));
}

// Sends the commands that follow a found head.
void RespTier::ask(RespOperation& operation) {
  const maru_tier_request& request = operation.request;
  const RespHead& head = operation.head;
  operation.deadline = Clock::now() + std::chrono::milliseconds(wish_.timeout_ms);
  const char* const verb = request.kind == MARU_TIER_LOAD ? "GET" : "DEL";
  for (uint64_t i = 0; i < head.chunks(); ++i, ++operation.answers_left) {
    const std::string name = resp_chunk_name(wish_.prefix, operation.key, head.payload_checksum, i);
    output_.add({{verb}, {name}});
  }
  operation.output_end = output_.added_bytes();
  if (request.kind == MARU_TIER_LOAD) return;
  const std::string name = resp_head_name(wish_.prefix, operation.key);
  output_.add({{verb}, {name}});
  ++operation.answers_left;
  operation.output_end = output_.added_bytes();
}

void RespTier::end(RespOperation& operation, int result) {
  note(operation, result);
  {
    const std::lock_guard lock(mutex_);
    bytes_under_way_ -= operation.request.payload_bytes;
    --requests_under_way_;
  }
  const bool tells = operation.has_head && operation.request.kind != MARU_TIER_DELETE;
  completions_.put({operation.request.ticket, result, tells ? uint32_t(operation.head.attributes.size()) : 0,
                    tells ? operation.head.payload_bytes : 0, tells ? operation.head.note : 0});
}

// -- its properties ------------------------------------------------------------------------------------------------------

void RespTier::get_properties(maru_tier_properties& ret_properties) const {
  ret_properties = {};
  ret_properties.size = sizeof(ret_properties);
  ret_properties.capabilities = MARU_TIER_KEEPS | MARU_TIER_SURVIVES | MARU_TIER_SHARED | MARU_TIER_BOUNDS_SELF;
  if (wish_.lists) ret_properties.capabilities |= MARU_TIER_LISTS | MARU_TIER_COUNTS_GROUPS;
  ret_properties.depth_bytes = wish_.depth_bytes;
}

void RespTier::get_usage(maru_tier_usage& ret_usage) {
  ret_usage = {};
  ret_usage.size = sizeof(ret_usage);
  if (wish_.lists) catalogue_.get_usage(ret_usage);
  const std::lock_guard lock(mutex_);
  ret_usage.in_flight = requests_under_way_;
}

void RespTier::get_health(maru_tier_health& ret_health) {
  ret_health = {};
  ret_health.size = sizeof(ret_health);
  const std::lock_guard lock(mutex_);
  ret_health.is_ready = trouble_.empty();
  std::snprintf(ret_health.text, sizeof ret_health.text, "%s", (trouble_.empty() ? list_trouble_ : trouble_).c_str());
}

int RespTier::list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) const {
  return wish_.lists ? catalogue_.list(cursor, ret_entries, n) : -EOPNOTSUPP;
}

void RespTier::get_group(std::string_view name, maru_tier_group& ret_group) const {
  catalogue_.get_group(name, ret_group);
}

int RespTier::list_groups(const maru_tier_group* after, maru_tier_group* ret_groups, size_t n) const {
  return catalogue_.list_groups(after, ret_groups, n);
}

int RespTier::list_oldest(std::string_view name, maru_tier_entry* ret_entries, size_t n) const {
  return catalogue_.list_oldest(name, ret_entries, n);
}

}  // namespace maru::tierd
