// The calls of maru/spans.h that find: the prefix, segments of it behind a gap, and moved chunks between these.
//
// A window is a candidate when its key is present. The search takes the first candidate, then the first candidate behind it:
// all have one length, so no other choice has more spans. Candidates are pinned in groups, as if none would be refused. A
// candidate may be refused: its block has other tokens, is gone or unreadable. Then the rest of the group is given back, and
// the choice goes on with the next candidate. So the result is the same as with one candidate after the other.
#include "libmaru/blend/window_scan.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace maru::blend {
namespace {

constexpr size_t kGroup = 32;  // candidates pinned at once

// A span with the pin that holds it.
struct Held {
  maru_span span = {};
  maru_view pin = {};
  std::vector<maru_view> views;
};

// The type behind maru_found_spans::held.
struct Result {
  std::vector<Held> held;
  std::vector<maru_span> spans;
};

// Views of one call, released unless they are taken.
template <size_t kMax>
class PinnedViews {
 public:
  explicit PinnedViews(maru_client* client) : client_(client) {}
  ~PinnedViews() { maru_release_batch(client_, views_, count_); }
  PinnedViews(const PinnedViews&) = delete;
  PinnedViews& operator=(const PinnedViews&) = delete;

  // Returns 0 or -errno.
  int retrieve(const maru_key* keys, size_t count) {
    const int found = maru_retrieve_batch(client_, keys, count, views_);
    count_ = found < 0 ? 0 : count;
    return found < 0 ? found : 0;
  }
  const maru_view& operator[](size_t i) const { return views_[i]; }
  maru_view take(size_t i) { return std::exchange(views_[i], maru_view{}); }

 private:
  maru_client* client_;
  size_t count_ = 0;
  maru_view views_[kMax];
};

uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

class Search {
 public:
  Search(const maru_spans& spans, std::span<const uint32_t> tokens, const maru_find_spans_options& options)
      : spans_(spans), tokens_(tokens), options_(options) {}
  ~Search() {
    for (const std::vector<Held>* all : {&held_, &segments_})
      for (const Held& held : *all) maru_release(spans_.client, &held.pin);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // 0 or -errno.
  int run(uint64_t prefix_tokens) {
    if ((options_.flags & MARU_FIND_SEGMENTS) != 0)
      if (const int status = find_segments(prefix_tokens); status != 0) return status;
    // The parts between the segments, in the order of the prompt.
    uint64_t from = std::max(options_.first, prefix_tokens);
    for (Held& segment : segments_) {
      if (const int status = find_moved(from, segment.span.new_start); status != 0) return status;
      from = std::max(from, segment.span.new_end);
      held_.push_back(std::move(segment));
      segment.pin = {};
    }
    return find_moved(from, tokens_.size());
  }

  uint64_t rejected() const { return rejected_; }

  std::unique_ptr<Result> finish() {
    drop_short_runs();
    if (options_.spans_max != 0) drop_from(options_.spans_max);
    auto result = std::make_unique<Result>();
    result->spans.reserve(held_.size());
    result->held = std::move(held_);
    held_.clear();
    for (Held& held : result->held) {
      held.span.views = held.views.data();
      held.span.views_count = uint32_t(held.views.size());
      result->spans.push_back(held.span);
    }
    return result;
  }

 private:
  using Candidates = PinnedViews<kGroup * MARU_SPAN_OCCUPANTS_MAX>;

  static maru_view without_pin(const maru_view& view) { return {view.data, view.bytes, view.block, 0}; }

  // -- segments ------------------------------------------------------------------------------------------------------

  int find_segments(uint64_t prefix_tokens) {
    const uint64_t each = options_.prefix_key_tokens;
    const size_t done = each != 0 ? size_t(prefix_tokens / each) : 0, all = options_.prefix_keys_count;
    for (size_t begin = done; begin < all; begin += kGroup) {
      const size_t count = std::min(kGroup, all - begin);
      PinnedViews<kGroup> views(spans_.client);
      if (const int status = views.retrieve(options_.prefix_keys + begin, count); status != 0) return status;
      for (size_t i = 0; i < count; ++i) {
        if (views[i].block == 0) continue;
        const uint64_t at = (begin + i) * each;
        Held held;
        held.span.old_start = held.span.new_start = at;
        held.span.old_end = held.span.new_end = at + each;
        held.span.kind = MARU_SPAN_SEGMENT;
        held.span.block = views[i].block;
        held.views.push_back(without_pin(views[i]));
        segments_.push_back(std::move(held));
        segments_.back().pin = views.take(i);
      }
    }
    return 0;
  }

  // -- moved chunks --------------------------------------------------------------------------------------------------

  bool is_full() const {
    return options_.spans_max != 0 && options_.tokens_min <= spans_.names.window() &&
           held_.size() >= options_.spans_max;
  }

  // Of windows inside of [begin, end).
  int find_moved(uint64_t begin, uint64_t end) {
    const uint64_t window = spans_.names.window();
    if (begin >= end || end - begin < window) return 0;
    const uint64_t last = end - window;  // the last window's begin
    if (!scan_) scan_.emplace(spans_, tokens_.data(), std::max<uint64_t>(options_.step, 1));
    std::vector<size_t> starts;
    for (uint64_t at = begin; at <= last && !is_full();) {
      const uint64_t batch_end = std::min<uint64_t>(at + scan_->batch_windows(), last + 1);
      starts.clear();
      if (const int status = scan_->find(at, batch_end, &starts); status != 0) return status;
      uint64_t next = at;
      if (const int status = take(starts, &next); status != 0) return status;
      at = std::max(batch_end, next);
    }
    return 0;
  }

  // Chooses among candidates; *next is where the next span may begin.
  int take(std::span<const size_t> starts, uint64_t* next) {
    for (size_t i = 0; i < starts.size() && !is_full();) {
      size_t group[kGroup], count = 0;
      uint64_t from = *next;
      size_t after = i;
      for (; after < starts.size() && count < kGroup; ++after) {
        if (starts[after] < from) continue;
        group[count++] = after;
        from = starts[after] + spans_.names.window();
      }
      if (count == 0) return 0;
      size_t accepted = 0;
      if (const int status = pin_group(starts, {group, count}, &accepted); status != 0) return status;
      if (accepted != 0) *next = starts[group[accepted - 1]] + spans_.names.window();
      i = accepted == count ? after : group[accepted] + 1;
    }
    return 0;
  }

  // Keeps the candidates of a group, up to the first that it refuses.
  int pin_group(std::span<const size_t> starts, std::span<const size_t> group, size_t* ret_accepted) {
    const uint32_t occupants = spans_.names.occupants();
    NameBytes names[kGroup * MARU_SPAN_OCCUPANTS_MAX];
    maru_key keys[kGroup * MARU_SPAN_OCCUPANTS_MAX];
    Candidates views(spans_.client);
    const size_t count = group.size() * occupants;
    for (size_t i = 0; i < count; ++i) {
      names[i] = {scan_->hash(starts[group[i / occupants]]), spans_.names.space_word(uint32_t(i % occupants))};
      keys[i] = spans_.names.key(names[i]);
    }
    if (const int status = views.retrieve(keys, count); status != 0) return status;
    for (size_t i = 0; i < group.size(); ++i) {
      const int status = keep_nearest(views, i * occupants, starts[group[i]]);
      if (status == -ENOENT) break;
      if (status != 0) return status;
      ++*ret_accepted;
    }
    return 0;
  }

  // Keeps one of the occupants of a window, whose views begin at `first`. -ENOENT: the window has no usable occupant.
  int keep_nearest(Candidates& views, size_t first, uint64_t start) {
    const uint32_t* const tokens = tokens_.data() + start;
    std::optional<Record> nearest;
    size_t chosen = 0;
    for (size_t i = first; i < first + spans_.names.occupants(); ++i) {
      if (views[i].block == 0) continue;
      const auto record = spans_.names.record(spans_.client, views[i], tokens);
      if (!record) {
        ++rejected_;
        continue;
      }
      const uint64_t position = record->header.position;
      if (position == 0 && (options_.flags & MARU_FIND_SKIP_FIRST) != 0) continue;
      if (nearest && distance(nearest->header.position, start) <= distance(position, start)) continue;
      nearest = record;
      chosen = i;
    }
    if (!nearest) return -ENOENT;
    Held held;
    if (nearest->header.chain_blocks == 0) {
      held.views.push_back(without_pin(views[chosen]));
    } else if (const int status = views_of_chain(views[chosen].block, nearest->header.chain_blocks, &held.views);
               status != 0) {
      if (status == -ENOENT) ++rejected_;
      return status;
    }
    const uint64_t window = spans_.names.window(), position = nearest->header.position;
    held.span = {position,
                 position + window,
                 start,
                 start + window,
                 views[chosen].block,
                 nullptr,
                 0,
                 MARU_SPAN_MOVED,
                 nearest->note,
                 nearest->header.note_bytes,
                 0};
    held_.push_back(std::move(held));
    held_.back().pin = views.take(chosen);
    return 0;
  }

  // The blocks that a pinned name holds, from its parent up. -ENOENT: one cannot be read.
  int views_of_chain(maru_block name, uint32_t blocks, std::vector<maru_view>* ret_views) {
    maru_block_info info = {};
    info.size = sizeof(info);
    maru_key_copy key;
    if (maru_get_block_info(spans_.client, name, &info, nullptr) != 0) return -ENOENT;
    ret_views->resize(blocks);
    for (uint32_t i = blocks; i-- > 0;) {
      const maru_block block = info.parent;
      if (block == 0 || maru_get_block_info(spans_.client, block, &info, &key) != 0) return -ENOENT;
      const maru_key of_block = {key.data, key.size, key.kind, key.tenant};
      maru_view view = {};
      const int status = maru_retrieve(spans_.client, &of_block, &view);
      if (status == -ENOBUFS || status == -ESHUTDOWN) return status;
      if (status != 0) return -ENOENT;
      maru_release(spans_.client, &view);  // the name's pin holds it
      if (view.block != block) return -ENOENT;
      (*ret_views)[i] = {view.data, view.bytes, view.block, 0};
    }
    return 0;
  }

  // -- dropping ------------------------------------------------------------------------------------------------------

  void drop_from(size_t first) {
    while (held_.size() > first) {
      maru_release(spans_.client, &held_.back().pin);
      held_.pop_back();
    }
  }

  static bool moved_together(const maru_span& a, const maru_span& b) {
    return b.new_start == a.new_end && b.old_start == a.old_end;
  }

  // Neighbours that moved by the same distance are a run.
  void drop_short_runs() {
    size_t kept = 0;
    for (size_t begin = 0, end; begin < held_.size(); begin = end) {
      for (end = begin + 1; end < held_.size() && moved_together(held_[end - 1].span, held_[end].span);) ++end;
      const uint64_t tokens = held_[end - 1].span.new_end - held_[begin].span.new_start;
      if (tokens < options_.tokens_min) continue;
      for (size_t i = begin; i < end; ++i, ++kept)
        if (i != kept) std::swap(held_[i], held_[kept]);  // so that the views to drop come last
    }
    drop_from(kept);
  }

  const maru_spans& spans_;
  std::span<const uint32_t> tokens_;
  const maru_find_spans_options& options_;
  std::optional<WindowScan> scan_;
  std::vector<Held> segments_, held_;
  uint64_t rejected_ = 0;
};

bool are_valid(const maru_find_spans_options& options, size_t n) {
  if (options.size != sizeof(options) || options.reserved0 != 0 || options.reserved[0] != 0 || options.reserved[1] != 0)
    return false;
  if ((options.flags & ~uint32_t{MARU_FIND_SEGMENTS | MARU_FIND_SKIP_FIRST}) != 0) return false;
  if (options.prefix_keys_count == 0) return true;
  return options.prefix_keys != nullptr && options.prefix_key_tokens != 0 &&
         options.prefix_keys_count <= n / options.prefix_key_tokens;
}

int find_spans(const maru_spans& spans, std::span<const uint32_t> tokens, const maru_find_spans_options& options,
               maru_found_spans* ret_found) {
  maru_found_spans found = {};
  if (options.prefix_keys_count != 0) {
    const int status = maru_match_prefix(spans.client, options.prefix_keys, options.prefix_keys_count, &found.prefix);
    if (status < 0) return status;
    found.prefix_tokens = found.prefix.blocks * options.prefix_key_tokens;
  }
  int status = -ENOMEM;
  try {
    Search search(spans, tokens, options);
    status = search.run(found.prefix_tokens);
    if (status == 0) {
      found.rejected = search.rejected();
      std::unique_ptr<Result> result = search.finish();
      found.spans = result->spans.data();
      found.count = result->spans.size();
      found.held = result.release();
    }
  } catch (const std::bad_alloc&) {
    status = -ENOMEM;
  }
  if (status == 0)
    *ret_found = found;
  else if (options.prefix_keys_count != 0)
    maru_release_match(spans.client, &found.prefix);
  return status;
}

}  // namespace
}  // namespace maru::blend

using namespace maru::blend;

int maru_find_spans(maru_spans* spans, const uint32_t* tokens, size_t n, const maru_find_spans_options* options,
                    maru_found_spans* ret_found) {
  if (spans == nullptr || ret_found == nullptr || (tokens == nullptr && n != 0)) return -EINVAL;
  maru_find_spans_options none = {};
  none.size = sizeof(none);
  if (options == nullptr) options = &none;
  if (!are_valid(*options, n)) return -EINVAL;
  return find_spans(*spans, {tokens, n}, *options, ret_found);
}

int maru_release_spans(maru_spans* spans, maru_found_spans* found) {
  if (spans == nullptr || found == nullptr) return -EINVAL;
  if (auto* const result = static_cast<Result*>(found->held)) {
    for (const Held& held : result->held) maru_release(spans->client, &held.pin);
    delete result;
  }
  if (found->prefix.deepest != 0) maru_release_match(spans->client, &found->prefix);
  *found = {};
  return 0;
}
