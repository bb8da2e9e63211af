#include "libmaru/client/client.h"

#include "libmaru/base/map_sync.h"
#include "libmaru/client/call.h"
#include "libmaru/client/key_rows.h"
#include "libmaru/client/thread_state.h"
#include "libmaru/shm/blocks/find_batch.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace maru::client {
namespace {

using shm::Digest;
using shm::FindStatus;
using shm::PageRef;

// maru_match.pins: this, and behind it the blocks that a match pins, in the order of their keys.
struct MatchPins {
  uint64_t count;

  shm::HeldBlock* blocks() { return reinterpret_cast<shm::HeldBlock*>(this + 1); }
  std::span<const shm::HeldBlock> span() const { return {reinterpret_cast<const shm::HeldBlock*>(this + 1), count}; }
};
static_assert(sizeof(MatchPins) % alignof(shm::HeldBlock) == 0);

}  // namespace

Result<ForkGuard> ForkGuard::create() {
  const size_t bytes = size_t(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return failure(errno, "map a page");
  ForkGuard guard;
  guard.page_ = Mapping(static_cast<std::byte*>(page), bytes);
  if (::madvise(page, bytes, MADV_WIPEONFORK) != 0) return failure(errno, "have a page wiped on fork");
  static_cast<AtomicU64*>(page)->store_relaxed(1);  // before any fork that could matter
  return guard;
}

Result<std::unique_ptr<Client>> Client::attach(const Options& options) {
  if (const int code = make_thread_state_key(); code != 0) return failure(code, "make a key for what threads have");
  auto client = std::unique_ptr<Client>(
      new Client(Connection::Target{options.socket_path, options.pool, options.timeout_ms, options.read_only}));
  if (auto opened = client->open(options); !opened) return tl::unexpected(opened.error());
  return client;
}

Result<void> Client::open(const Options& options) {
  auto guard = ForkGuard::create();
  if (!guard) return tl::unexpected(guard.error());
  fork_guard_ = std::move(*guard);

  auto reply = connection_.attach();
  if (!reply) return tl::unexpected(reply.error());
  const auto attached = wire::read_exactly<wire::AttachReply>(reply->payload);
  if (!attached || attached->descriptors != (reply->fd.is_open() ? 1u : 0u) + (reply->second.is_open() ? 1u : 0u) ||
      !reply->fd.is_open())
    return failure(EPROTO, "read the answer to attaching");
  attached_ = *attached;
  device_ = KeptDescriptor(std::move(reply->fd));
  control_device_ = KeptDescriptor(std::move(reply->second));
  read_only_ = options.read_only;

  const uint64_t alignment = std::max<uint64_t>(attached_.map_alignment, 4096);
  const uint64_t control_alignment = std::max<uint64_t>(attached_.control_alignment, 4096);
  if (!std::has_single_bit(alignment) || !std::has_single_bit(control_alignment))
    return failure(EPROTO, "use the alignment that marud names");
  const uint64_t control_bytes =
      (attached_.control_bytes + control_alignment - 1) / control_alignment * control_alignment;
  const int control_fd = control_device_.was_opened() ? control_device_.get() : device_.get();
  auto control = map_shared_synchronously(control_fd, control_bytes, PROT_READ | PROT_WRITE, control_alignment);
  if (!control) return tl::unexpected(control.error());
  control_ = std::move(*control);
  ::madvise(control_.data(), control_.size(), MADV_DONTFORK);
  ::madvise(control_.data(), control_.size(), MADV_HUGEPAGE);  // a wish
  if (const char* problem = shm::ControlRegion::attach(control_.bytes(), attached_.pool_bytes, &region_))
    return failure(EBADMSG, std::string("attach to the control region: ") + problem);
  if (attached_.lane == 0 || attached_.lane >= region_.lanes()) return failure(EPROTO, "use the lane that marud gave");

  pin_counts_ = std::make_unique<AtomicU32[]>(shm::PinTable::counts_needed(region_.layout()));
  recent_touches_ = std::make_unique<AtomicU64[]>(kRecentTouches);
  pins_ = shm::PinTable(region_, attached_.lane, {pin_counts_.get(), shm::PinTable::counts_needed(region_.layout())});
  lane_.region = &region_;
  lane_.id = {attached_.lane, attached_.lane_generation};
  lane_.pins = &pins_;
  lane_view_ = region_.lane(attached_.lane);

  auto payload = Payload::map(device_.get(), attached_.pages_offset, region_, alignment);
  if (!payload) return tl::unexpected(payload.error());
  payload_ = std::move(*payload);
  if (options.session_thread)
    if (auto prepared = connection_.prepare_watching(); !prepared) return prepared;
  bad_pages_ = std::make_unique<BadPages>(payload_->base(), region_.pages(), region_.page_bytes(), payload_->mapped(),
                                          alignment, connection_.waker());
  if (bad_pages_->unplaced_because() == ENOMEM) return failure(ENOMEM, "have its memory looked after");
  pages_ = std::make_unique<PageSource>(
      region_, lane_.id, options.thread_cache_pages,
      options.first_fit ? RegionIndex::Fit::kFirst : RegionIndex::Fit::kBest,
      [this](uint64_t runs, uint32_t run_pages, PageSource::Rented* rented) { return rent(runs, run_pages, rented); });
  connection_.remember(attached_, &device_, &control_device_);
  connection_.on_late_reply([this](wire::Type type, std::span<const std::byte> late) {
    PageSource::Rented rented;
    if (type == wire::Type::kRent && read_rent_reply(late, &rented) == 0) pages_->accept_late(rented);
    // Answers come in the order of the requests: this one is about that page.
    if (type == wire::Type::kBadMemory) bad_pages_->was_said(page_told_.load(std::memory_order_relaxed));
  });
  connection_.on_lost_answers([this](std::span<const uint32_t> ids) { pages_->give_back_granted(ids); });
  connection_.on_notice([this](wire::Type type, std::span<const std::byte> notice) {
    const auto taken = wire::read_exactly<wire::RegionTaken>(notice);
    if (type == wire::Type::kRegionTaken && taken) pages_->region_taken(taken->region);
    if (type == wire::Type::kPoolLeaves) begin_leaving();
  });
  connection_.on_fenced([this] { begin_leaving(); });
  connection_.on_upkeep([this] { return upkeep(); });
  if (options.session_thread) return connection_.start_watching();
  return {};
}

Client::~Client() {
  connection_.stop_watching();
  end_foreign_use();
  if (pages_) pages_->empty_caches();
  // marud frees the rest: pins, unfinished buffers, the lane; the lane also when attaching failed after it was given.
  connection_.say_goodbye();
}

void Client::abandon(std::unique_ptr<Client> client) {
  Client* left = client.release();
  left->connection_.abandon();
  left->device_.reset();
  left->control_device_.reset();
}

void Client::count(format::LaneCounter which, uint64_t by) {
  const uint64_t thread = thread_identity();
  uint64_t owner = counting_thread_.load_relaxed();  // set once
  if (owner == 0 && counting_thread_.cas_relaxed(owner, thread)) owner = thread;
  format::LaneHeader& header = *lane_view_.header;
  if (owner == thread)
    header.own_counters[which].store_relaxed(header.own_counters[which].load_relaxed() + by);  // no other writer
  else
    header.counters[which].fetch_add_relaxed(by);  // a statistic
}

// -- keys -------------------------------------------------------------------------------------------------------------

bool Client::other_plain(const maru_key& key, shm::PlainDigest& ret_plain) const {
  const uint64_t* secret = region_.secret();
  if (key.data == nullptr) return false;
  if (key.kind == MARU_KEY_DIGEST256 && key.size == 32) {
    uint64_t words[4];
    std::memcpy(words, key.data, sizeof(words));
    ret_plain = shm::plain_of_256(secret, words, key.tenant);
    return true;
  }
  if (key.kind == MARU_KEY_BYTES && key.size != 0 && key.size <= limits::kKeyBytesMax) {
    ret_plain = shm::plain_of_bytes(secret, bytes_of(key), key.tenant);
    return true;
  }
  return false;
}

size_t Client::plain_texts(const maru_key* keys, size_t n, shm::PlainDigest (&ret_plain)[shm::kSipLanes]) const {
  shm::SipInputs inputs;
  uint64_t tenants[shm::kSipLanes];
  size_t count = 0;
  for (; count < n; ++count) {
    const maru_key& key = keys[count];
    if (key.kind != MARU_KEY_BYTES || key.data == nullptr || key.size == 0 || key.size > limits::kKeyBytesMax) break;
    if (key.size / 8 != keys[0].size / 8) break;
    inputs.data[count] = static_cast<const std::byte*>(key.data);
    inputs.size[count] = key.size;
    tenants[count] = key.tenant;
  }
  constexpr size_t kWorthIt = 3;
  if (count < kWorthIt) return plain_digest(keys[0], ret_plain[0]) ? 1 : 0;
  inputs.count = count;
  shm::plain_of_bytes(region_.secret(), inputs, tenants, ret_plain);
  return count;
}

std::span<Digest> Client::digests(const maru_key* keys, size_t n) const {
  if (n == 0 || n > limits::kBatchKeysMax || keys == nullptr) return {};
  const std::span<Digest> all = scratch<Digest>(n);
  const auto take = [&](size_t i, const shm::PlainDigest& plain) { all[i] = shm::permute(region_.secret(), plain); };
  return for_each_plain(keys, 0, n, take) ? all : std::span<Digest>{};
}

// -- finding ----------------------------------------------------------------------------------------------------------

uint64_t Client::tick(uint64_t unix_ms) const {
  const uint64_t created = region_.header().created_unix_ms;
  return unix_ms > created ? unix_ms - created : 0;
}

void Client::touch(uint32_t page, uint64_t unix_ms) {
  const uint64_t at = tick(unix_ms);
  const uint64_t entry = (uint64_t(page) + 1) << 32 | (at & 0xFFFF'FFFF);
  AtomicU64& recent = recent_touches_[page % kRecentTouches];
  if (recent.load_relaxed() == entry) return;  // a filter: at worst a touch is left twice
  recent.store_relaxed(entry);
  shm::leave_touch(lane_view_, page, at);
}

// The tick of the last touch of this page by this client, as far as the filter has it; 0: it has not.
uint64_t Client::recent_use(uint32_t page, uint64_t now_tick) const {
  const uint64_t recent = recent_touches_[page % kRecentTouches].load_relaxed();  // a hint
  if (recent >> 32 != uint64_t(page) + 1) return 0;
  const uint64_t at = (now_tick & ~uint64_t{0xFFFF'FFFF}) | (recent & 0xFFFF'FFFF);
  return at <= now_tick ? at : at - std::min(at, uint64_t{1} << 32);
}

// The filter may remember a touch of the block that was in the page before, in this very tick. So this does not ask it.
void Client::touch_stored(uint32_t page, uint64_t unix_ms) {
  const uint64_t at = tick(unix_ms);
  recent_touches_[page % kRecentTouches].store_relaxed((uint64_t(page) + 1) << 32 | (at & 0xFFFF'FFFF));
  shm::leave_touch(lane_view_, page, at);
}

bool Client::exists(const Digest& d) {
  const bool found = shm::registry_exists(region_, d);
  count(found ? format::kCounterExistsHits : format::kCounterExistsMisses);
  return found;
}

template <typename Hash>
int Client::exists_all(size_t n, uint8_t* ret_present, Hash&& hash) {
  if (n > limits::kBatchKeysMax) return -EINVAL;
  if (n == 0) return 0;
  if (ret_present == nullptr) return -EINVAL;
  Digest* const digests = scratch<Digest>(n).data();
  shm::ExistsBatch batch(region_, digests, n, ret_present);
  if (!batch.run([&](size_t first, size_t end) { return hash(digests, first, end); })) return -EINVAL;
  const size_t found = batch.finish();
  count(format::kCounterExistsHits, found);
  count(format::kCounterExistsMisses, n - found);
  return int(std::min<size_t>(found, INT_MAX));
}

int Client::exists_batch(const maru_key* keys, size_t n, uint8_t* ret_present) {
  if (keys == nullptr && n != 0) return -EINVAL;
  return exists_all(n, ret_present, [&](Digest* digests, size_t first, size_t end) {
    return for_each_plain(keys, first, end, [&](size_t i, const shm::PlainDigest& plain) {
      digests[i] = shm::permute(region_.secret(), plain);
    });
  });
}

// Texts mostly can be hashed beside each other, and are not made keys for it.
bool Client::digest_rows(const maru_key_rows& rows, size_t first, size_t end, Digest* digests) const {
  if (are_digests128(rows)) {
    digests_of_rows(region_.secret(), rows, first, end, digests);
    return true;
  }
  for (size_t last = 0; first < end; first = last) {
    last = std::min(end, first + shm::kSipLanes);
    if (shm::SipInputs texts; rows.kind == MARU_KEY_BYTES && are_beside(rows, first, last - first, texts)) {
      shm::digests_of_bytes(region_.secret(), texts, rows.tenant, digests + first);
      continue;
    }
    maru_key keys[shm::kSipLanes];
    for (size_t i = first; i < last; ++i) keys[i - first] = key_of_row(rows, i);
    const auto take = [&](size_t k, const shm::PlainDigest& plain) {
      digests[first + k] = shm::permute(region_.secret(), plain);
    };
    if (!for_each_plain(keys, 0, last - first, take)) return false;
  }
  return true;
}

int Client::exists_rows(const maru_key_rows& rows, size_t n, uint8_t* ret_present) {
  if (rows.data == nullptr) return -EINVAL;
  return exists_all(n, ret_present,
                    [&](Digest* digests, size_t first, size_t end) { return digest_rows(rows, first, end, digests); });
}

int Client::view_of(PageRef ref, uint32_t slot, const Digest* d, maru_view* ret_view) {
  const uint64_t length = region_.block(ref.page()).length.load_relaxed();  // under the pin
  maru_view view{nullptr, format::payload_bytes_of(length), ref.bits, pin_of(slot)};
  // The length is another process's word: it never reaches beyond the run, and the run never beyond its region.
  view.bytes = std::min(view.bytes, region_.run_pages(ref.page()) * region_.page_bytes());
  if (d) {
    view.data = payload_->at(ref.page());
    if (bad_pages_->meets(ref.page(), view.bytes)) {
      pins_.unpin(slot, ref);
      return -EHWPOISON;
    }
    if (region_.has_checksums())
      if (const int status = verify(view, ref, *d); status != 0) {
        pins_.unpin(slot, ref);
        return status;
      }
  }
  // After the pin: a thread that is about to unmap everything sees the pin, or this thread sees its flag.
  if (is_leaving()) {
    pins_.unpin(slot, ref);
    return -ESHUTDOWN;
  }
  *ret_view = view;
  return 0;
}

int Client::verify(const maru_view& view, PageRef ref, const Digest& d) {
  shm::ReadBlock read{d, view.bytes};
  if (!checksum(view.data, view.bytes, &read.payload_checksum)) return -EHWPOISON;
  const shm::MetadataPlace metadata = shm::metadata_of(region_, ref.page());
  if (metadata.bytes != 0 &&
      !checksum(payload_->at(ref.page()) + metadata.offset, metadata.bytes, &read.metadata_checksum))
    return -EHWPOISON;
  if (metadata.fits && shm::fits_checksum(region_, ref.page(), read)) return 0;
  // Another thread met bad memory here meanwhile: the bytes read are this process's own, and say nothing of the block.
  if (bad_pages_->meets(ref.page(), std::max(view.bytes, metadata.end()))) return -EHWPOISON;
  if (is_leaving()) return -ESHUTDOWN;  // zeros in the place of a pool whose memory went back
  count(format::kCounterChecksumErrors);
  // A read-only client deletes nothing: the block is a miss here until a client that may write meets it.
  if (!read_only_ && shm::retire_ref(lane_, ref) == shm::RetireStatus::kRetired) finish(ref);
  return -EIO;
}

int Client::retrieve(const Digest& d, bool payload, maru_view* ret_view) {
  const uint64_t now = now_ms();
  const format::Bucket& home = region_.bucket(shm::home_bucket(region_, d));
  __builtin_prefetch(&home.locations);
  // Work without the block line is done while the line is on its way. The touch may be for a block of another key, whose tag
  // happens to be the same: then it lives a little longer.
  const PageRef likely = shm::registry_find_plain(region_, home, d);
  shm::Found found;
  if (!likely.is_none()) {
    __builtin_prefetch(&region_.block(likely.page()));
    touch(likely.page(), now);
    found = shm::pin_if_wanted(lane_, likely, d, now);
  }
  if (found.status != FindStatus::kFound) found = shm::find_and_pin(lane_, d, now);
  if (found.status != FindStatus::kFound) {
    if (found.status == FindStatus::kAbsent && !found.ref.is_none())
      touch(found.ref.page(), now);  // marud takes it away
    count(found.status == FindStatus::kPinsFull ? format::kCounterPinFull : format::kCounterRetrieveMisses);
    return found.status == FindStatus::kPinsFull ? -ENOBUFS : -ENOENT;
  }
  const int status = view_of(found.ref, found.slot, payload ? &d : nullptr, ret_view);
  if (status != 0) return status;
  count(format::kCounterRetrieveHits);
  touch(found.ref.page(), now);
  return 0;
}

// The views are empty, and stay so where nothing is found; where something is that cannot be read, `bytes` is the error.
int Client::retrieve_batch(std::span<const Digest> all, bool payload, maru_view* ret_views) {
  const uint64_t now = now_ms();
  const std::span<shm::Found> blocks = scratch<shm::Found>(all.size());
  if (!shm::find_and_pin_batch(lane_, all, now, blocks.data())) {
    count(format::kCounterPinFull);
    return -ENOBUFS;
  }
  size_t found = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (blocks[i].status != FindStatus::kFound) {
      if (!blocks[i].ref.is_none()) touch(blocks[i].ref.page(), now);  // it has expired: marud takes it away
      continue;
    }
    const int status = view_of(blocks[i].ref, blocks[i].slot, payload ? &all[i] : nullptr, &ret_views[i]);
    if (status == -EIO || status == -EHWPOISON) {  // deleted, or marud is told: absent, and the view says why
      ret_views[i] = {nullptr, uint64_t(-status), 0, kNoPin};
      continue;
    }
    if (status != 0) {
      for (size_t k = 0; k < i; ++k) {
        release(ret_views[k]);
        ret_views[k] = {nullptr, 0, 0, kNoPin};  // released by the caller as well, it would end another view's pin
      }
      for (size_t k = i + 1; k < all.size(); ++k)
        if (blocks[k].status == FindStatus::kFound) pins_.unpin(blocks[k].slot, blocks[k].ref);
      return status;
    }
    touch(blocks[i].ref.page(), now);
    ++found;
  }
  count(format::kCounterRetrieveHits, found);
  count(format::kCounterRetrieveMisses, all.size() - found);
  return int(found);
}

int Client::pin_ref(PageRef ref, uint32_t* ret_slot) {
  if (!region_.is_page(ref)) return -EINVAL;
  const shm::Pin pin = pins_.pin(ref);
  if (pin.status == shm::PinStatus::kFull) {
    count(format::kCounterPinFull);
    return -ENOBUFS;
  }
  if (pin.status != shm::PinStatus::kPinned) return -ENOENT;
  *ret_slot = pin.slot;
  return 0;
}

int Client::pin_block(PageRef ref, maru_view* ret_view) {
  uint32_t slot = 0;
  if (const int status = pin_ref(ref, &slot); status != 0) return status;
  touch(ref.page(), now_ms());
  return view_of(ref, slot, nullptr, ret_view);
}

int Client::release(const maru_view& view) {
  if (view.pin == kNoPin) return view.block == 0 ? 0 : -EINVAL;
  if (view.pin - 1 > 0xFFFF'FFFEull) return -EINVAL;
  return unpin(uint32_t(view.pin - 1), PageRef::from_bits(view.block)) ? 0 : -EINVAL;
}

// Another host's marud, which took this host for dead, has ended its pins; the library has still to know when the last is gone.
bool Client::unpin(uint32_t slot, PageRef ref) {
  return pins_.unpin(slot, ref) || (is_leaving() && pins_.forget(slot));
}

int Client::match_prefix(const maru_key* keys, size_t n, maru_match* ret_match) {
  if (n > limits::kBatchKeysMax || ret_match == nullptr || (keys == nullptr && n != 0)) return -EINVAL;
  shm::PrefixResult result;
  const std::span<shm::HeldBlock> held = scratch<shm::HeldBlock>(n);
  const uint64_t now = now_ms();
  if (n != 0) {
    shm::PlainDigest last;
    if (!plain_digest(keys[n - 1], last)) return -EINVAL;
    shm::prefetch_prefix(region_, last);
    const std::span<shm::PlainDigest> plain = scratch<shm::PlainDigest>(n);
    shm::ChainSum sum(region_.secret());
    const bool are_keys = for_each_plain(keys, 0, n, [&](size_t i, const shm::PlainDigest& d) {
      sum.add(d);
      plain[i].lo = d.lo;
      plain[i].hi = d.hi;
    });
    if (!are_keys) return -EINVAL;
    result = shm::match_prefix(lane_, {plain, sum.sum()}, now, held.data());
  }
  if (result.pins_full) {
    count(format::kCounterPinFull);
    return -ENOBUFS;
  }
  if (is_leaving()) {  // after the pins, as in view_of()
    shm::release_prefix(lane_, held.data(), result.held);
    return -ESHUTDOWN;
  }
  maru_match match{result.blocks, result.deepest.bits, kNoPin, nullptr};
  if (result.held == 1) {
    match.pin = pin_of(held[0].slot);
  } else if (result.held > 1) {
    auto* pins = static_cast<MatchPins*>(std::malloc(sizeof(MatchPins) + result.held * sizeof(shm::HeldBlock)));
    if (pins == nullptr) {
      shm::release_prefix(lane_, held.data(), result.held);
      return -ENOMEM;
    }
    pins->count = result.held;
    std::copy_n(held.data(), result.held, pins->blocks());
    match.pins = pins;
  }
  // A touch of a block stands for its ancestors: they cannot go before it, and inherit its time when it goes.
  for (size_t i = 0; i < result.held; ++i) touch(held[i].ref.page(), now);
  if (!result.expired.is_none()) touch(result.expired.page(), now);  // marud takes it away
  count(format::kCounterMatchKeys, n);
  count(format::kCounterMatchBlocks, result.blocks);
  if (result.walked) count(format::kCounterSearchFallbacks);
  *ret_match = match;
  return 0;
}

int Client::resolve(const maru_match& match, std::span<const Digest> all, maru_view* ret_views) {
  if (all.size() > match.blocks) return -EINVAL;
  const std::span<PageRef> refs = scratch<PageRef>(all.size());
  const std::span<uint64_t> lengths = scratch<uint64_t>(all.size());
  const PageRef deepest = PageRef::from_bits(match.deepest);
  if (match.blocks != 0 && !region_.is_page(deepest)) return -EINVAL;
  const shm::HeldBlock one = {deepest, 0, uint32_t(match.blocks - 1)};
  const auto* many = static_cast<const MatchPins*>(match.pins);
  const std::span<const shm::HeldBlock> pins = many ? many->span() : std::span(&one, 1);
  size_t found = 0;
  if (all.empty()) return 0;
  if (many)
    found = shm::resolve_batch(region_, all, refs.data(), lengths.data());
  else
    found = shm::resolve_chain(region_, deepest, match.blocks, all, refs.data(), lengths.data());
  // A block that the match pins itself may have lost its key since, and another, unpinned one may have it now. Blocks above
  // those have children: their keys stay.
  for (const shm::HeldBlock& pin : pins) {
    if (pin.key >= all.size()) break;
    if (!(shm::block_digest(region_, pin.ref.page()) == all[pin.key])) return -EINVAL;
    found += refs[pin.key].is_none();
    refs[pin.key] = pin.ref;
    lengths[pin.key] = format::payload_bytes_of(region_.block(pin.ref.page()).length.load_relaxed());  // under the pin
  }
  if (found != all.size() || !shm::are_held(region_, refs, pins)) return -ENOENT;
  for (size_t i = 0; i < all.size(); ++i) {
    const uint32_t page = refs[i].page();
    uint64_t bytes = lengths[i];
    // The lengths of single pages need no second look at the block line.
    if (bytes > region_.page_bytes()) bytes = std::min(bytes, region_.run_pages(page) * region_.page_bytes());
    if (bad_pages_->meets(page, bytes)) return -EHWPOISON;
    if (region_.has_checksums())
      if (const int status = verify({payload_->at(page), bytes, refs[i].bits, kNoPin}, refs[i], all[i]); status != 0)
        return status;
    ret_views[i] = {payload_->at(page), bytes, refs[i].bits, kNoPin};
  }
  return 0;
}

int Client::release_match(maru_match& match) {
  int status = 0;
  if (match.pin != kNoPin && !unpin(uint32_t(match.pin - 1), PageRef::from_bits(match.deepest))) status = -EINVAL;
  if (auto* pins = static_cast<MatchPins*>(match.pins)) {
    for (const shm::HeldBlock& pin : pins->span())
      if (!unpin(pin.slot, pin.ref)) status = -EINVAL;
    std::free(pins);
  }
  match = {};
  return status;
}

// -- deleting ---------------------------------------------------------------------------------------------------------

int Client::remove(const Digest& d) {
  if (read_only_) return -EROFS;
  PageRef ref;
  switch (shm::retire(lane_, d, &ref)) {
    case shm::RetireStatus::kAbsent: return -ENOENT;
    case shm::RetireStatus::kHasChildren: return -ENOTEMPTY;
    case shm::RetireStatus::kRetired: break;
  }
  count(format::kCounterDeletes);
  finish(ref);
  return 0;
}

int Client::remove_block(PageRef ref, bool unpinned) {
  if (read_only_) return -EROFS;
  if (!region_.is_page(ref)) return -EINVAL;
  if (!is_there(ref)) return -ENOENT;
  // A look, not a promise: retiring takes the key away, and leaves the memory to clients that pinned the block meanwhile.
  if (unpinned && shm::is_pinned(region_, shm::LaneSet::in_use(region_), ref.page())) return -EBUSY;
  switch (shm::retire_ref(lane_, ref)) {
    case shm::RetireStatus::kAbsent: return -ENOENT;
    case shm::RetireStatus::kHasChildren: return -ENOTEMPTY;
    case shm::RetireStatus::kRetired: break;
  }
  count(format::kCounterDeletes);
  finish(ref);
  return 0;
}

int Client::remove_tree(const Digest& d, uint64_t* ret_deleted) {
  if (read_only_) return -EROFS;
  wire::DeleteTreeRequest request{d.lo, d.hi};
  auto reply = connection_.request(wire::Type::kDeleteTree, wire::bytes_of(request));
  if (!reply) return status_of(reply.error());
  const auto result = wire::read_exactly<wire::DeleteTreeReply>(reply->payload);
  if (!result) return -EPROTO;
  *ret_deleted = result->deleted;
  return result->left ? -EBUSY : 0;
}

// -- statistics -------------------------------------------------------------------------------------------------------

void Client::statistics(maru_statistics* ret_statistics) const {
  const auto counter = [&](format::LaneCounter which) { return lane_.header().counter(which); };
  maru_statistics& s = *ret_statistics;
  s.exists_hits = counter(format::kCounterExistsHits);
  s.exists_keys = s.exists_hits + counter(format::kCounterExistsMisses);
  s.retrieve_hits = counter(format::kCounterRetrieveHits);
  s.retrieve_misses = counter(format::kCounterRetrieveMisses);
  s.match_keys = counter(format::kCounterMatchKeys);
  s.match_blocks = counter(format::kCounterMatchBlocks);
  s.stores = counter(format::kCounterStores);
  s.stored_bytes = counter(format::kCounterStoredBytes);
  s.duplicates = counter(format::kCounterDuplicates);
  s.deletes = counter(format::kCounterDeletes);
  s.pin_full = counter(format::kCounterPinFull);
  s.registry_full = counter(format::kCounterRegistryFull);
  s.revives = counter(format::kCounterRevives);
  s.search_fallbacks = counter(format::kCounterSearchFallbacks);
  s.checksum_errors = counter(format::kCounterChecksumErrors);
  s.rents = counter(format::kCounterRents);
  s.pins = pins_.slots_in_use();
  s.regions = pages_->regions();
  s.regions_taken = pages_->regions_taken();
  s.pages_cached = pages_->cached_pages();
  const std::lock_guard lock(evicted_mutex_);
  s.evicted = evicted_total_;
  s.evicted_lost = evicted_lost_;
}

}  // namespace maru::client
