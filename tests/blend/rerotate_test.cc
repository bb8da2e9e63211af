// Keys that were moved equal the rotation in extended precision within the bound that rope.h states, in every way that this
// processor has.
#include "libmaru/blend/rerotate.h"
#include "libmaru/blend/half.h"
#include "maru/rope.h"
#include "tests/support/random.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <numbers>
#include <string>
#include <vector>

namespace maru::test {
namespace {

using blend::Way;
using Long = long double;

constexpr uint32_t kDtypes[] = {MARU_ROPE_FLOAT16, MARU_ROPE_BFLOAT16, MARU_ROPE_FLOAT32};

size_t element_bytes(uint32_t dtype) { return dtype == MARU_ROPE_FLOAT32 ? 4 : 2; }

double read(const std::byte* at, uint32_t dtype) {
  if (dtype == MARU_ROPE_FLOAT32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return double(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == MARU_ROPE_FLOAT16 ? blend::double_of_float16(bits) : blend::double_of_bfloat16(bits);
}
void write(std::byte* at, uint32_t dtype, double value) {
  if (dtype == MARU_ROPE_FLOAT32) {
    const auto narrow = float(value);
    std::memcpy(at, &narrow, sizeof(narrow));
    return;
  }
  const uint16_t bits = dtype == MARU_ROPE_FLOAT16 ? blend::float16_of(value) : blend::bfloat16_of(value);
  std::memcpy(at, &bits, sizeof(bits));
}

// The bound of rope.h, for an exact element of a pair of this length.
Long bound(uint32_t dtype, Long exact, Long length) {
  const Long rounding = dtype == MARU_ROPE_FLOAT16 ? 0x1p-11L : dtype == MARU_ROPE_BFLOAT16 ? 0x1p-8L : 0x1p-24L;
  return rounding * std::fabs(exact) + 0x1p-22L * length + (dtype == MARU_ROPE_FLOAT16 ? 0x1p-25L : 0);
}

maru_rope rope_of(uint32_t head_dim, uint32_t rotary_dim, uint32_t pairing) {
  maru_rope rope = {};
  rope.size = sizeof(rope);
  rope.head_dim = head_dim;
  rope.rotary_dim = rotary_dim;
  rope.pairing = pairing;
  rope.base = 10'000;
  return rope;
}

// Some layers of keys, with gaps between tokens and heads, at an address that is a multiple of an element alone.
struct Keys {
  maru_rerotation c = {};
  std::vector<std::byte> memory, target;

  Keys(const maru_rope& rope, uint32_t dtype, Random& random, bool in_place) {
    const uint64_t element = element_bytes(dtype);
    c.size = sizeof(c);
    c.dtype = dtype;
    c.layers = 2;
    c.tokens = 3;
    c.heads = 1 + random.below(4);
    c.from_head_stride = element * (rope.head_dim + random.below(3));
    c.from_token_stride = c.from_head_stride * c.heads + element * random.below(5);
    c.from_layer_stride = c.from_token_stride * c.tokens + element * random.below(5);
    c.to_head_stride = in_place ? c.from_head_stride : element * (rope.head_dim + random.below(3));
    c.to_token_stride = in_place ? c.from_token_stride : c.to_head_stride * c.heads + element * random.below(5);
    c.to_layer_stride = in_place ? c.from_layer_stride : c.to_token_stride * c.tokens + element * random.below(5);
    memory.resize(element + c.from_layer_stride * c.layers);
    target.resize(element + c.to_layer_stride * c.layers, std::byte{0x5A});
    for (size_t at = element; at + element <= memory.size(); at += element) {
      // Of all sizes, some too small to be normal.
      const double unit = double(random.next() >> 11) * 0x1p-53 - 0.5;
      write(&memory[at], dtype, unit * std::exp2(double(random.below(24)) - 16));
    }
    c.from = memory.data() + element;
    c.to = in_place ? memory.data() + element : target.data() + element;
    c.old_position = random.below(200'000);
    c.new_position = random.below(200'000);
  }
};

// Compares each element of the result with the rotation of `before` in extended precision.
void expect_turned(const maru_rope& rope, const Keys& keys, const std::vector<std::byte>& before) {
  const maru_rerotation& c = keys.c;
  const uint32_t rotary = rope.rotary_dim != 0 ? rope.rotary_dim : rope.head_dim;
  const size_t element = element_bytes(c.dtype);
  std::vector<double> frequencies(rotary / 2);
  ASSERT_EQ(maru_rope_frequencies(&rope, frequencies.data(), frequencies.size(), nullptr), 0);
  for (uint64_t head = 0; head < c.layers * c.tokens * c.heads; ++head) {
    const uint64_t h = head % c.heads, t = head / c.heads % c.tokens, l = head / c.heads / c.tokens;
    const std::byte* const from =
        before.data() + element + l * c.from_layer_stride + t * c.from_token_stride + h * c.from_head_stride;
    const auto* const to =
        static_cast<const std::byte*>(c.to) + l * c.to_layer_stride + t * c.to_token_stride + h * c.to_head_stride;
    for (uint32_t pair = 0; pair < rotary / 2; ++pair) {
      const uint32_t first = rope.pairing == MARU_ROPE_NEOX ? pair : 2 * pair;
      const uint32_t second = rope.pairing == MARU_ROPE_NEOX ? pair + rotary / 2 : first + 1;
      const Long x = read(from + first * element, c.dtype), y = read(from + second * element, c.dtype);
      const Long angle = (Long(c.new_position) - Long(c.old_position)) * Long(frequencies[pair]);
      const Long exact_x = x * std::cos(angle) - y * std::sin(angle),
                 exact_y = x * std::sin(angle) + y * std::cos(angle);
      const Long length = std::hypot(x, y);
      ASSERT_LE(std::fabs(Long(read(to + first * element, c.dtype)) - exact_x), bound(c.dtype, exact_x, length))
          << "pair " << pair << ": " << double(exact_x) << " of length " << double(length);
      ASSERT_LE(std::fabs(Long(read(to + second * element, c.dtype)) - exact_y), bound(c.dtype, exact_y, length))
          << "pair " << pair;
    }
    ASSERT_EQ(std::memcmp(to + rotary * element, from + rotary * element, (rope.head_dim - rotary) * element), 0)
        << "behind the rotary dimension";
  }
}

class Rerotate : public ::testing::TestWithParam<Way> {
 protected:
  Rerotate() : seed_(fresh_seed()), random_(seed_) {}
  void SetUp() override {
    if (blend::turn_way(GetParam(), MARU_ROPE_FLOAT16) == nullptr)
      GTEST_SKIP() << "this processor lacks the instructions";
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
  }
  uint64_t seed_;
  Random random_;
};
INSTANTIATE_TEST_SUITE_P(Ways, Rerotate, ::testing::Values(Way::kPlain, Way::kAvx2, Way::kAvx512), [](const auto& way) {
  return std::string(way.param == Way::kPlain ? "Plain" : way.param == Way::kAvx2 ? "Avx2" : "Avx512");
});

TEST_P(Rerotate, EqualsTheRotationWithinTheBound) {
  const uint32_t shapes[][2] = {{128, 0}, {64, 0}, {80, 32}, {96, 96}, {6, 2}, {256, 64}, {34, 34}, {24, 20}};
  for (const auto& [head_dim, rotary_dim] : shapes)
    for (const uint32_t pairing : {MARU_ROPE_NEOX, MARU_ROPE_GPTJ})
      for (const uint32_t dtype : kDtypes)
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(std::to_string(head_dim) + "/" + std::to_string(rotary_dim) + ", pairing " +
                       std::to_string(pairing) + ", dtype " + std::to_string(dtype) + (in_place ? ", in place" : ""));
          const maru_rope rope = rope_of(head_dim, rotary_dim, pairing);
          Keys keys(rope, dtype, random_, in_place);
          const std::vector<std::byte> before = keys.memory;
          ASSERT_EQ(blend::rerotate(rope, keys.c, blend::turn_way(GetParam(), dtype), nullptr), 0);
          if (!in_place) {
            EXPECT_EQ(keys.memory, before) << "the source changed";
          }
          expect_turned(rope, keys, before);
          if (HasFailure()) return;
        }
}

TEST_P(Rerotate, WritesNothingBetweenTheHeads) {
  const maru_rope rope = rope_of(8, 8, MARU_ROPE_NEOX);
  for (const uint32_t dtype : kDtypes) {
    Keys keys(rope, dtype, random_, false);
    ASSERT_EQ(blend::rerotate(rope, keys.c, blend::turn_way(GetParam(), dtype), nullptr), 0);
    std::vector<bool> written(keys.target.size());
    const size_t element = element_bytes(dtype);
    for (uint64_t l = 0; l < keys.c.layers; ++l)
      for (uint64_t t = 0; t < keys.c.tokens; ++t)
        for (uint64_t h = 0; h < keys.c.heads; ++h)
          for (size_t i = 0; i < 8 * element; ++i)
            written[element + l * keys.c.to_layer_stride + t * keys.c.to_token_stride + h * keys.c.to_head_stride + i] =
                true;
    for (size_t i = 0; i < written.size(); ++i) {
      if (written[i]) continue;
      ASSERT_EQ(keys.target[i], std::byte{0x5A}) << i;
    }
  }
}

// Keys of another place, moved, beside keys that were computed at the new place: two roundings to the type and nothing more.
TEST_P(Rerotate, EqualsKeysThatWereComputedAtTheNewPlace) {
  const maru_rope rope = rope_of(128, 0, MARU_ROPE_NEOX);
  std::vector<double> frequencies(64);
  ASSERT_EQ(maru_rope_frequencies(&rope, frequencies.data(), 64, nullptr), 0);
  for (const uint32_t dtype : kDtypes) {
    const size_t element = element_bytes(dtype);
    std::vector<double> raw(128);
    for (double& x : raw) x = double(random_.next() >> 11) * 0x1p-52 - 1;
    const auto computed_at = [&](uint64_t position, uint32_t i) {
      const Long angle = Long(position) * Long(frequencies[i % 64]), x = raw[i % 64], y = raw[i % 64 + 64];
      return i < 64 ? x * std::cos(angle) - y * std::sin(angle) : x * std::sin(angle) + y * std::cos(angle);
    };
    std::vector<std::byte> memory(128 * element);
    for (uint32_t i = 0; i < 128; ++i) write(&memory[i * element], dtype, double(computed_at(777, i)));
    maru_rerotation keys = {};
    keys.size = sizeof(keys);
    keys.from = keys.to = memory.data();
    keys.dtype = dtype;
    keys.layers = keys.tokens = keys.heads = 1;
    keys.old_position = 777;
    keys.new_position = 131'071;
    ASSERT_EQ(blend::rerotate(rope, keys, blend::turn_way(GetParam(), dtype), nullptr), 0);
    for (uint32_t i = 0; i < 128; ++i) {
      const Long exact = computed_at(131'071, i), length = std::hypot(Long(raw[i % 64]), Long(raw[i % 64 + 64]));
      ASSERT_LE(std::fabs(Long(read(&memory[i * element], dtype)) - exact),
                bound(dtype, exact, length) + 2 * bound(dtype, length, length));
    }
  }
}

TEST_P(Rerotate, NoNumbersStayNoNumbers) {
  const maru_rope rope = rope_of(64, 0, MARU_ROPE_NEOX);
  for (const uint32_t dtype : kDtypes)
    for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
      const size_t element = element_bytes(dtype);
      std::vector<std::byte> memory(64 * element);
      for (uint32_t i = 0; i < 64; ++i) write(&memory[i * element], dtype, i == 5 ? bad : 1.0);
      maru_rerotation keys = {};
      keys.size = sizeof(keys);
      keys.from = keys.to = memory.data();
      keys.dtype = dtype;
      keys.layers = keys.tokens = keys.heads = 1;
      keys.new_position = 3;
      ASSERT_EQ(blend::rerotate(rope, keys, blend::turn_way(GetParam(), dtype), nullptr), 0);
      for (uint32_t i = 0; i < 64; ++i)
        EXPECT_EQ(std::isfinite(read(&memory[i * element], dtype)), i % 32 != 5) << dtype << " element " << i;
    }
}

TEST(Halves, AreReadAndRoundedExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double half = blend::double_of_float16(uint16_t(bits)), brain = blend::double_of_bfloat16(uint16_t(bits));
    if (!std::isnan(half)) {
      EXPECT_EQ(blend::float16_of(half), bits);
    }
    if (!std::isnan(brain)) {
      EXPECT_EQ(blend::bfloat16_of(brain), bits);
    }
  }
  EXPECT_EQ(blend::float16_of(1 + 0x1p-11), 0x3C00) << "a tie goes to the even one";
  EXPECT_EQ(blend::float16_of(1 + 3 * 0x1p-11), 0x3C02);
  EXPECT_EQ(blend::float16_of(65520), 0x7C00) << "infinite";
  EXPECT_EQ(blend::float16_of(65519), 0x7BFF);
  EXPECT_EQ(blend::float16_of(0x1p-25), 0) << "half of the smallest";
  EXPECT_EQ(blend::float16_of(0x1.8p-25), 1);
}

// -- frequencies -----------------------------------------------------------------------------------------------------

std::vector<double> frequencies_of(const maru_rope& rope) {
  std::vector<double> frequencies(rope.head_dim / 2);
  maru_rope_reason reason = {};
  EXPECT_EQ(maru_rope_frequencies(&rope, frequencies.data(), frequencies.size(), &reason), 0) << reason.text;
  return frequencies;
}

TEST(Frequencies, OfEachScalingAreThoseOfItsFormula) {
  maru_rope rope = rope_of(128, 0, MARU_ROPE_NEOX);
  const std::vector<double> plain = frequencies_of(rope);
  for (size_t i = 0; i < 64; ++i) EXPECT_DOUBLE_EQ(plain[i], 1 / std::pow(10'000, double(i) / 64));
  rope.factor = 4;
  rope.scaling = MARU_ROPE_LINEAR;
  for (size_t i = 0; i < 64; ++i) EXPECT_DOUBLE_EQ(frequencies_of(rope)[i], plain[i] / 4);
  rope.scaling = MARU_ROPE_DYNAMIC;
  for (size_t i = 0; i < 64; ++i)
    EXPECT_NEAR(frequencies_of(rope)[i], std::pow(10'000 * std::pow(13, 128.0 / 126), -double(i) / 64), 1e-15);
  rope.scaling = MARU_ROPE_NTK_ALPHA;
  for (size_t i = 0; i < 64; ++i)
    EXPECT_NEAR(frequencies_of(rope)[i], std::pow(10'000 * std::pow(4, 128.0 / 126), -double(i) / 64), 1e-15);
  std::vector<double> factors(64);
  for (size_t i = 0; i < 64; ++i) factors[i] = 1 + double(i);
  rope.scaling = MARU_ROPE_LONGROPE;
  rope.factors = factors.data();
  for (size_t i = 0; i < 64; ++i) EXPECT_DOUBLE_EQ(frequencies_of(rope)[i], plain[i] / double(i + 1));
}

// Llama 3.1: theta 500,000, factor 8, 1 and 4, 8192 positions. Its wavelengths tell fast, slow and between.
TEST(Frequencies, OfLlama3AreSplitByWavelength) {
  maru_rope rope = rope_of(128, 0, MARU_ROPE_NEOX);
  rope.base = 500'000;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_positions = 8192;
  rope.scaling = MARU_ROPE_LLAMA3;
  const std::vector<double> scaled = frequencies_of(rope);
  size_t fast = 0, between = 0, slow = 0;
  for (size_t i = 0; i < 64; ++i) {
    const double plain = std::pow(500'000, -double(i) / 64), wavelength = 2 * std::numbers::pi / plain;
    if (wavelength < 8192.0 / 4) {
      EXPECT_DOUBLE_EQ(scaled[i], plain);
      ++fast;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(scaled[i], plain / 8);
      ++slow;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(scaled[i], (1 - smooth) * plain / 8 + smooth * plain, 1e-18);
      ++between;
    }
  }
  EXPECT_EQ(fast, 29u);
  EXPECT_EQ(between, 6u);
  EXPECT_EQ(slow, 29u);
}

// DeepSeek's: theta 10,000, 64 of 64 elements, factor 40, 4096 positions: the ramp goes from pair 10 to pair 23.
TEST(Frequencies, OfYarnKeepFastPairsAndDivideSlowOnes) {
  maru_rope rope = rope_of(64, 0, MARU_ROPE_GPTJ);
  rope.factor = 40;
  rope.original_positions = 4096;
  rope.scaling = MARU_ROPE_YARN;
  const std::vector<double> scaled = frequencies_of(rope);
  for (size_t i = 0; i < 32; ++i) {
    const double plain = std::pow(10'000, -double(i) / 32);
    const double ramp = i <= 10 ? 0 : i >= 23 ? 1 : (double(i) - 10) / 13;
    EXPECT_NEAR(scaled[i], plain / 40 * ramp + plain * (1 - ramp), 1e-15) << i;
  }
  rope.flags = MARU_ROPE_YARN_EXACT_RANGE;
  EXPECT_NE(frequencies_of(rope)[11], scaled[11]);
}

TEST(Frequencies, BadFieldsAreRefusedInASentence) {
  const auto refusal = [](auto&& change) {
    maru_rope rope = rope_of(128, 0, MARU_ROPE_NEOX);
    change(rope);
    double frequencies[64];
    maru_rope_reason reason = {};
    EXPECT_EQ(maru_rope_frequencies(&rope, frequencies, 64, &reason), -EINVAL);
    return std::string(reason.text);
  };
  EXPECT_EQ(refusal([](auto& r) { r.rotary_dim = 130; }),
            "the rotary dimension is 130 of 128 elements, expected an even number up to these");
  EXPECT_EQ(refusal([](auto& r) { r.pairing = 0; }), "pairing is 0, expected MARU_ROPE_NEOX (1) or MARU_ROPE_GPTJ (2)");
  EXPECT_NE(refusal([](auto& r) { r.base = NAN; }), "");
  EXPECT_NE(refusal([](auto& r) { r.scaling = 7; }), "");
  EXPECT_NE(refusal([](auto& r) { r.scaling = MARU_ROPE_LINEAR; }), "");
  EXPECT_NE(refusal([](auto& r) { r.scaling = MARU_ROPE_LONGROPE; }), "");
  EXPECT_NE(refusal([](auto& r) { r.size = 8; }), "");
  const maru_rope rope = rope_of(128, 0, MARU_ROPE_NEOX);
  double few[63];
  EXPECT_EQ(maru_rope_frequencies(&rope, few, 63, nullptr), -ENOSPC);
  maru_rerotation keys = {};
  keys.size = sizeof(keys);
  keys.from = keys.to = few;
  keys.dtype = MARU_ROPE_FLOAT32;
  keys.layers = keys.tokens = 2;
  keys.heads = 1;
  keys.from_layer_stride = UINT64_MAX - 3;
  EXPECT_EQ(maru_rerotate(&rope, &keys, nullptr), -EOVERFLOW);
  keys.from_layer_stride = 3;
  EXPECT_EQ(maru_rerotate(&rope, &keys, nullptr), -EINVAL);
  keys.dtype = 9;
  EXPECT_EQ(maru_rerotate(&rope, &keys, nullptr), -EINVAL);
}

}  // namespace
}  // namespace maru::test
