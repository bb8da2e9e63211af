// The news for followers of a pool, and marud's memory of the followers' knowledge. docs/events.md, "The feed", is the
// description.
//
// The page words are the truth. The table of the feed is a shadow of them: the lives of pages that followers know to be
// blocks. Each look at a page compares both, and tells the difference. Beside the table, marud keeps the tree of the known
// blocks to itself.
//
//   (1) A known block's ancestors are known: its parent was told before it, and ends after it.
//   (2) So a page that is not known has no known children, and the links have no circle, whatever clients write.
//
// Thread safety: one thread. If marud dies here: the next marud begins another feed, and followers take a snapshot.
#pragma once

#include "daemon/base/line_meter.h"
#include "daemon/pool/feed/feed_looks.h"
#include "daemon/pool/feed/feed_memory.h"
#include "daemon/pool/page_queue.h"
#include "libmaru/base/result.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/feed/ring.h"
#include "libmaru/shm/region/control_region.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

namespace maru::daemon {

class Feed {
 public:
  using PageRef = shm::PageRef;
  // Blocks that one turn tells of, and ends that it tells. The rest has its turn later.
  static constexpr uint64_t kNewsPerTurn = 1u << 12;
  static constexpr uint64_t kEndsPerTurn = 1u << 13;
  static constexpr uint64_t kLaterPerTurn = 1u << 9;

  // `ring_bytes` 0: by the size of the pool. Errors: of FeedMemory::make; ENOMEM.
  static Result<std::unique_ptr<Feed>> make(const shm::ControlRegion& region, LineMeter& meter, uint64_t now_ms,
                                            uint64_t ring_bytes = 0);
  ~Feed();  // followers see that it has ended
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  int fd() const { return memory_.fd.get(); }
  uint64_t bytes() const { return memory_.mapping.size(); }
  const shm::FeedView& view() const { return view_; }
  uint64_t sequence() const { return writer_.sequence(); }

  // The time, and the reason for the end of a block without a reason: enum maru_follow_reason.
  void set_now(uint64_t now_ms) { now_ms_ = now_ms; }

  // Compares this page, and tells the news.
  void look(uint32_t page, uint32_t reason);
  // marud has taken this block away: its page is RETIRED or POISONED, and its line is still there.
  void removed(PageRef ref, uint32_t reason);

  // The first look at all pages, which tells nothing: so many of them. Returns true when it is not complete.
  bool fill(uint64_t pages);
  bool is_filling() const { return fill_next_ < region_.pages(); }
  // The pages that a look could not settle. Returns true when a turn's share of it was too little. The next turn has
  // its own share.
  bool settle();
  // Followers see the news, and waiting followers are woken.
  void publish();
  // At the time that set_now() last said.
  bool has_published() const { return published_ms_ == now_ms_; }
  bool is_idle() const { return published_ms_ == 0 || now_ms_ - published_ms_ > kIdleMs; }

  // -- followers ------------------------------------------------------------------------------------------------------
  uint64_t followers = 0;
  uint64_t left_ms = 0;  // when the last follower left

  FeedLooks looks;    // where the walks are
  PageQueue touched;  // pages that a client has touched, and that no look has reached since

 private:
  static constexpr uint64_t kIdleMs = 1000;
  // The most ancestors of a block that one look goes through and remembers.
  static constexpr size_t kAncestorsMax = 1u << 14;
  // Told, and not published, of a turn that tells much.
  static constexpr uint64_t kPublishBytes = 1u << 16;

  // A page + 1, or 0.
  struct Known {
    uint32_t generation;
    uint32_t parent, first_child, next, previous;  // children of one parent are linked both ways
    uint32_t reason;                               // of its end, which marud knows and followers do not yet; 0: none
  };
  struct Free {
    void operator()(Known* memory) const { std::free(memory); }
  };

  Feed(const shm::ControlRegion& region, LineMeter& meter, FeedMemory memory, const shm::FeedPlan& plan,
       std::unique_ptr<Known, Free> known, uint64_t now_ms);

  bool is_known(uint32_t page) const { return view_.table(page).load_relaxed() != 0; }  // its only writer
  bool is_known(PageRef ref) const {
    return is_known(ref.page()) && known_.get()[ref.page()].generation == ref.generation();
  }
  bool is_registered(PageRef ref);
  bool is_there(shm::PageWord word, PageRef ref, bool is_gone) const;
  bool gather(PageRef ref, bool* ret_is_whole);
  void tell(PageRef ref, bool is_gone);
  bool tell_one(PageRef ref, PageRef parent, bool is_gone);
  bool end(uint32_t page, uint32_t reason);
  void link(uint32_t page, PageRef parent);
  void unlink(uint32_t page);
  void write(const shm::FeedRecord& record);

  const shm::ControlRegion& region_;
  LineMeter& meter_;
  FeedMemory memory_;
  shm::FeedView view_;
  shm::FeedWriter writer_;
  std::unique_ptr<Known, Free> known_;  // by page; zero pages of the kernel until they are used
  uint64_t now_ms_, published_ms_ = 0;
  uint64_t fill_next_ = 0;
  bool is_silent_ = false;  // fill(): blocks that are there are no news
  bool has_news_ = false;   // since the last publish()
  // As much as this turn may still tell.
  struct TurnShare {
    uint64_t news = kNewsPerTurn, ends = kEndsPerTurn;
  };
  TurnShare left_;
  PageQueue later_;  // pages to look at again
  // Memory of one event, used again for the next event.
  struct Scratch {
    std::vector<std::pair<PageRef, PageRef>> ancestors;  // a block and its parent, from below to above
    shm::FeedRecord record;
    shm::KeyBytes key;
  };
  Scratch scratch_;
};

}  // namespace maru::daemon
