// A tier's user in a test: one request at a time or many, waits for completions, and knows what each entry must hold.
#pragma once

#include "daemon/tierd/tiers/file/aligned_bytes.h"
#include "daemon/tierd/tiers/tier.h"
#include "tests/support/random.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <poll.h>
#include <set>
#include <string>
#include <vector>

namespace maru::test {

struct TierEntry {
  std::string attributes;
  std::string payload;
  uint64_t note = 0;
  bool operator==(const TierEntry&) const = default;
};

inline TierEntry random_entry(Random& random, uint64_t payload_bytes_max, uint64_t attributes_bytes_max = 6000) {
  TierEntry entry;
  entry.payload.resize(random.below(payload_bytes_max + 1));
  entry.attributes.resize(random.below(attributes_bytes_max + 1));
  for (char& c : entry.payload) c = char(random.next());
  for (char& c : entry.attributes) c = char(random.next());
  entry.note = random.next();
  return entry;
}

// Requests whose memory lives until they are done.
class TierUser {
 public:
  explicit TierUser(tierd::Tier& tier) : tier_(tier) {}

  // Returns the ticket; 0: not accepted now.
  uint64_t begin(uint32_t kind, const std::string& key, const TierEntry& entry, bool is_aligned = true) {
    auto [at, is_new] = open_.try_emplace(++last_, std::make_unique<Open>());
    Open& open = *at->second;
    open.key = key;
    open.attributes = entry.attributes;
    open.payload = tierd::AlignedBytes(entry.payload.size() + 64);
    open.request = {};
    open.request.ticket = last_;
    open.request.kind = kind;
    open.request.key = open.key.data();
    open.request.key_bytes = uint32_t(key.size());
    if (kind == MARU_TIER_STORE || kind == MARU_TIER_LOAD) {
      std::byte* const payload = open.payload.data() + (is_aligned ? 0 : 64);
      if (kind == MARU_TIER_STORE)
        std::copy(entry.payload.begin(), entry.payload.end(), reinterpret_cast<char*>(payload));
      open.request.payload = payload;
      open.request.payload_bytes = entry.payload.size();
      open.request.attributes = open.attributes.data();
      open.request.attributes_bytes = uint32_t(open.attributes.size());
      open.request.payload_checksum = tierd::checksum_of(payload, entry.payload.size());
      open.request.note = entry.note;
    }
    if (tier_.submit(&open.request, 1) == 1) return last_;
    open_.erase(at);
    return 0;
  }

  // What completes within the time, of all that is open.
  std::optional<maru_tier_completion> next(std::chrono::milliseconds at_most = far_too_long()) {
    maru_tier_completion done = {};
    pollfd wait = {tier_.event_descriptor(), POLLIN, 0};
    const auto until = std::chrono::steady_clock::now() + at_most;
    while (tier_.complete(&done, 1) == 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0) return std::nullopt;
      ::poll(&wait, 1, int(left.count()));
    }
    return done;
  }

  maru_tier_completion finish(uint64_t ticket) {
    for (;;) {
      const auto done = next();
      EXPECT_TRUE(done) << "a request never ends";
      if (!done || done->ticket == ticket) return done.value_or(maru_tier_completion{ticket, -ETIME, 0, 0, 0});
      open_.erase(done->ticket);
    }
  }

  int store(const std::string& key, const TierEntry& entry, bool is_aligned = true) {
    const uint64_t ticket = begin(MARU_TIER_STORE, key, entry, is_aligned);
    const int result = finish(ticket).result;
    open_.erase(ticket);
    return result;
  }
  int remove(const std::string& key) {
    const uint64_t ticket = begin(MARU_TIER_DELETE, key, {});
    const int result = finish(ticket).result;
    open_.erase(ticket);
    return result;
  }
  maru_tier_completion lookup(const std::string& key) {
    const uint64_t ticket = begin(MARU_TIER_LOOKUP, key, {});
    const maru_tier_completion done = finish(ticket);
    open_.erase(ticket);
    return done;
  }
  // Lookup and load; nothing, and the reason in *ret_result.
  std::optional<TierEntry> load(const std::string& key, int* ret_result = nullptr, bool is_aligned = true) {
    const maru_tier_completion found = lookup(key);
    if (ret_result) *ret_result = found.result;
    if (found.result != 0) return std::nullopt;
    TierEntry room;
    room.attributes.resize(found.attributes_bytes);
    room.payload.resize(found.payload_bytes);
    const uint64_t ticket = begin(MARU_TIER_LOAD, key, room, is_aligned);
    const maru_tier_completion done = finish(ticket);
    if (ret_result) *ret_result = done.result;
    std::optional<TierEntry> entry;
    if (done.result == 0) entry = loaded(ticket, done);
    open_.erase(ticket);
    return entry;
  }
  TierEntry loaded(uint64_t ticket, const maru_tier_completion& done) {
    const Open& open = *open_.at(ticket);
    return {open.attributes.substr(0, done.attributes_bytes),
            std::string(static_cast<const char*>(open.request.payload), done.payload_bytes), done.note};
  }
  void drop(uint64_t ticket) { open_.erase(ticket); }

 private:
  struct Open {
    std::string key, attributes;
    tierd::AlignedBytes payload;
    maru_tier_request request;
  };

  tierd::Tier& tier_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::unique_ptr<Open>> open_;
};

inline std::unique_ptr<tierd::Tier> open_or_throw(const std::string& kind, const tierd::TierOptions& options) {
  auto tier = tierd::Tier::open(kind, options);
  if (!tier) throw std::runtime_error(tier.error().text());
  return std::move(*tier);
}

}  // namespace maru::test
