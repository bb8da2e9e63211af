// Blocks as they come and go, for marudctl watch.
//
// Clients publish and delete without a word to marud, and must not pay for being watched. So marud looks:
//
//   stored    from the touch that a publisher leaves of its own block, which marud reads within a turn; and, where that was
//             lost, by a walk over the page words that goes on all the time
//   removed   by marud itself: always, with the reason, while the key can still be read; by a client: when the walk, or the
//             touch of the next block in the page, finds that the block is not there any more
//
// What this cannot see is a block that clients store and delete between two looks: a turn (50 ms) as a rule, and a round of
// the walk (32,768 pages a turn) where touches were lost. Nothing is kept while nobody asks.
#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/block_watch.h"
#include "daemon/pool/state.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kIdleMs = 30'000;          // nobody has asked for so long: the watch ends
constexpr uint64_t kPagesMax = 1ull << 28;    // 1 GiB for what is remembered of each
constexpr uint64_t kNewsPerPause = 1u << 15;  // blocks whose keys are read
constexpr int kStepsBeforeAWatch = 32;        // of the touches, some milliseconds
constexpr size_t kKeyBytesShown = 128;
constexpr std::string_view kByClient = "client";

json row_of(const BlockWatch::Event& event, uint64_t number) {
  json row = {{"number", number},
              {"at_ms", event.at_ms},
              {"event", event.reason.empty() ? "stored" : "removed"},
              {"page", event.page},
              {"key", event.block.key.empty() ? json(nullptr) : json(event.block.key)}};
  if (!event.reason.empty()) row["reason"] = event.reason;
  if (event.block.key.empty()) return row;
  row["length_bytes"] = event.block.length_bytes;
  if (event.block.metadata_bytes != 0) row["metadata_bytes"] = event.block.metadata_bytes;
  if (event.block.key_bytes != 0) row["key_bytes"] = event.block.key_bytes;
  return row;
}

}  // namespace

// What can be said of a block; its key is empty when the block went meanwhile.
BlockWatch::Block Pool::State::watched_block(PageRef ref) {
  BlockWatch::Block block;
  const uint64_t length = region.block(ref.page()).length.load_acquire();
  block.length_bytes = format::payload_bytes_of(length);
  block.metadata_bytes = format::metadata_bytes_of(length);
  if (!shm::read_key(region, ref, &key)) return block;
  const size_t shown = std::min<size_t>(key.size, kKeyBytesShown);
  block.key = key_text({key.data, shown});
  if (shown < key.size) block.key_bytes = key.size;
  block.tenant = key.tenant;
  return block;
}

void Pool::State::watch_ready(PageRef ref) {
  const uint32_t page = ref.page();
  if (watch->is_there(page, ref.generation()) || watch_news_left == 0) return;  // the walk comes there again
  --watch_news_left;
  if (watch->is_there(page)) watch->add({now_ms, kByClient, page, watch->went(page)});
  BlockWatch::Block block = watched_block(ref);
  watch->came(page, ref.generation(), block);
  // Until every page was looked at once, a block that nobody knew here may have been there all the time. What its publisher
  // says of the time decides, and can hide no more than that.
  if (!watch->has_seen_all && region.detail(page).stored_ms.load_relaxed() < watch->begun_ms) return;
  watch->add({now_ms, {}, page, std::move(block)});
}

void Pool::State::watch_removed(PageRef ref, std::string_view reason) {
  watch_ready(ref);  // nobody may have looked at it yet
  BlockWatch::Block block = watch->went(ref.page());
  if (block.key.empty()) block = watched_block(ref);
  watch->add({now_ms, reason, ref.page(), std::move(block)});
}

// As many pages are looked at, and as many news are told, until the next pause of the upkeep.
void Pool::State::renew_watch() {
  if (!watch) return;
  watch_news_left = kNewsPerPause;
  watch->asked_ms = std::min(watch->asked_ms, now_ms);  // the clock may be set back
  if (now_ms - watch->asked_ms > kIdleMs) watch.reset();
}

void Pool::State::step_watch(uint64_t count) {
  for (uint64_t i = 0; i < count && watch && watch_news_left > 0; ++i) {
    const auto page = uint32_t(watch->look_next++);
    const PageWord found = word(page);
    if (!owns_page(page)) {
      if (watch->is_there(page)) watch->went(page);  // another host's from now on, and not gone
    } else if (found.is(PageState::kReady)) {
      watch_ready(PageRef::of(page, found.generation()));
    } else if (watch->is_there(page) && !found.is(PageState::kRetiring)) {
      watch->add({now_ms, kByClient, page, watch->went(page)});
      --watch_news_left;
    }
    if (watch->look_next < pages()) continue;
    watch->look_next = 0;
    watch->has_seen_all = true;
  }
}

// "watch" {watch, cursor, limit}: events from the cursor on. Without the number of the watch, or with that of one that is over,
// from now on. {"watch": its number, "next": the next cursor, "lost": events that went before they were asked for,
// "events": [{number, at_ms, event: "stored" | "removed", key, length_bytes, tenant, page, reason}]}
json Pool::State::watch_blocks(const json& request) {
  if (pages() > kPagesMax)
    return refusal(EFBIG, "the pool has " + std::to_string(pages()) + " pages, and at most " +
                              std::to_string(kPagesMax) + " can be watched");
  if (!watch) {
    // What was stored before is not news.
    for (int steps = 0; steps < kStepsBeforeAWatch && !drain_touches(kTouchesPerDrain); ++steps) {
    }
    watch = std::make_unique<BlockWatch>(pages(), now_ms);
    watch_news_left = kNewsPerPause;
    if (!watch->has_memory()) {
      watch.reset();
      return refusal(ENOMEM, "there is no memory to watch this pool with");
    }
  }
  watch->asked_ms = now_ms;
  const bool goes_on = number_in(request, "watch", 0) == watch->begun_ms;
  const uint64_t wanted = goes_on ? std::min(number_in(request, "cursor", 0), watch->next()) : watch->next();
  const uint64_t from = std::max(wanted, watch->first());
  const uint64_t to = std::min(watch->next(), from + rows_in(request));
  json events = json::array();
  size_t bytes = 0;
  uint64_t number = from;
  for (; number < to && bytes < kAdminReplyBytesMax; ++number) {
    events.push_back(row_of(watch->event(number), number));
    if (const BlockWatch::Block& block = watch->event(number).block; !block.key.empty())
      tenants.put_tenant(block.tenant, events.back());
    bytes += json_text(events.back()).size();
  }
  return {{"watch", watch->begun_ms}, {"next", number}, {"lost", from - wanted}, {"events", std::move(events)}};
}

}  // namespace maru::daemon
