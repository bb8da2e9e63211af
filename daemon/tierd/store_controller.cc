#include "daemon/tierd/store_controller.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace maru::tierd {

namespace {

constexpr size_t kSeenKeys = 1u << 20;          // digests that kSecondUse remembers
constexpr size_t kRememberedBlocks = 1u << 18;  // published or freed, and not told by the feed yet
constexpr size_t kStaleMax = 1u << 18;
constexpr size_t kStaleAtATime = 64;
constexpr size_t kCopiesKept = 1u << 16;
constexpr size_t kCopiesAtOnce = 1024;
constexpr std::chrono::milliseconds kReportPause{100};  // some turns of marud
constexpr std::chrono::seconds kReportRetryPause{5};    // a marud that does not answer costs the loop a wait

bool has_expired(const FeedItem& item) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_ms = uint64_t(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  return item.expires_ms != 0 && item.expires_ms <= now_ms;
}

}  // namespace

// Lives until the last tier has answered and given the block's memory back. Then the pin ends, and the key is free again.
struct StoreController::Job {
  Job(StoreController& owner, FeedItem taken) : controller(owner), item(std::move(taken)) {}
  ~Job() { controller.end(*this); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  StoreController& controller;
  FeedItem item;
  std::string key, parent, attributes;  // keys of entries
  maru_view view = {};
  uint64_t chain_bytes = 0;    // of the block and all above it
  size_t pinned_children = 0;  // one of them is enough to hold all that this holds
  bool has_pin = false, is_busy = false;
  size_t open = 0;    // tiers that have not answered
  size_t stored = 0;  // tiers that have it
  size_t failed = 0;  // tiers with which it may be tried again
};

StoreController::StoreController(const StoreSettings& settings, maru_client* client, const PoolId& pool,
                                 TenantNames& names, TenantQuotas& quotas, Slots& slots, Counters& counters)
    : settings_(settings),
      client_(client),
      pool_(pool),
      names_(names),
      quotas_(quotas),
      slots_(slots),
      stored_(counters.counter("maru_tier_stored_blocks_total", "Blocks written to at least one tier")),
      stored_bytes_(counters.counter("maru_tier_stored_bytes_total", "Their payload bytes")),
      given_up_(counters.counter("maru_tier_store_given_up_total", "Blocks that no tier took, after all tries")),
      gone_(
          counters.counter("maru_tier_store_gone_total", "Blocks that had left the pool before they could be written")),
      not_admitted_(counters.counter("maru_tier_store_not_admitted_total", "Blocks that the policy left out")),
      over_budget_(counters.counter("maru_tier_store_over_budget_total",
                                    "Blocks that were left out, as the bytes of the day were used up")),
      over_quota_(counters.counter("maru_tier_store_over_quota_total",
                                   "Blocks that a tier did not get, as their tenants have no room in it")),
      evicted_for_quota_(counters.counter("maru_tier_evicted_for_quota_total",
                                          "Entries deleted from a tier to hold their tenants to their quotas")),
      left_out_(counters.counter("maru_tier_feed_left_out_total",
                                 "Stored blocks that were not considered: the queue was full")),
      deleted_(counters.counter("maru_tier_forgotten_total", "Keys that the tiers forgot because they were deleted")),
      freed_(counters.counter("maru_tier_freed_blocks_total", "Blocks deleted from the pool after they were written")),
      reported_(counters.counter("maru_tier_reported_copies_total",
                                 "Blocks of which marud knows that a tier has them: they go first among equals")),
      pinned_(counters.gauge("maru_tier_pinned_bytes", "Bytes of the pool that are pinned for writing")),
      held_(counters.gauge("maru_tier_pinned_chain_bytes", "Bytes of the pool that these pins keep from eviction")),
      queue_length_(counters.gauge("maru_tier_store_queue", "Blocks that wait to be written")),
      seen_(settings.policy == StorePolicy::kSecondUse ? kSeenKeys : 0),
      budget_(settings.bytes_a_day, Clock::now()) {}

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
    if (item.kind == FeedItem::Kind::kDeleted)
      deletions_.push_back(std::move(item));
    else if (queued() < FeedQueue::kStoredMax)
      queue_.push_back(std::move(item));
    else
      left_out_.add();
  }
  pump();
}

void StoreController::published(maru_block block) {
  if (published_.size() >= kRememberedBlocks) published_.clear();  // they are compared, and not written again
  published_.insert(block);
  if (copies_.size() < kCopiesKept) copies_.push_back(block);
}

// Hints: none is told again.
void StoreController::report_copies(Clock::time_point now) {
  if (now < next_report_ || !has_copies()) return;
  if (due_copies_.empty()) {
    due_copies_.swap(copies_);
    next_report_ = now + kReportPause;
    return;
  }
  const size_t n = std::min(due_copies_.size(), kCopiesAtOnce);
  const int result = maru_report_copies(client_, due_copies_.data() + (due_copies_.size() - n), n);
  due_copies_.resize(due_copies_.size() - n);
  if (result >= 0)
    reported_.add(uint64_t(result));
  else
    next_report_ = now + kReportRetryPause;
}

void StoreController::pump() {
  while (!deletions_.empty()) {
    FeedItem item = std::move(deletions_.front());
    deletions_.pop_front();
    (void)begin(item);
  }
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
    // The feed may tell of the key's next life before the end of this one.
    const maru_key now = item.maru_key_now();
    if (maru_exists(client_, &now) != 1) erase(key);
    return true;
  }
  if (pinned_bytes_ + item.length > settings_.pinned_bytes_max && item.length <= settings_.pinned_bytes_max)
    return false;
  for (const auto& slot : slots_)
    if (!slot->has_room()) return false;
  maru_view view = {};
  if (item.length > settings_.pinned_bytes_max) {
    not_admitted_.add();
    return true;
  }
  // No use of the block: to write it down makes it no warmer for the pool's policy.
  if (maru_peek_block(client_, item.block, &view) != 0) {
    gone_.add();
    return true;
  }
  maru_block_info info = {};
  info.size = sizeof(info);
  const bool is_gone = view.bytes != item.length || maru_get_block_info(client_, view.block, &info, nullptr) != 0;
  const uint64_t chain_bytes = (info.depth + 1) * item.length;  // blocks of a chain are about equally large
  const std::string parent = item.parent.empty() ? "" : entry_key(item.maru_parent_now(), pool_, names_);
  const bool must_wait = !is_gone && !may_hold(chain_bytes, parent);
  const bool is_left_out =
      !is_gone && !must_wait && (has_expired(item) || (item.attempts == 0 && !is_admitted(item, key)));
  if (is_gone || must_wait || is_left_out) {
    (void)maru_release(client_, &view);
    if (is_gone) gone_.add();
    if (is_left_out) not_admitted_.add();
    return !must_wait;
  }
  auto job = std::make_shared<Job>(*this, std::move(item));
  job->key = key;
  job->parent = parent;
  job->view = view;
  job->chain_bytes = chain_bytes;
  hold(*job);
  write(std::move(job));
  return true;
}

bool StoreController::may_hold(uint64_t chain_bytes, const std::string& parent) const {
  // Where the parent's pin is the deepest of its chain, this one takes its place.
  const auto above = pinned_jobs_.find(parent);
  const uint64_t replaced =
      above != pinned_jobs_.end() && above->second->pinned_children == 0 ? above->second->chain_bytes : 0;
  const uint64_t others = held_bytes_ - replaced;
  return others == 0 || others + chain_bytes <= settings_.pinned_bytes_max;
}

void StoreController::hold(Job& job) {
  job.has_pin = true;
  pinned_bytes_ += job.item.length;
  held_bytes_ += job.chain_bytes;
  if (const auto above = pinned_jobs_.find(job.parent); above != pinned_jobs_.end())
    if (above->second->pinned_children++ == 0) held_bytes_ -= above->second->chain_bytes;
  pinned_jobs_[job.key] = &job;
  pinned_.set(pinned_bytes_);
  held_.set(held_bytes_);
}

void StoreController::let_go(Job& job) {
  (void)maru_release(client_, &job.view);
  pinned_bytes_ -= job.item.length;
  if (job.pinned_children == 0) held_bytes_ -= job.chain_bytes;
  if (const auto above = pinned_jobs_.find(job.parent);
      above != pinned_jobs_.end() && above->second->pinned_children > 0)
    if (--above->second->pinned_children == 0) held_bytes_ += above->second->chain_bytes;
  pinned_jobs_.erase(job.key);
  pinned_.set(pinned_bytes_);
  held_.set(held_bytes_);
}

bool StoreController::is_admitted(const FeedItem& item, const std::string& key) {
  if (settings_.policy == StorePolicy::kSecondUse) {
    const uint64_t digest = payload_checksum(key.data(), key.size()) | 1;  // never 0, which is an empty place
    Seen& place = seen_[digest % seen_.size()];
    const bool is_first = place.digest != digest || place.block == item.block;  // a snapshot tells of a block again
    place = {digest, item.block};
    if (is_first) return false;
  }
  // A block that no tier would take uses nothing of the day's bytes.
  const std::string scope(split_entry_key(key)->scope);
  const uint64_t limit = quotas_.limit_of(scope);
  const bool is_wanted = std::any_of(slots_.begin(), slots_.end(), [&](const auto& slot) {
    return limit == 0 || item.length <= limit || !slot->tier().counts_groups();
  });
  if (!is_wanted || budget_.take(item.length, Clock::now())) return true;
  over_budget_.add();
  return false;
}

void StoreController::write(std::shared_ptr<Job> job) {
  Attributes attributes;
  attributes.payload_bytes = job->view.bytes;
  attributes.payload_checksum = payload_checksum(job->view.data, job->view.bytes);
  attributes.expires_ms = job->item.expires_ms;
  attributes.priority = job->item.priority;
  attributes.content_type = job->item.content_type;
  attributes.parent = job->parent;
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
  busy_[job->key];  // until each tier has answered and given the memory back
  job->is_busy = true;
  const std::string scope(split_entry_key(job->key)->scope);
  const uint64_t bytes = job->view.bytes + job->attributes.size();
  std::vector<size_t> targets;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if ((job->item.tiers_done >> i & 1) != 0) continue;
    if (has_room(*slots_[i], scope, bytes))
      targets.push_back(i);
    else
      over_quota_.add();
  }
  job->open = targets.size();
  for (const size_t i : targets) {
    operation.answered = [this, job, i, scope](const maru_tier_completion& done) {
      (void)has_room(*slots_[i], scope, 0);
      written(job, i, done.result);
    };
    operation.released = [job] {};  // keeps the pin until then
    slots_[i]->submit(operation);
  }
}

// Deletes entries to make room for it.
bool StoreController::has_room(TierSlot& slot, std::string_view scope, uint64_t bytes) {
  const auto room =
      quotas_.room_for(slot, scope, bytes, [this](const std::string& key) { return busy_.contains(key); });
  evicted_for_quota_.add(room.too_old.size());
  for (const std::string& key : room.too_old) erase_from({&slot}, key);
  return room.is_there;
}

void StoreController::hold_to_quotas() {
  if (!quotas_.has_any()) return;
  for (const auto& slot : slots_)
    for (const maru_tier_group& group : slot->tier().groups())
      (void)has_room(*slot, {reinterpret_cast<const char*>(group.name), group.name_bytes}, 0);
}

void StoreController::written(const std::shared_ptr<Job>& job, size_t slot, int result) {
  const bool is_final = result == 0 || result == -EFBIG || result == -EINVAL || result == -EHOSTDOWN;
  if (is_final) job->item.tiers_done |= uint8_t(1u << slot);
  if (result == 0)
    ++job->stored;
  else if (!is_final)
    ++job->failed;
  // A store behind an open breaker has not reached the tier: an entry there is as good as before.
  if (result != -EHOSTDOWN) note_stale(*slots_[slot], job->key, result != 0);
  if (--job->open == 0) finish(*job);
}

void StoreController::note_stale(const TierSlot& slot, const std::string& key, bool is_stale) {
  if (!is_stale)
    stale_.erase({&slot, key});
  else if (stale_.size() < kStaleMax)
    stale_.emplace(&slot, key);
}

void StoreController::delete_stale() {
  std::vector<std::pair<const TierSlot*, std::string>> tried;
  for (auto next = stale_.upper_bound(stale_tried_); tried.size() < kStaleAtATime && next != stale_.end(); ++next)
    tried.push_back(*next);
  stale_tried_ = tried.size() < kStaleAtATime ? decltype(stale_tried_){} : tried.back();
  for (const auto& [stale_slot, key] : tried)
    for (const auto& slot : slots_)
      if (slot.get() == stale_slot && slot->has_room() && !busy_.contains(key)) erase_from({slot.get()}, key);
}

void StoreController::finish(Job& job) {
  if (job.failed > 0 && job.item.attempts + 1 < settings_.attempts_max) {
    FeedItem again = job.item;
    ++again.attempts;
    again.is_stored = again.is_stored || job.stored > 0;
    queue_.push_back(std::move(again));
  } else if (job.stored == 0 && !job.item.is_stored) {
    given_up_.add();
  }
  if (job.stored == 0 || job.item.is_stored) return;
  stored_.add();
  stored_bytes_.add(job.item.length);
}

void StoreController::end(Job& job) {
  if (job.has_pin) let_go(job);
  if (job.stored > 0) {
    const bool is_freed = settings_.policy == StorePolicy::kSkipPool && free_block(job.item.block) == 0;
    if (!is_freed && copies_.size() < kCopiesKept) copies_.push_back(job.item.block);
  }
  if (job.is_busy) finish_change(job.key);
}

// A block that others hold, or that has children, stays.
int StoreController::free_block(maru_block block) {
  if (freed_blocks_.size() >= kRememberedBlocks) freed_blocks_.clear();
  if (!freed_blocks_.insert(block).second) return 0;  // it goes already
  const int result = maru_delete_block(client_, block, MARU_DELETE_UNPINNED);
  if (result == 0)
    freed_.add();
  else
    freed_blocks_.erase(block);
  return result;
}

void StoreController::erase(const std::string& key) {
  if (deleted) deleted(key);
  deleted_.add();
  std::vector<TierSlot*> all;
  for (const auto& slot : slots_) all.push_back(slot.get());
  erase_from(all, key);
}

void StoreController::forget_in(TierSlot& slot, const std::string& entry_key) {
  if (busy_.contains(entry_key)) return;
  deleted_.add();
  erase_from({&slot}, entry_key);
}

void StoreController::erase_from(const std::vector<TierSlot*>& slots, const std::string& key) {
  busy_[key];
  // Each operation holds the key; the last one to be released frees it.
  const std::shared_ptr<std::string> kept(new std::string(key), [this](std::string* ended) {
    finish_change(*ended);
    delete ended;
  });
  for (TierSlot* const slot : slots) {
    TierOperation operation;
    operation.request.kind = MARU_TIER_DELETE;
    operation.request.key = kept->data();
    operation.request.key_bytes = uint32_t(kept->size());
    operation.answered = [this, slot, kept](const maru_tier_completion& done) {
      note_stale(*slot, *kept, done.result != 0 && done.result != -ENOENT);
    };
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
  for (auto item = waiting.rbegin(); item != waiting.rend(); ++item)
    (item->kind == FeedItem::Kind::kDeleted ? deletions_ : queue_).push_front(std::move(*item));
}

}  // namespace maru::tierd
