// Products over weights in parts, against a dense reference in double precision.
#include "libmaru/adapters/placement.h"
#include "libmaru/adapters/weights.h"
#include "tests/support/random.h"

#include <cerrno>
#include <cmath>
#include <gtest/gtest.h>
#include <memory>

namespace maru::adapters {
namespace {

float small(test::Random& random) { return float(random.next() >> 40) / float(1 << 24) - 0.5f; }

// A module whose rows lie in parts, as an adapter in a pool has them, and its weights in the clear.
class Linear {
 public:
  Linear(test::Random& random, uint32_t rank, uint64_t in, uint64_t out, Element element) {
    manifest_.element = element;
    manifest_.modules = {{"m", in, out, rank, 0.75f}};
    const uint64_t head = encode_manifest(manifest_).size();
    // Short parts, so that the rows of a matrix lie in many.
    const uint64_t widest = slot_bytes_of(element, std::max(in, out));
    placement_ = *place(manifest_, element, head, std::max<uint64_t>(head, 3 * widest));
    for (const uint64_t bytes : placement_.part_bytes)
      memory_.emplace_back(new std::byte[bytes]()), parts_.push_back(memory_.back().get());
    fill(random, placement_.modules[0].a, a_);
    fill(random, placement_.modules[0].bt, bt_);
    module_ = {sizeof(module_),
               "m",
               in,
               out,
               rank,
               0.75f,
               rows_of(placement_.modules[0].a),
               rows_of(placement_.modules[0].bt)};
  }

  const maru_adapter_module& module() const { return module_; }

  // What the product is, and the sum of the magnitudes it consists of.
  struct Exact {
    double value, magnitude;
  };
  std::vector<Exact> reference(const float* x) const {
    const Module& module = manifest_.modules[0];
    std::vector<Exact> result(module.out_features, Exact{0, 0});
    for (uint32_t rank = 0; rank < module.rank; ++rank) {
      double sum = 0, magnitude = 0;
      for (uint64_t i = 0; i < module.in_features; ++i) {
        const double product = double(a_[rank * module.in_features + i]) * x[i];
        sum += product, magnitude += std::fabs(product);
      }
      for (uint64_t i = 0; i < module.out_features; ++i) {
        const double weight = double(bt_[rank * module.out_features + i]) * double(module.scaling);
        result[i].value += sum * weight, result[i].magnitude += magnitude * std::fabs(weight);
      }
    }
    return result;
  }

 private:
  void fill(test::Random& random, const RowsPlace& place, std::vector<float>& clear) {
    clear.resize(place.rows * place.columns);
    std::vector<float> row(place.columns), scratch;
    for (uint64_t at = 0; at < place.rows; ++at) {
      for (float& weight : row) weight = small(random);
      const RowsPlace::Spot spot = place.spot(at);
      std::byte* const to = memory_[spot.part].get() + spot.offset;
      if (manifest_.element == Element::kInt8) {
        compress_row(reinterpret_cast<const std::byte*>(row.data()), Element::kFloat32, place.columns, scratch, to);
      } else {
        for (uint64_t i = 0; i < place.columns; ++i) {
          uint32_t bits = std::bit_cast<uint32_t>(row[i]);
          if (manifest_.element == Element::kFloat16)
            bits = uint32_t(0x3800 + at % 7 + i % 900) | (i % 2 ? 0x8000u : 0);
          if (manifest_.element == Element::kBfloat16) bits >>= 16;
          std::memcpy(to + i * element_bytes(manifest_.element), &bits, element_bytes(manifest_.element));
        }
      }
      load_floats(to, manifest_.element, place.columns, clear.data() + at * place.columns);
    }
  }
  maru_adapter_rows rows_of(const RowsPlace& place) const {
    return {parts_.data() + place.first_part,
            place.first_offset,
            place.first_rows,
            place.rows_per_part,
            place.slot_bytes,
            place.rows,
            place.columns,
            uint32_t(manifest_.element),
            0};
  }

  Manifest manifest_;
  Placement placement_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<const void*> parts_;
  std::vector<float> a_, bt_;
  maru_adapter_module module_;
};

class Products : public ::testing::TestWithParam<uint32_t> {
 protected:
  Products() {
    const int status = maru_bgmv_create(3, GetParam(), &bgmv_);
    if (status == -EOPNOTSUPP) return;
    EXPECT_EQ(status, 0);
    EXPECT_EQ(maru_bgmv_uses(bgmv_), GetParam());
  }
  ~Products() override { maru_bgmv_free(bgmv_); }

  maru_bgmv* bgmv_ = nullptr;
};

TEST_P(Products, EqualTheDenseReference) {
  if (bgmv_ == nullptr) GTEST_SKIP() << "this processor has not these instructions";
  const uint64_t seed = test::fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  test::Random random(seed);
  for (int round = 0; round < 6; ++round) {
    // Of a base model's one module: all adapters have its sizes, each its own rank and type.
    const uint64_t in = round == 0 ? 1 : 1 + random.below(700), out = round == 1 ? 1 : 1 + random.below(1300);
    std::vector<std::unique_ptr<Linear>> linears;
    for (const uint32_t rank : {8u, 16u, 32u, 64u, 128u, 1u, uint32_t(1 + random.below(100))})
      linears.push_back(std::make_unique<Linear>(random, rank, in, out, Element(1 + random.below(4))));
    constexpr size_t kRequests = 60;
    std::vector<float> x(kRequests * in), y(kRequests * out);
    for (float& value : x) value = small(random);
    for (float& value : y) value = small(random);
    const std::vector<float> before = y;
    std::vector<maru_bgmv_request> requests;
    std::vector<const Linear*> chosen;
    for (size_t i = 0; i < kRequests; ++i) {
      // One in eight wants the base model; most of the others the first adapter, so that a group is longer than a work.
      const Linear* linear = random.one_in(8)   ? nullptr
                             : random.one_in(2) ? linears[0].get()
                                                : linears[random.below(linears.size())].get();
      chosen.push_back(linear);
      requests.push_back({linear ? &linear->module() : nullptr, &x[i * in], &y[i * out]});
    }
    ASSERT_EQ(maru_bgmv_add(bgmv_, requests.data(), requests.size()), 0);
    for (size_t i = 0; i < kRequests; ++i) {
      if (chosen[i] == nullptr) {
        for (uint64_t at = 0; at < out; ++at) ASSERT_EQ(y[i * out + at], before[i * out + at]);
        continue;
      }
      const auto exact = chosen[i]->reference(&x[i * in]);
      const double bound = 0x1p-23 * double(in + chosen[i]->module().rank + 4);
      for (uint64_t at = 0; at < out; ++at)
        ASSERT_NEAR(y[i * out + at], exact[at].value + double(before[i * out + at]),
                    bound * (exact[at].magnitude + std::fabs(before[i * out + at])))
            << "request " << i << ", column " << at << ", rank " << chosen[i]->module().rank;
    }
  }
}

TEST_P(Products, RefuseWhatIsNoModule) {
  if (bgmv_ == nullptr) GTEST_SKIP() << "this processor has not these instructions";
  test::Random random(1);
  const Linear linear(random, 8, 32, 32, Element::kFloat16);
  float x[32] = {}, y[32] = {};
  const auto with = [&](const auto& change) {
    maru_adapter_module module = linear.module();
    change(module);
    const maru_bgmv_request request = {&module, x, y};
    return maru_bgmv_add(bgmv_, &request, 1);
  };
  EXPECT_EQ(with([](maru_adapter_module&) {}), 0);
  EXPECT_EQ(with([](maru_adapter_module& module) { module.a.rows = 7; }), -EINVAL);
  EXPECT_EQ(with([](maru_adapter_module& module) { module.bt.columns = 31; }), -EINVAL);
  EXPECT_EQ(with([](maru_adapter_module& module) { module.a.dtype = 9; }), -EINVAL);
  EXPECT_EQ(with([](maru_adapter_module& module) { module.bt.parts = nullptr; }), -EINVAL);
  EXPECT_EQ(with([](maru_adapter_module& module) { module.rank = 0; }), -EINVAL);
  EXPECT_EQ(maru_bgmv_add(bgmv_, nullptr, 1), -EINVAL);
  EXPECT_EQ(maru_bgmv_add(bgmv_, nullptr, 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Instructions, Products, ::testing::Values(MARU_BGMV_PLAIN, MARU_BGMV_AVX2, MARU_BGMV_AVX512));

}  // namespace
}  // namespace maru::adapters
