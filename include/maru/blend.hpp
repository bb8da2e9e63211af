// spans.h and rope.h for C++20: the same calls, with owners that give back. Header only, needs no exceptions.
//
//   Spans        the chunks of one model, layout, tenant and length, in the pool of one client
//   FoundSpans   the spans found in a prompt, pinned together; released when it goes
//   rerotate     keys moved to another position
//
// spans.h and rope.h have the meaning, the units and the errors of each call; nothing differs here. A FoundSpans must go before
// its Spans, and a Spans before its client.
#ifndef MARU_BLEND_HPP
#define MARU_BLEND_HPP

#include <maru/maru.hpp>
#include <maru/rope.h>
#include <maru/spans.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace maru {
inline namespace api_0 {

class FoundSpans {
 public:
  FoundSpans() = default;
  FoundSpans(maru_spans* spans, const maru_found_spans& found) : spans_(spans), found_(found) {}
  FoundSpans(FoundSpans&& other) noexcept
      : spans_(std::exchange(other.spans_, nullptr)), found_(std::exchange(other.found_, {})) {}
  FoundSpans& operator=(FoundSpans&& other) noexcept {
    if (this != &other) {
      release();
      spans_ = std::exchange(other.spans_, nullptr);
      found_ = std::exchange(other.found_, {});
    }
    return *this;
  }
  ~FoundSpans() { release(); }

  std::span<const maru_span> spans() const { return {found_.spans, found_.count}; }
  uint64_t prefix_tokens() const { return found_.prefix_tokens; }
  uint64_t rejected() const { return found_.rejected; }
  const maru_found_spans& c() const { return found_; }

  void release() {
    if (maru_spans* spans = std::exchange(spans_, nullptr)) maru_release_spans(spans, &found_);
  }

 private:
  maru_spans* spans_ = nullptr;
  maru_found_spans found_ = {};
};

class Spans {
 public:
  // `space` describes the payloads. Each chunk has `window` tokens.
  static Outcome<Spans> open(maru_client* client, std::string_view space, uint32_t window, uint64_t tenant = 0,
                             uint32_t occupants = 0) {
    maru_spans_options options = {};
    options.size = sizeof(options);
    options.space = space.data();
    options.space_bytes = space.size() > UINT32_MAX ? UINT32_MAX : uint32_t(space.size());
    options.window = window;
    options.tenant = tenant;
    options.occupants = occupants;
    Spans spans;
    if (const int status = maru_open_spans(client, &options, &spans.spans_); status < 0) return Failed{-status};
    spans.window_ = window;
    return spans;
  }
  Spans(Spans&& other) noexcept : spans_(std::exchange(other.spans_, nullptr)), window_(other.window_) {}
  Spans& operator=(Spans&& other) noexcept {
    if (this != &other) {
      maru_close_spans(spans_);
      spans_ = std::exchange(other.spans_, nullptr);
      window_ = other.window_;
    }
    return *this;
  }
  ~Spans() { maru_close_spans(spans_); }

  maru_spans* c() const { return spans_; }
  uint32_t window() const { return window_; }

  // True: it was stored. False: these tokens were there already.
  Outcome<bool> store_copy(std::span<const uint32_t> tokens, uint64_t position, std::span<const std::byte> data,
                           std::string_view note = {}) const {
    const maru_span_chunk chunk = chunk_of(tokens, position, note);
    return stored(tokens, [&] { return maru_store_span_copy(spans_, &chunk, data.data(), data.size(), nullptr); });
  }
  Outcome<bool> name(std::span<const uint32_t> tokens, uint64_t position, maru_block deepest, uint32_t blocks,
                     std::string_view note = {}) const {
    const maru_span_chunk chunk = chunk_of(tokens, position, note);
    return stored(tokens, [&] { return maru_name_span(spans_, &chunk, deepest, blocks, nullptr); });
  }
  // How many blocks went.
  Outcome<int> forget(std::span<const uint32_t> tokens) const {
    if (tokens.size() != window_) return Failed{EINVAL};
    const int status = maru_forget_span(spans_, tokens.data());
    if (status < 0) return Failed{-status};
    return status;
  }

  static maru_find_spans_options find_options() {
    maru_find_spans_options options = {};
    options.size = sizeof(options);
    return options;
  }
  Outcome<FoundSpans> find(std::span<const uint32_t> tokens) const { return find(tokens, find_options()); }
  Outcome<FoundSpans> find(std::span<const uint32_t> tokens, const maru_find_spans_options& options) const {
    maru_found_spans found = {};
    const int status = maru_find_spans(spans_, tokens.data(), tokens.size(), &options, &found);
    if (status < 0) return Failed{-status};
    return FoundSpans(spans_, found);
  }

 private:
  Spans() = default;

  static maru_span_chunk chunk_of(std::span<const uint32_t> tokens, uint64_t position, std::string_view note) {
    maru_span_chunk chunk = {};
    chunk.size = sizeof(chunk);
    chunk.tokens = tokens.data();
    chunk.position = position;
    chunk.note = note.data();
    chunk.note_bytes = note.size() > UINT32_MAX ? UINT32_MAX : uint32_t(note.size());
    return chunk;
  }
  template <typename Store>
  Outcome<bool> stored(std::span<const uint32_t> tokens, const Store& store) const {
    if (tokens.size() != window_) return Failed{EINVAL};
    const int status = store();
    if (status < 0) return Failed{-status};
    return status == 0;
  }

  maru_spans* spans_ = nullptr;
  uint32_t window_ = 0;
};

// Where the keys are, and where they shall be, is the caller's to set; the structure's size is set.
inline maru_rerotation rerotation() {
  maru_rerotation keys = {};
  keys.size = sizeof(keys);
  return keys;
}
inline maru_rope rope() {
  maru_rope rope = {};
  rope.size = sizeof(rope);
  return rope;
}
inline Outcome<void> rerotate(const maru_rope& rope, const maru_rerotation& keys, maru_rope_reason* reason = nullptr) {
  if (const int status = maru_rerotate(&rope, &keys, reason); status < 0) return Failed{-status};
  return {};
}
inline Outcome<std::vector<double>> rope_frequencies(const maru_rope& rope, maru_rope_reason* reason = nullptr) {
  std::vector<double> frequencies(rope.head_dim <= MARU_ROPE_HEAD_DIM_MAX ? rope.head_dim / 2 : 0);
  const int status = maru_rope_frequencies(&rope, frequencies.data(), frequencies.size(), reason);
  if (status < 0) return Failed{-status};
  frequencies.resize((rope.rotary_dim != 0 ? rope.rotary_dim : rope.head_dim) / 2);
  return frequencies;
}

}  // namespace api_0
}  // namespace maru

#endif
