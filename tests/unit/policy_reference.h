// What each built-in policy promises, said once more and slowly: which of two blocks must go first, and who is spared.
#pragma once

#include "maru/maru.h"
#include "tests/unit/eviction_fixture.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>

namespace maru::test {

// What a reference knows of a block beyond the facts.
struct ReferenceBlock {
  uint64_t uses = 0;     // since it was stored, or since the policy last forgot some
  uint64_t entered = 0;  // into its queue
  bool in_main = false;
};

// What the order may depend on beside the two blocks, at this moment of a request.
struct ReferenceRequest {
  uint64_t now = 0;
  uint32_t region_pages = 0;
  double pool_bytes = 0;
  uint64_t blocks_at_start = 0;
  uint64_t in_probation = 0;  // now
};

class Reference {
 public:
  virtual ~Reference() = default;
  virtual void stored(const TestBlock& block, ReferenceBlock& state, bool /*was_evicted_young*/) {
    state = {0, block.facts.last_use, false};
  }
  virtual void used(ReferenceBlock& state) { ++state.uses; }
  // Whether `a` must go before `b`; of equals any may go first.
  virtual bool goes_before(const TestBlock& a, const ReferenceBlock& as, const TestBlock& b, const ReferenceBlock& bs,
                           const ReferenceRequest& request, const TestFacts& facts) const = 0;
  virtual bool spares(const ReferenceBlock&) const { return false; }
  virtual void spare(ReferenceBlock&, uint64_t /*now*/) const {}
};

// A reference that only compares, by a key that is a tuple.
template <typename KeyOf>
class KeyReference final : public Reference {
 public:
  explicit KeyReference(KeyOf key_of) : key_of_(key_of) {}
  bool goes_before(const TestBlock& a, const ReferenceBlock& as, const TestBlock& b, const ReferenceBlock& bs,
                   const ReferenceRequest&, const TestFacts&) const override {
    return key_of_(a.facts, as) < key_of_(b.facts, bs);
  }

 private:
  KeyOf key_of_;
};

template <typename KeyOf>
std::unique_ptr<Reference> reference_by(KeyOf key_of) {
  return std::make_unique<KeyReference<KeyOf>>(key_of);
}

// 1 TEMPORARY, 2 ACTIVATION and GRADIENT, 3 LORA_WEIGHT that nobody used, 4 that somebody used, 5 KV_CACHE.
inline uint64_t reference_class(const PolicyBlock& facts, const ReferenceBlock& state) {
  static constexpr uint64_t kClasses[] = {5, 3, 1, 2, 2};
  return kClasses[facts.content_type] + (facts.content_type == MARU_CONTENT_LORA_WEIGHT && state.uses > 0);
}

class ClockReference final : public Reference {
 public:
  bool goes_before(const TestBlock&, const ReferenceBlock& as, const TestBlock&, const ReferenceBlock& bs,
                   const ReferenceRequest&, const TestFacts&) const override {
    return as.entered < bs.entered;
  }
  bool spares(const ReferenceBlock& state) const override { return state.uses > 0; }
  void spare(ReferenceBlock& state, uint64_t now) const override {
    state = {0, std::max(now, state.entered + 1), false};
  }
};

class S3FifoReference final : public Reference {
 public:
  S3FifoReference(double share, uint64_t threshold) : share_(share), threshold_(threshold) {}
  void stored(const TestBlock& block, ReferenceBlock& state, bool was_evicted_young) override {
    state = {0, block.facts.last_use, was_evicted_young};
  }
  void used(ReferenceBlock& state) override { state.uses = std::min<uint64_t>(state.uses + 1, 3); }
  bool goes_before(const TestBlock&, const ReferenceBlock& as, const TestBlock&, const ReferenceBlock& bs,
                   const ReferenceRequest& request, const TestFacts&) const override {
    if (as.in_main == bs.in_main) return as.entered < bs.entered;
    const bool probation_first = double(request.in_probation) > share_ * double(request.blocks_at_start);
    return as.in_main != probation_first;
  }
  bool spares(const ReferenceBlock& state) const override { return state.uses >= (state.in_main ? 1 : threshold_); }
  void spare(ReferenceBlock& state, uint64_t now) const override {
    state = {state.in_main ? state.uses - 1 : 0, std::max(now, state.entered + 1), true};
  }

 private:
  double share_;
  uint64_t threshold_;
};

class SizeAwareReference final : public Reference {
 public:
  SizeAwareReference(long double recency, long double size, long double priority, long double half_life_ms,
                     bool large_first)
      : recency_(recency), size_(size), priority_(priority), half_life_ms_(half_life_ms), large_first_(large_first) {}
  long double score(const PolicyBlock& facts, const ReferenceBlock& state, const ReferenceRequest& request) const {
    const long double age = request.now > facts.last_use ? request.now - facts.last_use : 0;
    const long double recency = 1 / (1 + age / half_life_ms_);
    const long double steps = std::floor(std::log2((long double)request.region_pages));
    const long double part = steps == 0 ? 0 : std::min(1.0L, std::floor(std::log2((long double)facts.pages)) / steps);
    const long double size = large_first_ ? 1 - part : part;
    const long double level = reference_class(facts, state) + std::min<uint32_t>(facts.priority, 10);
    return recency_ * recency + size_ * size + priority_ * level / 15;
  }
  bool goes_before(const TestBlock& a, const ReferenceBlock& as, const TestBlock& b, const ReferenceBlock& bs,
                   const ReferenceRequest& request, const TestFacts&) const override {
    const long double difference = score(a.facts, as, request) - score(b.facts, bs, request);
    return difference < -1e-10L;  // nearer than that the two are equal to the policy
  }

 private:
  long double recency_, size_, priority_, half_life_ms_;
  bool large_first_;
};

class IsolatedReference final : public Reference {
 public:
  bool goes_before(const TestBlock& a, const ReferenceBlock&, const TestBlock& b, const ReferenceBlock&,
                   const ReferenceRequest& request, const TestFacts& facts) const override {
    const auto part = [&](const TestBlock& block) {
      const PolicyTenant& usage = facts.tenants[block.tenant].usage;
      return double(usage.used_bytes) / (usage.limit_bytes ? double(usage.limit_bytes) : request.pool_bytes);
    };
    const double pa = part(a), pb = part(b);
    if (std::abs(pa - pb) > 1e-9) return pa > pb;
    return a.tenant == b.tenant && a.facts.last_use < b.facts.last_use;
  }
};

inline std::unique_ptr<Reference> reference_of(const std::string& policy) {
  constexpr uint64_t kLast = ~uint64_t{0};
  using Facts = PolicyBlock;
  using State = ReferenceBlock;
  if (policy == "lru" || policy == "none")
    return reference_by([](const Facts& facts, const State&) { return facts.last_use; });
  if (policy == "fifo") return reference_by([](const Facts& facts, const State&) { return facts.stored; });
  if (policy == "lfu")
    return reference_by([](const Facts& facts, const State& state) { return std::tuple(state.uses, facts.last_use); });
  if (policy == "ttl")
    return reference_by([](const Facts& facts, const State&) {
      return std::tuple(facts.expires == 0 ? kLast : facts.expires / 1000, facts.last_use);
    });
  if (policy == "priority")
    return reference_by([](const Facts& facts, const State& state) {
      return std::tuple(facts.priority, reference_class(facts, state), facts.last_use);
    });
  if (policy == "clock") return std::make_unique<ClockReference>();
  if (policy == "s3fifo") return std::make_unique<S3FifoReference>(0.5, 1);
  if (policy == "size_aware") return std::make_unique<SizeAwareReference>(0.6L, 0.2L, 0.2L, 600'000.0L, false);
  if (policy == "isolated_lru") return std::make_unique<IsolatedReference>();
  return nullptr;
}

}  // namespace maru::test
