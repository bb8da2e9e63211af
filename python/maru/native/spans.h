// maru._maru.Spans: the calls of maru/spans.h on one attachment; and rerotate, the call of maru/rope.h.
#pragma once

#include "attachment.h"

#include <cstdint>
#include <maru/spans.h>
#include <memory>
#include <pybind11/pybind11.h>

namespace maru_python {

// A maru_spans with what it needs. Freeing it touches no memory of the pool.
class OpenSpans {
 public:
  OpenSpans(std::shared_ptr<Attachment> attachment, maru_client* client, pybind11::handle space, uint32_t window,
            uint64_t tenant, uint32_t occupants);
  ~OpenSpans();
  OpenSpans(const OpenSpans&) = delete;
  OpenSpans& operator=(const OpenSpans&) = delete;

  const std::shared_ptr<Attachment>& attachment() const { return attachment_; }
  maru_spans* c() const { return spans_; }
  uint32_t window() const { return window_; }
  uint64_t tenant() const { return tenant_; }

 private:
  std::shared_ptr<Attachment> attachment_;
  maru_spans* spans_ = nullptr;
  uint32_t window_;
  uint64_t tenant_;
};

class Spans : public ZeroedMemory {
 public:
  explicit Spans(std::shared_ptr<OpenSpans> open) : open_(std::move(open)) {}

  uint32_t window() const { return open().window(); }
  uint64_t tenant() const { return open().tenant(); }
  // True: stored. False: these tokens were there.
  bool store(pybind11::handle tokens, uint64_t position, pybind11::handle data, pybind11::handle note, uint64_t ttl_ms,
             uint32_t priority) const;
  bool name(pybind11::handle tokens, uint64_t position, uint64_t deepest, uint32_t blocks, pybind11::handle note,
            uint64_t ttl_ms, uint32_t priority) const;
  int forget(pybind11::handle tokens) const;
  // (prefix_tokens, views of the prefix, deepest, spans, rejected); a span is (old_start, old_end, new_start, new_end, kind,
  // block, note, views).
  pybind11::tuple find(pybind11::handle tokens, pybind11::handle prefix_keys, uint64_t prefix_key_tokens,
                       uint64_t first, uint64_t step, uint64_t tokens_min, uint64_t spans_max, uint32_t flags) const;

 private:
  const OpenSpans& open() const;

  std::shared_ptr<OpenSpans> open_;
};

void define_spans(pybind11::module_& module);

}  // namespace maru_python
