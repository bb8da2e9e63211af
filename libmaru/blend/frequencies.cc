// The formulas of vLLM's rotary embeddings, which vLLM computes in single precision; here all is in double.
#include "libmaru/blend/frequencies.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <numbers>
#include <optional>

namespace maru::blend {
namespace {

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

double base_of(const maru_rope& rope) {
  const double d = rotary_dim_of(rope), factor = rope.factor;
  if (rope.scaling == MARU_ROPE_DYNAMIC) return rope.base * std::pow(factor * factor - factor + 1, d / (d - 2));
  if (rope.scaling == MARU_ROPE_NTK_ALPHA) return rope.base * std::pow(factor, d / (d - 2));
  return rope.base;
}

// "NTK by parts": pairs that turn often within the original length keep their frequency, pairs that turn less than once are
// interpolated.
class YarnRamp {
 public:
  explicit YarnRamp(const maru_rope& rope) : rope_(rope) {
    low_ = pair_of_turns(rope.beta_fast != 0 ? rope.beta_fast : 32);
    high_ = pair_of_turns(rope.beta_slow != 0 ? rope.beta_slow : 1);
    if ((rope.flags & MARU_ROPE_YARN_EXACT_RANGE) == 0) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, rotary_dim_of(rope) - 1.0);
    if (low_ == high_) high_ += 0.001;
  }
  // How much of the pair's own frequency stays, from 0 to 1.
  double kept(uint32_t pair) const {
    const double ramp = std::clamp((pair - low_) / (high_ - low_), 0.0, 1.0);
    return (1 - ramp) * (rope_.extrapolation_factor != 0 ? rope_.extrapolation_factor : 1);
  }

 private:
  // The pair (a fraction) that turns so often within the original length.
  double pair_of_turns(double turns) const {
    return rotary_dim_of(rope_) * std::log(rope_.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope_.base));
  }

  const maru_rope& rope_;
  double low_, high_;
};

double llama3(const maru_rope& rope, double frequency) {
  const double turns = rope.original_positions * frequency / (2 * std::numbers::pi);  // within the original length
  if (turns > rope.high_freq_factor) return frequency;
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

int check_scaling(const maru_rope& rope, maru_rope_reason* reason) {
  const bool has_factor = rope.scaling != MARU_ROPE_PLAIN && rope.scaling != MARU_ROPE_LONGROPE;
  if (has_factor && !is_positive(rope.factor))
    return refuse(reason, EINVAL, "factor is %g, expected a number above 0", rope.factor);
  const bool changes_base = rope.scaling == MARU_ROPE_DYNAMIC || rope.scaling == MARU_ROPE_NTK_ALPHA;
  if (changes_base && rotary_dim_of(rope) < 4)
    return refuse(reason, EINVAL, "the rotary dimension is %u, expected at least 4 for this scaling",
                  rotary_dim_of(rope));
  const bool by_length = rope.scaling == MARU_ROPE_YARN || rope.scaling == MARU_ROPE_LLAMA3;
  if (by_length && !is_positive(rope.original_positions))
    return refuse(reason, EINVAL, "original_positions is %g, expected a number above 0", rope.original_positions);
  if (rope.scaling == MARU_ROPE_YARN)
    for (const double beta : {rope.beta_fast, rope.beta_slow})
      if (beta != 0 && !is_positive(beta))
        return refuse(reason, EINVAL, "a beta of yarn is %g, expected a number above 0, or 0 for the default", beta);
  if (rope.scaling == MARU_ROPE_YARN && !std::isfinite(rope.extrapolation_factor))
    return refuse(reason, EINVAL, "extrapolation_factor is %g, expected a number", rope.extrapolation_factor);
  if (rope.scaling == MARU_ROPE_LLAMA3 &&
      !(is_positive(rope.low_freq_factor) && rope.high_freq_factor > rope.low_freq_factor))
    return refuse(reason, EINVAL, "low_freq_factor is %g and high_freq_factor %g, expected 0 < low < high",
                  rope.low_freq_factor, rope.high_freq_factor);
  if (rope.scaling != MARU_ROPE_LONGROPE) return 0;
  if (rope.factors == nullptr)
    return refuse(reason, EINVAL, "factors is NULL, expected %u of them for longrope", pairs_of(rope));
  for (uint32_t i = 0; i < pairs_of(rope); ++i)
    if (!is_positive(rope.factors[i]))
      return refuse(reason, EINVAL, "factor %u is %g, expected a number above 0", i, rope.factors[i]);
  return 0;
}

}  // namespace

int check_rope(const maru_rope& rope, maru_rope_reason* reason) {
  if (rope.size != sizeof(rope))
    return refuse(reason, EINVAL, "size is %zu, expected sizeof(maru_rope), %zu", rope.size, sizeof(rope));
  if (rope.head_dim < 2 || rope.head_dim > MARU_ROPE_HEAD_DIM_MAX)
    return refuse(reason, EINVAL, "head_dim is %u, expected 2 to %u", rope.head_dim, MARU_ROPE_HEAD_DIM_MAX);
  if (rotary_dim_of(rope) % 2 != 0 || rotary_dim_of(rope) > rope.head_dim)
    return refuse(reason, EINVAL, "the rotary dimension is %u of %u elements, expected an even number up to these",
                  rotary_dim_of(rope), rope.head_dim);
  if (rope.pairing != MARU_ROPE_NEOX && rope.pairing != MARU_ROPE_GPTJ)
    return refuse(reason, EINVAL, "pairing is %u, expected MARU_ROPE_NEOX (%d) or MARU_ROPE_GPTJ (%d)", rope.pairing,
                  MARU_ROPE_NEOX, MARU_ROPE_GPTJ);
  if (rope.scaling > MARU_ROPE_LONGROPE)
    return refuse(reason, EINVAL, "scaling is %u, expected an enum maru_rope_scaling, up to %d", rope.scaling,
                  MARU_ROPE_LONGROPE);
  if ((rope.flags & ~uint32_t{MARU_ROPE_YARN_EXACT_RANGE}) != 0 || rope.reserved0 != 0 || rope.reserved[0] != 0 ||
      rope.reserved[1] != 0)
    return refuse(reason, EINVAL, "a flag is unknown, or a reserved field is not 0");
  if (!(rope.base > 1) || !std::isfinite(rope.base))
    return refuse(reason, EINVAL, "base is %g, expected a number above 1, such as 10000", rope.base);
  return check_scaling(rope, reason);
}

void frequencies_of(const maru_rope& rope, double* ret_frequencies) {
  const double base = base_of(rope), d = rotary_dim_of(rope);
  std::optional<YarnRamp> ramp;
  if (rope.scaling == MARU_ROPE_YARN) ramp.emplace(rope);
  for (uint32_t i = 0; i < pairs_of(rope); ++i) {
    const double frequency = std::pow(base, -2.0 * i / d);
    double& scaled = ret_frequencies[i];
    scaled = frequency;
    if (rope.scaling == MARU_ROPE_LINEAR) scaled = frequency / rope.factor;
    if (rope.scaling == MARU_ROPE_LLAMA3) scaled = llama3(rope, frequency);
    if (rope.scaling == MARU_ROPE_LONGROPE) scaled = frequency / rope.factors[i];
    if (ramp) scaled = frequency / rope.factor * (1 - ramp->kept(i)) + frequency * ramp->kept(i);
  }
}

}  // namespace maru::blend

int maru_rope_frequencies(const maru_rope* rope, double* ret_frequencies, size_t n, maru_rope_reason* reason) {
  using namespace maru::blend;
  if (rope == nullptr || ret_frequencies == nullptr) return refuse(reason, EINVAL, "an argument is NULL");
  if (const int status = check_rope(*rope, reason); status != 0) return status;
  if (n < pairs_of(*rope))
    return refuse(reason, ENOSPC, "there is room for %zu frequencies, expected %u", n, pairs_of(*rope));
  frequencies_of(*rope, ret_frequencies);
  return 0;
}
