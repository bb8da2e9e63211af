#include "daemon/tierd/store_controller.h"

#include <cerrno>
#include <cstring>

namespace maru::tierd {

namespace {

constexpr size_t kSeenKeys = 1u << 20;          // digests that kSecondUse remembers
constexpr size_t kRememberedBlocks = 1u << 18;  // published or freed, and not told by the feed yet

}  // namespace

// Lives until the last tier has answered and given the block's memory back. Then the pin ends, and the key is free again.
struct StoreController::Job {
  Job(StoreController& owner, FeedItem taken) : controller(owner), item(std::move(taken)) {}
  ~Job() { controller.end(*this); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  StoreController& controller;
  FeedItem item;
  std::string key, attributes;
  maru_view view = {};
  bool has_pin = false, is_busy = false;
  size_t open = 0;    // tiers that have not answered
  size_t stored = 0;  // tiers that have it
  size_t failed = 0;  // tiers with which it may be tried again
};

StoreController::StoreController(const StoreSettings& settings, maru_client* client, const PoolId& pool,
                                 TenantNames& names, Slots& slots, Counters& counters)
    : settings_(settings),
      client_(client),
      pool_(pool),
      names_(names),
      slots_(slots),
      stored_(counters.counter("maru_tier_stored_blocks_total", "Blocks written to at least one tier")),
      stored_bytes_(counters.counter("maru_tier_stored_bytes_total", "Their payload bytes")),
      given_up_(counters.counter("maru_tier_store_given_up_total", "Blocks that no tier took, after all tries")),
      gone_(
          counters.counter("maru_tier_store_gone_total", "Blocks that had left the pool before they could be written")),
      not_admitted_(counters.counter("maru_tier_store_not_admitted_total", "Blocks that the policy left out")),
      deletions_(counters.counter("maru_tier_forgotten_total", "Keys that the tiers forgot because they were deleted")),
      freed_(counters.counter("maru_tier_freed_blocks_total", "Blocks deleted from the pool after they were written")),
      pinned_(counters.gauge("maru_tier_pinned_bytes", "Bytes of the pool that are pinned for writing")),
      queue_length_(counters.gauge("maru_tier_store_queue", "Blocks that wait to be written")),
      seen_(settings.policy == StorePolicy::kSecondUse ? kSeenKeys : 0) {}

StoreController::~StoreController() = default;

void StoreController::take(std::deque<FeedItem> items) {
  for (FeedItem& item : items) {
    names_.learn(item.tenant, item.tenant_name);
    if (item.kind == FeedItem::Kind::kReset) {
      // Blocks that wait come again in the snapshot.
      std::erase_if(queue_, [](const FeedItem& waiting) { return waiting.kind == FeedItem::Kind::kStored; });
      continue;
    }
    if (item.kind == FeedItem::Kind::kStored && published_.erase(item.block) > 0) continue;
    if (item.kind == FeedItem::Kind::kDeleted && (freed_blocks_.erase(item.block) > 0 || !settings_.forgets_deleted))
      continue;
    queue_.push_back(std::move(item));
  }
  pump();
}

void StoreController::published(maru_block block) {
  if (published_.size() >= kRememberedBlocks) published_.clear();  // they are compared, and not written again
  published_.insert(block);
}

void StoreController::pump() {
  while (!queue_.empty()) {
    FeedItem item = std::move(queue_.front());
    queue_.pop_front();
    if (begin(item)) continue;
    queue_.push_front(std::move(item));
    break;
  }
  queue_length_.set(queued());
}

bool StoreController::begin(FeedItem& item) {
  const std::string key = entry_key(item.maru_key_now(), pool_, names_);
  if (const auto busy = busy_.find(key); busy != busy_.end()) {
    busy->second.push_back(std::move(item));
    ++waiting_;
    return true;
  }
  if (item.kind == FeedItem::Kind::kDeleted) {
    erase(key);
    return true;
  }
  if (pinned_bytes_ + item.length > settings_.pinned_bytes_max && item.length <= settings_.pinned_bytes_max)
    return false;
  for (const auto& slot : slots_)
    if (!slot->has_room()) return false;
  if (item.length > settings_.pinned_bytes_max || (item.attempts == 0 && !is_admitted(item, key))) {
    not_admitted_.add();
    return true;
  }
  auto job = std::make_shared<Job>(*this, std::move(item));
  job->key = key;
  const maru_key found = job->item.maru_key_now();
  // Another life under the same key has an event of its own.
  if (maru_retrieve(client_, &found, &job->view) != 0) {
    gone_.add();
    return true;
  }
  job->has_pin = true;
  pinned_bytes_ += job->item.length;
  pinned_.set(pinned_bytes_);
  if (job->view.block != job->item.block || job->view.bytes != job->item.length) {
    gone_.add();
    return true;
  }
  write(std::move(job));
  return true;
}

bool StoreController::is_admitted(const FeedItem& item, const std::string& key) {
  const uint64_t now_ms = uint64_t(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  if (item.expires_ms != 0 && item.expires_ms <= now_ms) return false;
  if (settings_.policy != StorePolicy::kSecondUse) return true;
  const uint64_t digest = payload_checksum(key.data(), key.size()) | 1;  // never 0, which is an empty place
  uint64_t& place = seen_[digest % seen_.size()];
  if (place == digest) return true;
  place = digest;
  return false;
}

void StoreController::write(std::shared_ptr<Job> job) {
  Attributes attributes;
  attributes.payload_bytes = job->view.bytes;
  attributes.payload_checksum = payload_checksum(job->view.data, job->view.bytes);
  attributes.expires_ms = job->item.expires_ms;
  attributes.priority = job->item.priority;
  attributes.content_type = job->item.content_type;
  if (!job->item.parent.empty()) attributes.parent = entry_key(job->item.maru_parent_now(), pool_, names_);
  maru_metadata metadata = {};
  if (maru_view_metadata(client_, &job->view, &metadata) == 0 && metadata.bytes > 0)
    attributes.metadata.assign(static_cast<const char*>(metadata.data), metadata.bytes);
  job->attributes = encode_attributes(attributes, job->key);

  TierOperation operation;
  operation.request.kind = MARU_TIER_STORE;
  operation.request.key = job->key.data();
  operation.request.key_bytes = uint32_t(job->key.size());
  operation.request.attributes = job->attributes.data();
  operation.request.attributes_bytes = uint32_t(job->attributes.size());
  operation.request.payload = const_cast<void*>(job->view.data);  // a store only reads it
  operation.request.payload_bytes = job->view.bytes;
  operation.request.payload_checksum = attributes.payload_checksum;
  operation.request.note = note_of(attributes);
  job->open = slots_.size();
  busy_[job->key];  // until each tier has answered and given the memory back
  job->is_busy = true;
  for (const auto& slot : slots_) {
    operation.answered = [this, job, tier = slot.get()](const maru_tier_completion& done) {
      written(job, *tier, done.result);
    };
    operation.released = [job] {};  // keeps the pin until then
    slot->submit(operation);
  }
}

void StoreController::written(const std::shared_ptr<Job>& job, TierSlot&, int result) {
  if (result == 0)
    ++job->stored;
  else if (result != -EFBIG && result != -EINVAL && result != -EHOSTDOWN)
    ++job->failed;
  if (--job->open == 0) finish(*job);
}

void StoreController::finish(Job& job) {
  if (job.failed > 0 && job.item.attempts + 1 < settings_.attempts_max) {
    FeedItem again = job.item;
    ++again.attempts;
    queue_.push_back(std::move(again));
  } else if (job.stored == 0) {
    given_up_.add();
  }
  if (job.stored == 0) return;
  stored_.add();
  stored_bytes_.add(job.item.length);
}

void StoreController::end(Job& job) {
  if (job.has_pin) {
    (void)maru_release(client_, &job.view);
    pinned_bytes_ -= job.item.length;
    pinned_.set(pinned_bytes_);
  }
  if (job.stored > 0 && settings_.policy == StorePolicy::kSkipPool) free_block(job.item.block);
  if (job.is_busy) finish_change(job.key);
}

// A block that others hold, or that has children, stays.
void StoreController::free_block(maru_block block) {
  if (freed_blocks_.size() >= kRememberedBlocks) freed_blocks_.clear();
  freed_blocks_.insert(block);
  if (maru_delete_block(client_, block, MARU_DELETE_UNPINNED) == 0)
    freed_.add();
  else
    freed_blocks_.erase(block);
}

void StoreController::erase(const std::string& key) {
  if (deleted) deleted(key);
  deletions_.add();
  busy_[key];
  // Each operation holds the key; the last one to be released frees it.
  const std::shared_ptr<std::string> kept(new std::string(key), [this](std::string* ended) {
    finish_change(*ended);
    delete ended;
  });
  for (const auto& slot : slots_) {
    TierOperation operation;
    operation.request.kind = MARU_TIER_DELETE;
    operation.request.key = kept->data();
    operation.request.key_bytes = uint32_t(kept->size());
    operation.answered = [](const maru_tier_completion&) {};
    operation.released = [kept] {};
    slot->submit(std::move(operation));
  }
}

void StoreController::finish_change(const std::string& key) {
  const auto found = busy_.find(key);
  if (found == busy_.end()) return;
  std::deque<FeedItem> waiting = std::move(found->second);
  busy_.erase(found);
  waiting_ -= waiting.size();
  for (auto item = waiting.rbegin(); item != waiting.rend(); ++item) queue_.push_front(std::move(*item));
}

}  // namespace maru::tierd
