#include "daemon/pool/feed/feed.h"

#include "libmaru/shm/blocks/registry.h"
#include "maru/follow.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <linux/futex.h>
#include <random>
#include <sys/syscall.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

using format::BlockLine;
using format::FeedKind;
using format::FeedState;
using shm::PageRef;
using shm::PageState;
using shm::PageWord;

constexpr uint64_t kRingBytesMin = 1u << 20, kRingBytesMax = 32u << 20;
constexpr uint64_t kPoolBytesPerRingByte = 64;
// Lines of a block's bucket, and lines for a record beside the block line.
constexpr uint64_t kBucketLines = 2, kDetailLines = 2;

uint64_t new_incarnation(uint64_t now_ms) {
  std::random_device random;
  return std::max<uint64_t>(1, now_ms << 20 | (random() & 0xF'FFFF));
}

void wake_all(AtomicU32& word) {
  ::syscall(SYS_futex, &word.raw, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);  // not private: followers are processes
}

uint32_t depth_of(const BlockLine& line) { return uint32_t(line.shape.load_acquire() >> 32); }

}  // namespace

Result<std::unique_ptr<Feed>> Feed::make(const shm::ControlRegion& region, LineMeter& meter, uint64_t now_ms,
                                         uint64_t ring_bytes) {
  const uint64_t pages = region.pages();
  if (ring_bytes == 0)
    ring_bytes = std::clamp(pages * region.page_bytes() / kPoolBytesPerRingByte, kRingBytesMin, kRingBytesMax);
  const shm::FeedPlan plan = shm::plan_feed(pages, ring_bytes);
  std::unique_ptr<Known, Free> known(static_cast<Known*>(std::calloc(pages, sizeof(Known))));
  if (!known) return failure(ENOMEM, "take memory for what followers of " + std::to_string(pages) + " pages know");
  auto memory = FeedMemory::make(plan.bytes);
  if (!memory) return tl::unexpected(memory.error());
  return std::unique_ptr<Feed>(new Feed(region, meter, std::move(*memory), plan, std::move(known), now_ms));
}

Feed::Feed(const shm::ControlRegion& region, LineMeter& meter, FeedMemory memory, const shm::FeedPlan& plan,
           std::unique_ptr<Known, Free> known, uint64_t now_ms)
    : looks(region.lanes()),
      region_(region),
      meter_(meter),
      memory_(std::move(memory)),
      view_(shm::FeedView::format(memory_.mapping.bytes(), plan, region.pages(), region.header().uuid,
                                  new_incarnation(now_ms))),
      writer_(view_),
      known_(std::move(known)),
      now_ms_(now_ms) {
  later_.resize(region.pages());
  touched.resize(region.pages());
}

Feed::~Feed() {
  writer_.publish();
  view_.header().state.store_release(uint32_t(FeedState::kEnded));
  view_.header().wake.store_release(view_.header().wake.load_relaxed() + 1);  // its only writer
  wake_all(view_.header().wake);
}

// -- the tree of known blocks -----------------------------------------------------------------------------------------

void Feed::link(uint32_t page, PageRef parent) {
  Known& own = known_.get()[page];
  own.parent = own.next = own.previous = own.first_child = own.reason = 0;
  if (parent.is_none() || !is_known(parent)) return;
  Known& above = known_.get()[parent.page()];
  own.parent = parent.page() + 1;
  own.next = above.first_child;
  if (own.next != 0) known_.get()[own.next - 1].previous = page + 1;
  above.first_child = page + 1;
}

void Feed::unlink(uint32_t page) {
  Known& own = known_.get()[page];
  if (own.next != 0) known_.get()[own.next - 1].previous = own.previous;
  if (own.previous != 0)
    known_.get()[own.previous - 1].next = own.next;
  else if (own.parent != 0)
    known_.get()[own.parent - 1].first_child = own.next;
  own = {};
}

// -- telling ----------------------------------------------------------------------------------------------------------

void Feed::write(const shm::FeedRecord& record) {
  writer_.append(record);
  has_news_ = true;
  if (writer_.unpublished_bytes() >= kPublishBytes) writer_.publish();
}

// A block that a publisher has not made visible yet may still be withdrawn, for another block under its key.
bool Feed::is_registered(PageRef ref) {
  const BlockLine& line = region_.block(ref.page());
  const shm::Digest digest = {line.digest_lo.load_acquire(), line.digest_hi.load_acquire()};
  meter_.add(kBucketLines);
  const shm::Candidates found = shm::registry_find(region_, digest);
  for (uint32_t i = 0; i < found.count; ++i)
    if (found.ref(i) == ref) return true;
  return false;
}

// `is_gone`: marud has just taken it away, and its line stays until the page is FREE.
bool Feed::is_there(PageWord word, PageRef ref, bool is_gone) const {
  if (word.is_findable(ref.generation())) return true;
  return is_gone && (word.is(PageState::kRetired, ref.generation()) || word.is(PageState::kPoisoned, ref.generation()));
}

// The block and its ancestors that are not known, into scratch_.ancestors. False: it is leaving, or its line is damaged.
bool Feed::gather(PageRef ref, bool* ret_is_whole) {
  scratch_.ancestors.clear();
  *ret_is_whole = true;
  for (PageRef at = ref;;) {
    const BlockLine& line = region_.block(at.page());
    const PageRef parent = PageRef::from_bits(line.parent.load_acquire());
    scratch_.ancestors.emplace_back(at, parent);
    if (parent.is_none()) return true;
    if (!region_.is_page(parent)) return false;
    if (is_known(parent)) return true;
    meter_.add(1);
    const BlockLine& above = region_.block(parent.page());
    if (!PageWord{above.word.load_acquire()}.is_findable(parent.generation())) return false;  // [pairs page.word]
    if (depth_of(above) + 1 != depth_of(line)) return false;                                  // so the way up ends
    if (is_known(parent.page()) && !end(parent.page(), MARU_FOLLOW_BY_CLIENT)) return false;
    at = parent;
    if (scratch_.ancestors.size() < kAncestorsMax) continue;
    scratch_.ancestors.erase(scratch_.ancestors.begin(),
                             scratch_.ancestors.begin() + kAncestorsMax / 2);  // the highest come first, always
    *ret_is_whole = false;
  }
}

// False: the blocks below have to wait.
bool Feed::tell_one(PageRef ref, PageRef parent, bool is_gone) {
  if (!is_silent_ && left_.news == 0) {
    later_.add(ref.page());
    return false;
  }
  const BlockLine& line = region_.block(ref.page());
  if (!is_silent_) {
    const format::DetailLine& detail = region_.detail(ref.page());
    scratch_.record.kind = FeedKind::kStored;
    scratch_.record.reason = 0;
    scratch_.record.block = ref;
    scratch_.record.at_ms = now_ms_;
    scratch_.record.parent = parent;
    scratch_.record.length = line.length.load_acquire();
    scratch_.record.shape = line.shape.load_acquire();
    scratch_.record.expires_ms = line.expires_ms.load_acquire();
    scratch_.record.stored_ms = detail.stored_ms.load_acquire();
    scratch_.record.detail_kind = detail.kind.load_acquire();
    meter_.add(kDetailLines);
    if (!shm::read_key(region_, ref, &scratch_.key)) return false;  // gone, or damaged
    scratch_.record.tenant = scratch_.key.tenant;
    scratch_.record.key_kind = scratch_.key.kind;
    scratch_.record.key_bytes = scratch_.key.size;
    std::memcpy(scratch_.record.key, scratch_.key.data, scratch_.key.size);
  }
  // After all of its words were read.
  if (!is_there(PageWord{line.word.load_acquire()}, ref, is_gone)) return false;  // [pairs page.word]
  if (!is_gone && !is_registered(ref)) {
    later_.add(ref.page());
    return true;
  }
  if (is_silent_) {
    view_.table(ref.page()).store_release(format::feed_mark(ref.generation()));  // [pairs feed.table]
  } else {
    write(scratch_.record);
    --left_.news;
  }
  link(ref.page(), parent);
  known_.get()[ref.page()].generation = ref.generation();
  return true;
}

void Feed::tell(PageRef ref, bool is_gone) {
  bool is_whole = true;
  if (!gather(ref, &is_whole)) return;
  for (size_t i = scratch_.ancestors.size(); i-- > 0;) {
    const auto [block, parent] = scratch_.ancestors[i];
    if (!tell_one(block, parent, is_gone && block == ref)) break;
  }
  if (!is_whole) later_.add(ref.page());
}

// Tells the end of a known block, of its known descendants first. False: a part of it is left for another turn.
bool Feed::end(uint32_t page, uint32_t reason) {
  Known* known = known_.get();
  if (known[page].reason != 0) reason = known[page].reason;
  for (uint32_t at = page;;) {
    while (known[at].first_child != 0) at = known[at].first_child - 1;
    if (left_.ends == 0) {
      known[page].reason = reason;
      later_.add(page);
      return false;
    }
    --left_.ends;
    scratch_.record.kind = FeedKind::kRemoved;
    scratch_.record.reason = uint8_t(at == page || known[at].reason == 0 ? reason : known[at].reason);
    scratch_.record.block = PageRef::of(at, known[at].generation);
    scratch_.record.at_ms = now_ms_;
    const uint32_t above = known[at].parent;
    write(scratch_.record);
    unlink(at);
    if (at == page) return true;
    at = above - 1;
  }
}

// -- looking ----------------------------------------------------------------------------------------------------------

void Feed::look(uint32_t page, uint32_t reason) {
  meter_.add(1);
  const PageWord word{region_.block(page).word.load_acquire()};  // [pairs page.word]
  const bool is_block = word.is(PageState::kReady) || word.is(PageState::kRetiring);
  const PageRef ref = PageRef::of(page, word.generation());
  if (is_known(page)) {
    if (is_block && is_known(ref)) return;
    if (!end(page, reason)) return;
  }
  if (is_block) tell(ref, false);
}

void Feed::removed(PageRef ref, uint32_t reason) {
  const uint32_t page = ref.page();
  if (!is_known(ref)) {
    if (is_known(page) && !end(page, MARU_FOLLOW_BY_CLIENT)) return;
    tell(ref, true);
  }
  if (is_known(ref)) end(page, reason);
}

bool Feed::fill(uint64_t pages) {
  is_silent_ = true;
  const uint64_t end = std::min(region_.pages(), fill_next_ + pages);
  for (; fill_next_ < end; ++fill_next_) look(uint32_t(fill_next_), MARU_FOLLOW_BY_CLIENT);
  is_silent_ = false;
  if (is_filling()) return true;
  view_.header().state.store_release(uint32_t(FeedState::kCurrent));  // [pairs feed.state]
  has_news_ = true;
  return false;
}

bool Feed::settle() {
  for (uint64_t i = std::min<uint64_t>(later_.size(), kLaterPerTurn); i > 0 && left_.news > 0; --i)
    look(later_.take(), MARU_FOLLOW_BY_CLIENT);
  const bool was_too_little = (left_.news == 0 || left_.ends == 0) && !later_.empty();
  left_.news = kNewsPerTurn;
  left_.ends = kEndsPerTurn;
  return was_too_little;
}

void Feed::publish() {
  view_.header().looked_ms.store_relaxed(now_ms_);  // a sign of life
  if (!has_news_) return;
  has_news_ = false;
  published_ms_ = now_ms_;
  if (!writer_.publish()) view_.header().wake.store_release(view_.header().wake.load_relaxed() + 1);  // its only writer
  wake_all(view_.header().wake);
}

}  // namespace maru::daemon
