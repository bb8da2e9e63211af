// The half of a client that writes: memory from marud, and blocks made of it.
#include "libmaru/client/call.h"
#include "libmaru/client/client.h"
#include "libmaru/client/thread_state.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace maru::client {
namespace {

using shm::Digest;
using shm::PageRef;
using shm::PageState;
using shm::PageWord;

constexpr size_t kEvictedKeptMax = 4096;
// A duplicate, expired block in the way is retired and the store tried again; each time another client may have put a new
// one there.
constexpr int kExpiredRetries = 8;
// The parent where a key names an absent block: a page of no pool. A block that is there already needs no parent. So publishing
// reports the absent parent, after it has looked for the block.
constexpr PageRef kGoneParent = PageRef::of(~uint32_t{0} - 1, 0);
// Other threads of this client may use up the credit that marud granted to this thread.
constexpr int kCreditRetries = 16;
// Other clients that store into the same buckets may take the room first.
constexpr int kRoomRetries = 4;

}  // namespace

// -- memory -----------------------------------------------------------------------------------------------------------

int Client::rent(uint64_t runs, uint32_t run_pages, PageSource::Rented* ret_rented) {
  wire::RentRequest request{};
  request.runs = runs;
  request.run_pages = run_pages;
  if (const ThreadState* state = thread_state_if_any()) request.tenant = state->tenant;
  count(format::kCounterRents);
  RentSpan span;
  if (span.is_some() && marud_knows(3)) request.flags = wire::kRentWantsTimes;
  uint32_t answered = 0;
  try {
    auto reply = connection_.request(wire::Type::kRent, wire::bytes_of(request));
    if (!reply) return span.end(status_of(reply.error()), runs);
    answered = reply->request_id;
    const int status = read_rent_reply(reply->payload, ret_rented, &span);
    connection_.took_answer();
    return span.end(status, runs);
  } catch (const std::bad_alloc&) {
    if (answered != 0) connection_.lose_answer(answered);  // its grant comes back
    return -ENOMEM;
  }
}

void Client::set_tenant(uint64_t tenant) { thread_state().tenant = tenant; }

int Client::ask_for_credit(uint64_t tenant, uint64_t bytes) {
  wire::CreditRequest request{};
  request.tenant = tenant;
  request.bytes = bytes;
  request.account = shm::find_account(region_, lane_.id.lane, tenant);
  try {
    auto reply = connection_.request(wire::Type::kCredit, wire::bytes_of(request));
    return reply ? 0 : status_of(reply.error());
  } catch (const std::bad_alloc&) {
    return -ENOMEM;  // any grant of marud is in the account
  }
}

bool Client::marud_knows(uint64_t minor_version) const {
  const format::HostRecord& host = region_.host(region_.host_of_lane(lane_.id.lane));
  const uint64_t serves = host.serves.load_relaxed();  // a hint
  return serves >> 16 == (host.epoch.load_acquire() & 0xFFFF'FFFF'FFFF) && (serves & 0xFFFF) >= minor_version;
}

int Client::ask_for_room(const Digest& d, PageRef parent) {
  if (!marud_knows(1)) return -EXFULL;
  const wire::RoomRequest request{d.lo, d.hi, parent.bits, 0};
  try {
    auto reply = connection_.request(wire::Type::kMakeRoom, wire::bytes_of(request));
    return reply ? 0 : status_of(reply.error());
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

int Client::read_rent_reply(std::span<const std::byte> payload, PageSource::Rented* ret_rented, RentSpan* span) {
  const auto view = wire::decode_rent_reply(payload);
  if (!view) return -EPROTO;
  if (span != nullptr) span->marud_says(view->times, view->evicted_total);
  for (const uint32_t index : view->regions)
    if (index < region_.regions()) ret_rented->regions.push_back(index);
  for (const wire::RunRecord& run : view->runs)
    if (run.page < region_.pages()) ret_rented->runs.emplace_back(run.page, run.pages);
  if (view->evicted_total != 0) {
    const std::lock_guard lock(evicted_mutex_);
    evicted_total_ += view->evicted_total;
    uint64_t kept = 0;
    std::span<const std::byte> rest(view->evicted_keys);
    try {
      while (const auto key = wire::next_evicted_key(rest)) {
        std::vector<std::byte> record(sizeof(wire::EvictedKey) + key->key.size());
        std::memcpy(record.data(), &key->head, sizeof(wire::EvictedKey));
        std::memcpy(record.data() + sizeof(wire::EvictedKey), key->key.data(), key->key.size());
        evicted_.push_back(std::move(record));
        ++kept;
      }
    } catch (const std::bad_alloc&) {  // the other keys count as lost; the pages matter
    }
    evicted_lost_ += view->evicted_total - std::min<uint64_t>(kept, view->evicted_total);
    for (; evicted_.size() > kEvictedKeptMax; evicted_.pop_front()) ++evicted_lost_;
  }
  return 0;
}

int Client::next_evicted(maru_key_copy* ret_key) {
  const std::lock_guard lock(evicted_mutex_);
  if (evicted_.empty()) return -ENOENT;
  wire::EvictedKey head;
  const std::vector<std::byte>& record = evicted_.front();
  std::memcpy(&head, record.data(), sizeof(head));
  ret_key->size = head.size;
  ret_key->kind = head.kind;
  ret_key->tenant = head.tenant;
  std::memcpy(ret_key->data, record.data() + sizeof(head), record.size() - sizeof(head));
  evicted_.pop_front();
  return 0;
}

// Takes no page in memory that this process has replaced: no other process would see its bytes. Such pages stay RESERVED, so
// that they are not offered again. They are few, and become free when this process ends or marud has looked.
int Client::take_good_pages(size_t n, uint32_t run_pages, PageRef* ret_heads, size_t* ret_taken) {
  size_t taken = n;
  int status = pages_->take(n, run_pages, ret_heads, ret_taken ? &taken : nullptr);
  if (status != 0 && !ret_taken) return status;
  for (size_t i = 0; i < taken; ++i)
    while (i < taken && bad_pages_->meets(ret_heads[i].page(), run_pages * region_.page_bytes())) {
      // Ends: each is met once.
      const int again = pages_->take(1, run_pages, &ret_heads[i]);
      if (again == 0) continue;
      status = again;
      ret_heads[i] = ret_heads[--taken];
    }
  if (ret_taken)
    *ret_taken = taken;
  else if (status != 0)
    for (size_t k = 0; k < taken; ++k) pages_->give_back(ret_heads[k]);
  return status;
}

int Client::alloc(uint64_t bytes, uint64_t metadata_bytes, size_t n, maru_buffer* ret_buffers) {
  if (read_only_) return -EROFS;
  if (bytes == 0 || n == 0 || n > limits::kBatchKeysMax) return -EINVAL;
  const uint64_t needed = shm::bytes_with_metadata(bytes, metadata_bytes);
  const uint64_t run_pages = needed / region_.page_bytes() + (needed % region_.page_bytes() != 0);
  if (run_pages > region_.region_pages()) return -EFBIG;
  const std::span<PageRef> heads = n == 1 ? std::span<PageRef>() : scratch<PageRef>(n);
  PageRef single;
  PageRef* refs = n == 1 ? &single : heads.data();
  if (const int status = take_good_pages(n, uint32_t(run_pages), refs); status != 0) return status;
  for (size_t i = 0; i < n; ++i) {
    std::byte* data = payload_->writable(refs[i].page());
    if (data == nullptr) {
      for (size_t k = 0; k < n; ++k) pages_->give_back(refs[k]);
      return -ENOMEM;
    }
    payload_->back_with_huge_pages(refs[i].page(), uint32_t(run_pages));
    ret_buffers[i] = {data, bytes, refs[i].bits};
  }
  return 0;
}

// Two pools have pages of the same numbers and generations; only where they are mapped tells a client's buffers from another's.
bool Client::is_of_here(const maru_buffer& buffer) const {
  const PageRef ref = PageRef::from_bits(buffer.block);
  return region_.is_page(ref) && buffer.data == payload_->at(ref.page());
}

int Client::abort(const maru_buffer& buffer) {
  const PageRef ref = PageRef::from_bits(buffer.block);
  if (!is_of_here(buffer)) return -EINVAL;
  // No process may get a page with bad memory next: it stays RESERVED until marud has looked.
  if (bad_pages_->meets(ref.page(), region_.run_pages(ref.page()) * region_.page_bytes())) return -EHWPOISON;
  // Once the client has left the pool, it no longer owns pages.
  return pages_->give_back(ref) || is_leaving() ? 0 : -EINVAL;
}

// -- storing ----------------------------------------------------------------------------------------------------------

bool Client::is_stored(const Digest& d, maru_block* ret_block) {
  const PageRef there = shm::find_unpinned(region_, d);
  if (there.is_none()) return false;
  const format::BlockLine& line = region_.block(there.page());
  const uint64_t now = now_ms(), expires_ms = line.expires_ms.load_acquire();  // before the word: [pairs page.word]
  if (expires_ms != 0 && now >= expires_ms) return false;
  if (!PageWord{line.word.load_acquire()}.is_findable(there.generation())) return false;  // [pairs page.word]
  count(format::kCounterDuplicates);
  touch(there.page(), now);
  if (ret_block) *ret_block = there.bits;
  return true;
}

bool Client::are_valid(const maru_store_options& options) {
  // A type that no program knows would be shown and evicted as another type. A word that names no page would mean "no parent".
  return options.content_type <= MARU_CONTENT_GRADIENT && (options.parent == 0 || options.parent_key == nullptr) &&
         (options.parent == 0 || !PageRef::from_bits(options.parent).is_none());
}

bool Client::is_there(PageRef ref) const {
  if (!region_.is_page(ref)) return false;
  const PageWord word{region_.block(ref.page()).word.load_relaxed()};  // publishing looks again
  return word.is_findable(ref.generation());
}

int Client::parent_of(const maru_store_options& options, maru_block* ret_parent) {
  *ret_parent = options.parent;
  if (!are_valid(options)) return -EINVAL;
  if (options.parent_key == nullptr) return 0;
  Digest d;
  if (!digest(*options.parent_key, d)) return -EINVAL;
  const PageRef parent = shm::find_unpinned(region_, d);
  *ret_parent = parent.is_none() ? kGoneParent.bits : parent.bits;
  return 0;
}

int Client::store(const maru_key& key, const maru_buffer& buffer, const maru_store_options& options, maru_block parent,
                  const maru_metadata* metadata, maru_block* ret_block) {
  Digest d;
  if (!digest(key, d)) return -EINVAL;
  return publish({key, d, buffer, options, parent, metadata}, Duplicate::kGiveBack, nullptr, ret_block);
}

// The pin is there before the block is visible, as the publisher's own is; so there is no moment to evict it in.
int Client::store_pinned(const maru_key& key, const maru_buffer& buffer, const maru_store_options& options,
                         maru_block parent, maru_view* ret_view) {
  const PageRef own = PageRef::from_bits(buffer.block);
  Digest d;
  if (read_only_) return -EROFS;
  if (!digest(key, d) || !is_of_here(buffer)) return -EINVAL;
  const shm::Pin pin = pins_.pin_own(own);
  if (pin.status != shm::PinStatus::kPinned) {
    count(format::kCounterPinFull);
    return -ENOBUFS;
  }
  if (is_leaving()) {  // after the pin, as in view_of()
    pins_.unpin(pin.slot, own);
    return -ESHUTDOWN;
  }
  const int status = publish({key, d, buffer, options, parent, options.metadata}, Duplicate::kKeep, nullptr, nullptr);
  if (status == 0) {
    *ret_view = {buffer.data, buffer.bytes, own.bits, pin_of(pin.slot)};
    return 0;
  }
  pins_.unpin(pin.slot, own);
  if (status == 1) *ret_view = {nullptr, 0, 0, kNoPin};
  return status;
}

int Client::publish(const Store& what, Duplicate duplicate, Unanswered* unanswered, maru_block* ret_block) {
  const auto& [key, d, buffer, options, parent, metadata] = what;
  if (read_only_) return -EROFS;
  const PageRef own = PageRef::from_bits(buffer.block);
  if (!is_of_here(buffer) || buffer.bytes == 0 || buffer.bytes > region_.run_pages(own.page()) * region_.page_bytes())
    return -EINVAL;
  if (!are_valid(options) || (parent != 0 && PageRef::from_bits(parent).is_none())) return -EINVAL;
  set_tenant(key.tenant);
  const uint64_t now = now_ms();
  shm::NewBlock block;
  block.digest = d;
  block.key = bytes_of(key);
  block.key_kind = key.kind;
  block.tenant = key.tenant;
  block.length = buffer.bytes;
  block.parent = PageRef::from_bits(parent);
  // A time beyond the end of the clock is for ever.
  block.expires_ms = options.ttl_ms == 0 || options.ttl_ms > ~uint64_t{0} - now ? 0 : now + options.ttl_ms;
  block.priority = options.priority;
  block.content_type = uint8_t(options.content_type);
  block.now_ms = now;
  if (const int status = write_metadata(what, block); status != 0) return status;
  const std::byte* data = payload_->at(own.page());
  const uint64_t filled_bytes = shm::bytes_with_metadata(buffer.bytes, block.metadata_bytes);
  if (region_.has_checksums() && !checksum(data, buffer.bytes, &block.payload_checksum)) return -EHWPOISON;
  // The caller filled the buffer with ordinary stores, as far as the library knows.
  if (region_.is_durable() && !flush(data, filled_bytes)) return -EHWPOISON;
  // After the last look at the payload: bytes that were filled in after the memory went bad are in no other process.
  if (bad_pages_->meets(own.page(), filled_bytes)) return -EHWPOISON;

  int credit_tries = 0, room_tries = 0;
  for (int tries = 0;; ++tries) {
    const shm::PublishResult result = shm::publish(lane_, own, block);
    switch (result.status) {
      case shm::PublishStatus::kStored:
        count(format::kCounterStores);
        count(format::kCounterStoredBytes, buffer.bytes);
        touch_stored(own.page(), now);
        if (ret_block) *ret_block = own.bits;
        return 0;
      case shm::PublishStatus::kDuplicate:
        count(format::kCounterDuplicates);
        if (duplicate == Duplicate::kGiveBack) pages_->give_back(own);
        touch(result.block.page(), now);
        if (ret_block) *ret_block = result.block.bits;
        return 1;
      case shm::PublishStatus::kExpiredInTheWay: {
        const shm::RetireStatus retired = shm::retire_ref(lane_, result.block);
        if (retired == shm::RetireStatus::kHasChildren) touch(result.block.page(), now);  // marud takes its tree away
        if (retired == shm::RetireStatus::kRetired) finish(result.block);
        if (retired == shm::RetireStatus::kHasChildren || tries == kExpiredRetries) return -EAGAIN;
        continue;
      }
      case shm::PublishStatus::kNeedsCredit: {
        const uint64_t bytes = region_.run_pages(own.page()) * region_.page_bytes();
        if (unanswered && unanswered->holds_for(key.tenant, bytes)) return unanswered->status;
        const int asked = credit_tries++ == kCreditRetries ? -EDQUOT : ask_for_credit(key.tenant, bytes);
        if (asked != 0 && unanswered) *unanswered = {asked, key.tenant, bytes};
        if (asked != 0) return asked;
        --tries;
        continue;
      }
      case shm::PublishStatus::kNoParent: return -ENOLINK;
      case shm::PublishStatus::kRegistryFull:
        if (room_tries++ < kRoomRetries && !(unanswered && unanswered->is_silence()) &&
            ask_for_room(d, block.parent) == 0) {
          --tries;
          continue;
        }
        [[fallthrough]];
      case shm::PublishStatus::kKeySpaceFull: count(format::kCounterRegistryFull); return -EXFULL;
      case shm::PublishStatus::kPinsFull: count(format::kCounterPinFull); return -ENOBUFS;
      case shm::PublishStatus::kNotReserved:
        return PageWord{region_.block(own.page()).word.load_acquire()}.is(PageState::kPoisoned, own.generation())
                   ? -EHWPOISON  // marud took the page away: [pairs page.word]
                   : -EINVAL;
    }
  }
}

// Frees a block that this client has retired, or leaves it to marud because another client is reading it.
void Client::finish(PageRef ref) {
  const shm::LaneSet lanes = shm::LaneSet::in_use(region_);
  uint32_t pages = 0;
  const uint64_t now = tick(now_ms());
  const shm::FinishStatus status = shm::finish_deleted(lane_, ref, lanes, recent_use(ref.page(), now), now, &pages);
  if (status == shm::FinishStatus::kFreed) pages_->was_freed(ref.page(), pages);
  if (status != shm::FinishStatus::kPinned) return;
  if (shm::hand_over_retired(region_, ref, lane_.id, shm::daemon_lane(region_, region_.host_of_lane(lane_.id.lane))))
    shm::leave_touch(lane_view_, ref.page(), now);  // so that marud looks at it soon
}

}  // namespace maru::client
