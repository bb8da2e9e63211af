// An eviction policy for marud: long conversations give first.
//
// Blocks deeper in their chain than `depth` stand in a queue that goes before all others; in both queues the block that was
// used longest ago goes first. README.md beside this file shows how to build, install and choose it.
#include <maru/policy.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <new>

namespace {

class DeepFirst final : public maru::Policy {
 public:
  explicit DeepFirst(uint32_t depth) : depth_(depth) {}

  const char* name() const override { return "deep_first"; }
  // For PolicyBlock::depth. Whoever asks for nothing is asked faster.
  uint32_t needs() const override { return maru::kNeedsLine; }
  // A use raises last_use and leaves the depth as it is, so the block goes to the warm end of its own queue: constant time.
  maru::PolicyPlace place(const maru::PolicyBlock& block) const override {
    return {block.depth > depth_ ? 0u : 1u, block.last_use};
  }

 private:
  const uint32_t depth_;
};

}  // namespace

// Without the attribute they would be hidden where the build says -fvisibility=hidden.
extern "C" __attribute__((visibility("default"))) const uint32_t maru_policy_abi = maru::kPolicyAbi;

extern "C" __attribute__((visibility("default"))) maru::Policy* maru_policy_create(const maru::PolicyOption* options,
                                                                                   size_t options_count, char* problem,
                                                                                   size_t problem_bytes) {
  uint32_t depth = 64;
  for (size_t i = 0; i < options_count; ++i) {
    const char *const text = options[i].value, *const end = text + std::strlen(text);
    if (std::strcmp(options[i].name, "depth") != 0) {
      std::snprintf(problem, problem_bytes, "option '%s' is not known, expected depth; remove it from policy_options",
                    options[i].name);
      return nullptr;
    }
    const auto [stopped, error] = std::from_chars(text, end, depth);
    if (error != std::errc() || stopped != end) {
      std::snprintf(problem, problem_bytes,
                    "option depth is '%s', expected a whole number of blocks; correct it in policy_options", text);
      return nullptr;
    }
  }
  return new (std::nothrow) DeepFirst(depth);
}
