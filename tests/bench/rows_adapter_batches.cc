// LoRA adapters under load: products of a batch, the share of uses that find the HOT form, one pool for blocks and adapters.
#include "tests/bench/adapter_rows.h"
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/suite.h"

#include <bit>
#include <cmath>

namespace maru::bench {

namespace {

constexpr uint64_t kMiB = 1u << 20;

using test::Random;

// Adapters of one linear module, in the clear memory of this process.
class Products {
 public:
  static constexpr uint32_t kRequests = 256, kAdapters = 64;

  Products() : x_(kRequests * kFeatures, 0.25f), y_(kRequests * kFeatures), chosen_(kRequests) {
    Random random(5);
    halves_.resize(kAdapters), floats_.resize(kAdapters), parts_.resize(kAdapters), float_parts_.resize(kAdapters);
    for (uint32_t i = 0; i < kAdapters; ++i) {
      const uint32_t rank = 8u << random.below(5);
      halves_[i].resize(2 * rank * kFeatures);
      for (uint16_t& half : halves_[i]) half = uint16_t(0x2000 + random.below(0x800) + (random.below(2) << 15));
      floats_[i].resize(halves_[i].size());
      parts_[i] = halves_[i].data(), float_parts_[i] = floats_[i].data();
      modules_.push_back(module_of(&parts_[i], rank, 2, MARU_ADAPTER_FLOAT16));
      float_modules_.push_back(module_of(&float_parts_[i], rank, 4, MARU_ADAPTER_FLOAT32));
    }
    for (uint32_t i = 0; i < kRequests; ++i) chosen_[i] = i < kAdapters ? i : uint32_t(random.below(kAdapters));
    for (uint32_t i = 0; i < kRequests; ++i) {
      requests_.push_back({&modules_[chosen_[i]], &x_[i * kFeatures], &y_[i * kFeatures]});
      float_requests_.push_back({&float_modules_[chosen_[i]], &x_[i * kFeatures], &y_[i * kFeatures]});
    }
  }

  // One call for all requests, one thread.
  double batch() const {
    return timed([&] { must_have(bgmv_.add(requests_), "add"); });
  }
  // For each adapter, for each of its requests, with the same instructions.
  double loop() const {
    return timed([&] { loop_over(requests_); });
  }
  // The loop of a program without kernels for halves: each adapter's matrices become dense floats, and are then multiplied.
  double dense_loop() {
    return timed([&] {
      for (uint32_t adapter = 0; adapter < kAdapters; ++adapter)
        for (size_t i = 0; i < halves_[adapter].size(); ++i) floats_[adapter][i] = float_of(halves_[adapter][i]);
      loop_over(float_requests_);
    });
  }

 private:
  static constexpr uint64_t kFeatures = 4096;

  static maru_adapter_module module_of(const void* const* part, uint32_t rank, uint64_t bytes, uint32_t dtype) {
    const auto rows = [&](uint64_t first) {
      return maru_adapter_rows{part, first * kFeatures * bytes, rank, rank, kFeatures * bytes, rank, kFeatures, dtype,
                               0};
    };
    return {sizeof(maru_adapter_module), "m", kFeatures, kFeatures, rank, 0.5f, rows(0), rows(rank)};
  }
  static float float_of(uint16_t half) {
    return std::bit_cast<float>(uint32_t(half & 0x8000) << 16 | ((uint32_t(half & 0x7FFF) << 13) + 0x3800'0000));
  }
  template <typename Call>
  static double timed(const Call& call) {
    const uint64_t started_ns = now_ns();
    call();
    return double(now_ns() - started_ns) / kRequests;
  }
  void loop_over(const std::vector<maru_bgmv_request>& given) const {
    for (uint32_t adapter = 0; adapter < kAdapters; ++adapter)
      for (uint32_t i = 0; i < kRequests; ++i)
        if (chosen_[i] == adapter) must_have(bgmv_.add(std::span(&given[i], 1)), "add");
  }

  const Bgmv bgmv_ = must_have(Bgmv::create(1), "bgmv");
  std::vector<float> x_, y_;
  std::vector<uint32_t> chosen_;
  std::vector<std::vector<uint16_t>> halves_;
  std::vector<std::vector<float>> floats_;
  std::vector<const void*> parts_, float_parts_;
  std::vector<maru_adapter_module> modules_, float_modules_;
  std::vector<maru_bgmv_request> requests_, float_requests_;
};

void product_rows(Suite& suite) {
  if (!suite.wants("adapter_batch256") && !suite.wants("adapter_batch256_kernels")) return;
  Products products;
  const Contestant batch = {"value", [&] { return products.batch(); }};
  if (suite.wants("adapter_batch256"))
    suite.measure("adapter_batch256", {batch, {"floor", [&] { return products.dense_loop(); }}}, {});
  if (suite.wants("adapter_batch256_kernels"))
    suite.measure("adapter_batch256_kernels", {batch, {"floor", [&] { return products.loop(); }}}, {});
}

// The chance of number i is proportional to 1 / (i + 1)^skew.
class Zipf {
 public:
  Zipf(uint64_t n, double skew) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i) sums_.push_back(sum += std::pow(double(i + 1), -skew));
  }
  uint64_t draw(Random& random) const {
    const double at = double(random.next() >> 11) * 0x1p-53 * sums_.back();
    return uint64_t(std::ranges::upper_bound(sums_, at) - sums_.begin());
  }
  double share_of_first(uint64_t n) const { return sums_[n - 1] / sums_.back(); }

 private:
  std::vector<double> sums_;
};

void write_small_adapters(const std::string& directory, uint64_t count, const test::AdapterWish& wish) {
  for (uint64_t i = 0; i < count; ++i) {
    test::AdapterWish own = wish;
    own.seed = i + 1;
    test::write_adapter(directory + "/" + std::to_string(i), own);
  }
}
void load_all(const Adapters& adapters, const std::string& directory, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i)
    must_have(adapters.load(std::to_string(i), directory + "/" + std::to_string(i), MARU_ADAPTERS_LOAD_LAZY), "load");
}

// Percent of uses that find the HOT form, once the register has settled.
void zipf_row(Suite& suite) {
  if (!suite.wants("adapter_zipf_hot")) return;
  constexpr uint64_t kAdapters = 2000, kBudget = 400, kUsesASecond = 1000;
  const MarudProcess process(suite.options().marud, {.pages = 32768, .region_bytes = 4 * kMiB});
  const Client client(process.socket_path());
  test::AdapterWish wish;
  wish.layers = 1;
  write_small_adapters(process.directory(), kAdapters, wish);
  AdapterClock clock;
  const std::string path = process.directory() + "/register";
  maru_adapters_options options = adapters_options_at(path, &clock);
  options.hot_adapters_max = kBudget, options.warm_adapters_max = kAdapters;
  const Adapters adapters = must_have(Adapters::open(client, &options), "open");
  load_all(adapters, process.directory(), kAdapters);
  const Zipf zipf(kAdapters, 1.2);
  Random random(11);
  const auto sample = [&] {
    const maru_adapters_statistics before = must_have(adapters.statistics(), "statistics");
    constexpr uint64_t kUses = 80'000;  // longer than forms stay whatever happens, also when quick
    for (uint64_t use = 0; use < kUses; ++use) {
      if (use % kUsesASecond == 0) clock.ms += 1000;
      if (use % (5 * kUsesASecond) == 0) must_have(adapters.rebalance(64), "rebalance");
      const Adapter adapter = must_have(adapters.acquire(std::to_string(zipf.draw(random))), "acquire");
    }
    const maru_adapters_statistics after = must_have(adapters.statistics(), "statistics");
    return 100 * double(after.acquires_hot - before.acquires_hot) / double(kUses);
  };
  suite.measure("adapter_zipf_hot", {{"value", sample}, {"floor", [&] { return 100 * zipf.share_of_first(kBudget); }}},
                facts_of(client.geometry(), kAdapters));
}

// Requests for KV blocks and for adapters whose mix changes: what is found in one pool, and in two pools of half the size.
class Mixed {
 public:
  static constexpr uint64_t kBlockBytes = 16384, kHalfPages = 8192, kAdapters = 3000, kKeys = 20'000;

  explicit Mixed(const std::string& marud) : marud_(marud) {}

  double found(bool in_one) const {
    // Each pool has 128 MiB beside its pages (marud_process.cc), so that one of twice the bytes has more than twice the pages.
    constexpr uint64_t kWholePages = 2 * kHalfPages + 128 * kMiB / (kSmallPageBytes + 320);
    const PoolShape shape = {.pages = in_one ? kWholePages : kHalfPages, .region_bytes = kMiB};
    const MarudProcess process(marud_, shape), other(marud_, shape);
    const Client client(process.socket_path()), other_client(other.socket_path());
    test::AdapterWish wish;
    wish.layers = 1, wish.rank = 32, wish.modules = {{"q_proj", 512, 512}};
    write_small_adapters(process.directory(), kAdapters, wish);
    AdapterClock clock;
    const std::string path = process.directory() + "/register";
    maru_adapters_options options = adapters_options_at(path, &clock);
    options.hot_adapters_max = kAdapters;
    options.part_bytes = kBlockBytes;  // as S-LoRA has it: pages of one size for both
    const Adapters adapters = must_have(Adapters::open(in_one ? client : other_client, &options), "open");
    load_all(adapters, process.directory(), kAdapters);
    return serve(client, adapters, clock);
  }

 private:
  static double serve(maru_client* client, const Adapters& adapters, AdapterClock& clock) {
    uint64_t found = 0;
    Random random(3);
    const Zipf kv(kKeys, 0.8), popular(kAdapters, 0.8);
    const std::vector<char> payload(kBlockBytes, 1);
    for (uint64_t i = 0; i < 160'000; ++i) {
      if (i % 100 == 0) clock.ms += 1000;
      const bool is_kv_time = i / 40'000 % 2 == 0;
      if (random.below(10) < (is_kv_time ? 9u : 1u)) {
        const std::string text = "kv " + std::to_string(kv.draw(random));
        const maru_key key = {text.data(), uint32_t(text.size()), MARU_KEY_BYTES, 0};
        maru_view view = {};
        if (maru_retrieve(client, &key, &view) == 0)
          ++found, maru_release(client, &view);
        else
          (void)maru_store_copy(client, &key, payload.data(), payload.size(), nullptr, nullptr);
      } else {
        const uint64_t before = must_have(adapters.statistics(), "statistics").loads;
        const bool is_there = adapters.acquire(std::to_string(popular.draw(random)), MARU_ADAPTER_EXACT).ok();
        found += is_there && must_have(adapters.statistics(), "statistics").loads == before;
      }
    }
    return double(found);
  }

  const std::string marud_;
};

void pool_row(Suite& suite) {
  if (!suite.wants("adapter_one_pool")) return;
  // The same requests each time, so one run each says it all.
  const Mixed mixed(suite.options().marud);
  const double one = mixed.found(true), halves = mixed.found(false);
  suite.measure("adapter_one_pool", {{"value", [&] { return one; }}, {"floor", [&] { return halves; }}}, {});
}

}  // namespace

void adapter_batch_rows(Suite& suite) {
  product_rows(suite);
  zipf_row(suite);
  pool_row(suite);
}

}  // namespace maru::bench
