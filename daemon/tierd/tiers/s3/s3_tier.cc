#include "daemon/tierd/tiers/s3/s3_tier.h"

#include "daemon/tierd/tiers/thread_signals.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>

namespace maru::tierd {

namespace {

constexpr size_t kRequestsMax = 1024;
constexpr std::chrono::milliseconds kIdleTurn{1000};
constexpr std::chrono::seconds kCountPauseMax{60};  // between lists that fail
constexpr uint64_t kMemoryOfAnObject = 256;         // an entry has some more bytes: its room ends before

std::string range_text(uint64_t first, uint64_t end, bool is_last) {
  return "bytes=" + std::to_string(first) + "-" + (is_last ? "" : std::to_string(end - 1));
}

// Of the whole object, as an answer tells it; 0: it does not.
uint64_t total_of(const S3Call::Outcome& outcome) {
  if (outcome.status == 206) return outcome.headers.range ? outcome.headers.range->total : 0;
  return outcome.headers.content_length.value_or(0);
}

}  // namespace

Result<std::unique_ptr<S3Tier>> S3Tier::open(const S3Wish& wish) {
  auto client = S3Client::create(wish.service);
  if (!client) return tl::unexpected(client.error());
  std::unique_ptr<S3Tier> tier(new S3Tier(wish, std::move(*client)));
  if (!tier->completions_.is_open()) return failure(EMFILE, "make a descriptor; raise the limit of open files");
  tier->thread_ = std::thread([raw = tier.get()] { raw->run(); });
  std::unique_lock lock(tier->mutex_);
  tier->first_count_.wait_for(lock, std::chrono::milliseconds(wish.timeout_ms),
                              [&] { return tier->first_outcome_.has_value(); });
  if (tier->first_outcome_ && tier->first_outcome_->is_refusal)
    return failure(-tier->first_outcome_->result, tier->first_outcome_->trouble);
  lock.unlock();
  return tier;
}

S3Tier::S3Tier(const S3Wish& wish, std::unique_ptr<S3Client> client)
    : wish_(wish),
      catalogue_(
          [prefix = wish.prefix](const std::string& name) {
            auto named = parse_s3_object_name(prefix, name);
            return named ? std::move(named->key) : std::string();
          },
          wish.list_memory),
      client_(std::move(client)),
      census_(
          {wish.prefix, wish.lists, std::chrono::milliseconds(wish.timeout_ms), wish.list_memory / kMemoryOfAnObject},
          *client_, catalogue_) {}

S3Tier::~S3Tier() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  client_->wake();
  if (thread_.joinable()) thread_.join();
}

void S3Tier::run() {
  // TLS writes without MSG_NOSIGNAL, and the server may have gone: an error, and no end of the process.
  block_signals();
  for (;;) {
    std::deque<maru_tier_request> fresh;
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_) return;
      fresh = std::exchange(queue_, {});
    }
    const auto now = S3Call::Clock::now();
    if (!census_.is_under_way() && now >= next_count_) count();
    for (const maru_tier_request& request : fresh) begin(request);
    client_->turn(kIdleTurn);
  }
}

// -- the content of the bucket -------------------------------------------------------------------------------------------

void S3Tier::count() {
  census_.begin([this](const Outcome& outcome) { counted(outcome); });
}

void S3Tier::counted(const Outcome& outcome) {
  const bool is_too_long = outcome.result == -E2BIG;  // the list; the server answers
  note(is_too_long ? Outcome() : outcome);
  const auto now = S3Call::Clock::now();
  if (outcome.result != 0 && !is_too_long) {
    next_count_ = now + count_pause_;
    count_pause_ = std::min(count_pause_ * 2, kCountPauseMax);
  } else {
    const bool repeats = wish_.lists && wish_.list_every_s > 0;
    next_count_ = repeats ? now + std::chrono::seconds(wish_.list_every_s) : S3Call::Clock::time_point::max();
    count_pause_ = std::chrono::seconds(1);
  }
  const std::lock_guard lock(mutex_);
  list_trouble_ = is_too_long ? outcome.trouble : std::string();
  if (first_outcome_) return;
  first_outcome_ = outcome;
  first_count_.notify_all();
}

// -- operations ----------------------------------------------------------------------------------------------------------

size_t S3Tier::submit(const maru_tier_request* requests, size_t n) {
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
  if (taken > 0) client_->wake();
  return taken;
}

void S3Tier::begin(const maru_tier_request& request) {
  auto operation = std::make_shared<S3Operation>();
  operation->request = request;
  operation->key.assign(static_cast<const char*>(request.key), request.key_bytes);
  operation->name = s3_object_name(wish_.prefix, operation->key);
  operation->deadline = S3Call::Clock::now() + std::chrono::milliseconds(wish_.timeout_ms);
  switch (request.kind) {
    case MARU_TIER_LOOKUP: return look(operation, [this, operation] { end(*operation, operation->result); });
    case MARU_TIER_LOAD: return load(operation);
    case MARU_TIER_STORE: return store(operation, wish_.if_none_match);
    default: return remove(operation);
  }
}

// Reads the head alone.
void S3Tier::look(const Shared& operation, std::function<void()> then) {
  S3Call call;
  call.verb = "GET";
  call.name = operation->name;
  call.headers["range"] = range_text(0, operation->head_bytes_wanted(), false);
  call.deadline = operation->deadline;
  call.begin = [operation] { operation->head_bytes.clear(); };
  // A server that does not know ranges sends all; its rest is not waited for.
  call.sink = [operation](std::string_view bytes, uint32_t, const S3Headers&) {
    const uint64_t wanted = operation->head_bytes_wanted() - operation->head_bytes.size();
    operation->head_bytes.append(bytes.substr(0, wanted));
    return bytes.size() <= wanted;
  };
  call.done = [this, operation, then = std::move(then)](Outcome& outcome) {
    take_head(operation, outcome);
    then();
  };
  client_->start(std::move(call));
}

void S3Tier::take_head(const Shared& operation, const Outcome& outcome) {
  note(outcome);
  if (outcome.result == -ENOENT) catalogue_.erase(operation->name);
  if (outcome.result != 0) return operation->fail(outcome.result);
  operation->judge_head();
  if (operation->has_head && total_of(outcome) != operation->head.object_bytes()) operation->fail(-EBADMSG);
  if (operation->result == 0)
    catalogue_.put(operation->name, operation->key,
                   about_s3_entry(operation->key, operation->head, outcome.headers.modified.value_or(0)));
}

void S3Tier::load(const Shared& operation) {
  const uint64_t bytes = operation->head_bytes_wanted() + operation->request.payload_bytes;
  const uint64_t parts = std::max<uint64_t>(1, (bytes + wish_.part_bytes - 1) / wish_.part_bytes);
  operation->parts_open = parts;
  operation->arrived.assign(parts, 0);
  for (uint64_t i = 0; i < parts; ++i)
    load_part(operation, i * wish_.part_bytes, (i + 1) * wish_.part_bytes, i + 1 == parts);
}

// The last part takes the attributes, too. Their length is known only from the head.
void S3Tier::load_part(const Shared& operation, uint64_t first, uint64_t end, bool is_last) {
  const bool is_whole = first == 0 && is_last;
  uint64_t* const arrived = &operation->arrived[first / wish_.part_bytes];
  S3Call call;
  call.verb = "GET";
  call.name = operation->name;
  if (!is_whole) call.headers["range"] = range_text(first, end, is_last);
  call.deadline = operation->deadline;
  call.begin = [operation, first, arrived] {
    *arrived = 0;
    if (first == 0) operation->head_bytes.clear();
  };
  call.sink = [operation, first, arrived, is_whole](std::string_view bytes, uint32_t status, const S3Headers&) {
    if (!is_whole && status != 206) operation->fail(-EOPNOTSUPP);
    const uint64_t at = first + std::exchange(*arrived, *arrived + bytes.size());
    return operation->result == 0 && operation->place(at, bytes);
  };
  call.done = [this, operation](Outcome& outcome) {
    note(outcome);
    if (outcome.result == -ENOENT) catalogue_.erase(operation->name);
    operation->fail(outcome.result);
    if (outcome.result == 0) operation->take_version(total_of(outcome), outcome.headers.etag);
    if (--operation->parts_open == 0) loaded(operation);
  };
  client_->start(std::move(call));
}

void S3Tier::loaded(const Shared& operation) {
  if (operation->result == -EOPNOTSUPP) {
    Outcome told;
    told.result = -EOPNOTSUPP;
    told.trouble = "the server does not know ranges; set part_bytes to more than the largest block has";
    note(told);
  }
  operation->prove();
  end(*operation, operation->result);
}

void S3Tier::store(const Shared& operation, bool is_conditional) {
  const maru_tier_request& request = operation->request;
  const std::string_view attributes(static_cast<const char*>(request.attributes), request.attributes_bytes);
  operation->head = {request.payload_bytes, request.payload_checksum, s3_checksum(attributes.data(), attributes.size()),
                     request.note,          request.key_bytes,        request.attributes_bytes};
  if (operation->head.object_bytes() > kS3ObjectBytesMax) return end(*operation, -EFBIG);
  operation->head_bytes = encode_s3_head(operation->head, operation->key);
  S3Call call;
  call.verb = "PUT";
  call.name = operation->name;
  if (is_conditional) call.headers["if-none-match"] = "*";
  call.body = {operation->head_bytes, {static_cast<const char*>(request.payload), request.payload_bytes}, attributes};
  call.has_body = true;
  call.deadline = operation->deadline;
  call.done = [this, operation, is_conditional](Outcome& outcome) { stored(operation, outcome, is_conditional); };
  client_->start(std::move(call));
}

void S3Tier::stored(const Shared& operation, const Outcome& outcome, bool is_conditional) {
  note(outcome);
  if (outcome.result == 0)
    catalogue_.put(operation->name, operation->key,
                   about_s3_entry(operation->key, operation->head, outcome.headers.date.value_or(std::time(nullptr))));
  if (outcome.result != -EEXIST || !is_conditional) return end(*operation, outcome.result);
  // Another host was first. With the same entry, which is the rule, all is done; else this one replaces it.
  const auto other = std::make_shared<S3Operation>();
  other->key = operation->key;
  other->name = operation->name;
  other->deadline = operation->deadline;
  look(other, [this, operation, other] {
    if (other->result == 0 && other->head == operation->head) return end(*operation, 0);
    store(operation, false);
  });
}

void S3Tier::remove(const Shared& operation) {
  look(operation, [this, operation] {
    // An object that does not verify goes, too.
    if (operation->result == -EBADMSG) operation->result = 0;
    if (operation->result != 0) return end(*operation, operation->result);
    S3Call call;
    call.verb = "DELETE";
    call.name = operation->name;
    call.deadline = operation->deadline;
    call.done = [this, operation](Outcome& outcome) {
      note(outcome);
      if (outcome.result == 0 || outcome.result == -ENOENT) catalogue_.erase(operation->name);
      end(*operation, outcome.result);
    };
    client_->start(std::move(call));
  });
}

void S3Tier::end(S3Operation& operation, int result) {
  {
    const std::lock_guard lock(mutex_);
    bytes_under_way_ -= operation.request.payload_bytes;
    --requests_under_way_;
    damaged_ += result == -EBADMSG;
  }
  const bool tells = operation.has_head && operation.request.kind != MARU_TIER_DELETE;
  completions_.put({operation.request.ticket, result, tells ? operation.head.attributes_bytes : 0,
                    tells ? operation.head.payload_bytes : 0, tells ? operation.head.note : 0});
}

// -- its properties ------------------------------------------------------------------------------------------------------

void S3Tier::note(const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  trouble_ = outcome.trouble;
}

void S3Tier::get_properties(maru_tier_properties& ret_properties) const {
  ret_properties = {};
  ret_properties.size = sizeof(ret_properties);
  ret_properties.capabilities = MARU_TIER_KEEPS | MARU_TIER_SURVIVES | MARU_TIER_SHARED;
  if (wish_.lists) ret_properties.capabilities |= MARU_TIER_LISTS | MARU_TIER_COUNTS_GROUPS;
  ret_properties.entry_bytes_max =
      kS3ObjectBytesMax - kS3FixedBytes - MARU_TIER_KEY_BYTES_MAX - MARU_TIER_ATTRIBUTES_BYTES_MAX;
  ret_properties.depth_bytes = wish_.depth_bytes;
}

void S3Tier::get_usage(maru_tier_usage& ret_usage) {
  ret_usage = {};
  ret_usage.size = sizeof(ret_usage);
  if (wish_.lists) catalogue_.get_usage(ret_usage);
  const std::lock_guard lock(mutex_);
  ret_usage.damaged = damaged_;
  ret_usage.in_flight = requests_under_way_;
}

void S3Tier::get_health(maru_tier_health& ret_health) {
  ret_health = {};
  ret_health.size = sizeof(ret_health);
  const std::lock_guard lock(mutex_);
  ret_health.is_ready = trouble_.empty();
  std::snprintf(ret_health.text, sizeof ret_health.text, "%s", (trouble_.empty() ? list_trouble_ : trouble_).c_str());
}

int S3Tier::list(uint64_t* cursor, maru_tier_entry* ret_entries, size_t n) const {
  return wish_.lists ? catalogue_.list(cursor, ret_entries, n) : -EOPNOTSUPP;
}

void S3Tier::get_group(std::string_view name, maru_tier_group& ret_group) const {
  catalogue_.get_group(name, ret_group);
}

int S3Tier::list_groups(const maru_tier_group* after, maru_tier_group* ret_groups, size_t n) const {
  return catalogue_.list_groups(after, ret_groups, n);
}

int S3Tier::list_oldest(std::string_view name, maru_tier_entry* ret_entries, size_t n) const {
  return catalogue_.list_oldest(name, ret_entries, n);
}

}  // namespace maru::tierd
