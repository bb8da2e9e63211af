// A form of an adapter in the pool: a chain of blocks, each below the block before. One pin on the deepest block holds all. It
// is evicted first and stored last; so its presence says that the form is whole.
#pragma once

#include "libmaru/adapters/part_keys.h"
#include "libmaru/adapters/placement.h"

#include <memory>

namespace maru::adapters {

// A process's knowledge of a form: it does not change while the entry lives.
struct Shape {
  Shape(const Entry& entry, Form form, uint64_t part_bytes) : keys(entry, form, part_bytes) {}
  PartKeys keys;
  Manifest manifest;
  Placement placement;
};

// The parts of a form, held by one pin.
class HeldParts {
 public:
  HeldParts() = default;
  HeldParts(HeldParts&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)),
        match_(other.match_),
        parts_(std::move(other.parts_)),
        first_bytes_(other.first_bytes_),
        last_bytes_(other.last_bytes_) {}
  HeldParts& operator=(HeldParts&&) = delete;
  ~HeldParts() {
    if (client_ != nullptr) maru_release_match(client_, &match_);
  }

  // Finds and holds all parts. Errors: -ENOENT not all are there; the errors of maru_match_prefix(); -EMSGSIZE a part has
  // another size: some process has stored other bytes under the key.
  int hold(maru_client* client, const PartKeys& keys, uint64_t part_bytes);
  bool is_held() const { return client_ != nullptr; }
  const std::vector<const void*>& parts() const { return parts_; }
  std::span<const std::byte> first() const { return {static_cast<const std::byte*>(parts_[0]), first_bytes_}; }
  uint64_t last_bytes() const { return last_bytes_; }

 private:
  maru_client* client_ = nullptr;
  maru_match match_ = {};
  std::vector<const void*> parts_;
  uint64_t first_bytes_ = 0, last_bytes_ = 0;
};

// Pages to fill, one buffer for each part; aborted unless they are stored.
class NewParts {
 public:
  explicit NewParts(maru_client* client) : client_(client) {}
  NewParts(const NewParts&) = delete;
  NewParts& operator=(const NewParts&) = delete;
  ~NewParts();

  // All parts but the last have part_bytes bytes, even where the placement uses fewer.
  int allocate(const Placement& placement, uint64_t part_bytes);
  std::byte* row(const RowsPlace& place, uint64_t row) const {
    const RowsPlace::Spot spot = place.spot(row);
    return static_cast<std::byte*>(buffers_[spot.part].data) + spot.offset;
  }
  std::byte* first() const { return static_cast<std::byte*>(buffers_[0].data); }
  // Has the kernel map the memory of these rows, which lie in one part: one call instead of a page fault for each page.
  void touch(const RowsPlace& place, uint64_t row, uint64_t rows) const;

  // Makes all parts visible, the deepest last. On success the deepest part stays pinned until this goes. `before_part` is
  // called before each.
  template <typename BeforePart>
  int store(const PartKeys& keys, const BeforePart& before_part) {
    for (size_t at = 0; at < buffers_.size(); ++at) {
      before_part(at);
      if (const int status = store_part(keys[at], at); status < 0) return status;
    }
    return 0;
  }

 private:
  void let_go();
  int store_part(const maru_key& key, size_t at);

  maru_client* const client_;
  std::vector<maru_buffer> buffers_;
  size_t stored_ = 0;       // buffers before are used up
  maru_view deepest_ = {};  // pinned, where its block is not 0
};

// Takes a form out of the pool, the deepest part first. -EBUSY a process holds it, nothing was taken then.
template <typename AfterDeepest>
int remove_parts(maru_client* client, const PartKeys& keys, const AfterDeepest& after_deepest);

// The deepest part that is present goes unless it is held.
int remove_deepest(maru_client* client, const PartKeys& keys, size_t* ret_left);
void remove_rest(maru_client* client, const PartKeys& keys, size_t left);

template <typename AfterDeepest>
int remove_parts(maru_client* client, const PartKeys& keys, const AfterDeepest& after_deepest) {
  size_t left = 0;
  if (const int status = remove_deepest(client, keys, &left); status < 0) return status;
  after_deepest();
  remove_rest(client, keys, left);
  return 0;
}

}  // namespace maru::adapters
