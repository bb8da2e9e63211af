// What adapters in a pool cost, beside the machine's own copy, in one run.
//
//   adapter_times MARUD [QUESTION...]     acquire, register, zipf, bgmv, pools; all without one
//
//   acquire   holding an adapter of a 7B model's shapes (q, k, v, o of 32 layers), by rank and form, mapped and copied
//   register  10,000 and 100,000 adapters: time, bytes each, acquire p99, and what a second client loads
//   zipf      the share of uses that find the HOT form, beside the share of the best adapters of that number
//   bgmv      256 requests, 64 adapters, mixed ranks: one batch against loops over the adapters
//   pools     one pool for KV blocks and adapters against two halves, the same requests
#include "tests/bench/clock.h"
#include "tests/bench/marud_process.h"
#include "tests/support/adapter_folder.h"

#include <atomic>
#include <cstdio>
#include <maru/adapters.hpp>
#include <set>
#include <stdexcept>

namespace maru::bench {
namespace {

constexpr uint64_t kMiB = 1u << 20;

struct Time {
  uint64_t ms = 1'000'000;
  static uint64_t now(void* context) { return static_cast<Time*>(context)->ms; }
};

template <typename T>
T must_have(AdapterAnswer<T> answer, const char* what) {
  if (!answer.ok())
    throw std::runtime_error(std::string(what) + ": " + std::string(answer.reason()) + " (" +
                             std::to_string(answer.error()) + ")");
  return std::move(*answer);
}
void must_be(const AdapterAnswer<void>& answer, const char* what) {
  if (!answer.ok()) throw std::runtime_error(std::string(what) + ": " + std::string(answer.reason()));
}

maru_adapters_options options_at(const std::string& path, Time* time = nullptr) {
  maru_adapters_options options = {};
  options.size = sizeof(options);
  options.register_path = path.c_str();
  options.hot_bytes_max = options.warm_bytes_max = 1ull << 40;
  if (time != nullptr) options.now_ms = Time::now, options.now_context = time;
  return options;
}

// Processor time of this thread: others may have the processor meanwhile. For work of one thread alone.
uint64_t own_ns() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return uint64_t(time.tv_sec) * 1'000'000'000 + uint64_t(time.tv_nsec);
}

uint64_t p99(std::vector<uint64_t>& values) {
  std::ranges::sort(values);
  return values[values.size() * 99 / 100];
}
double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// q, k, v, o of a 7B model: [rank, 4096] and [4096, rank]. Written without a loop over each weight.
void write_large(const std::string& folder, uint32_t rank) {
  test::AdapterWish wish;
  wish.rank = rank, wish.layers = 32;
  wish.modules = {{"q_proj", 4096, 4096}, {"k_proj", 4096, 4096}, {"v_proj", 4096, 4096}, {"o_proj", 4096, 4096}};
  test::TensorsFile file;
  std::string block(2 * uint64_t{rank} * 4096, 0);
  for (uint64_t i = 0; i < block.size(); i += 2) block[i] = char(i * 37 >> 3), block[i + 1] = char(0x20 + (i >> 5) % 8);
  std::string tensors;
  for (uint32_t layer = 0; layer < wish.layers; ++layer)
    for (const auto& linear : wish.modules) {
      const std::string path = "base_model.model." + test::module_path(layer, linear.name);
      file.header[path + ".lora_A.weight"] = {
          {"dtype", "F16"}, {"shape", {rank, 4096}}, {"data_offsets", {tensors.size(), tensors.size() + block.size()}}};
      tensors += block;
      file.header[path + ".lora_B.weight"] = {
          {"dtype", "F16"}, {"shape", {4096, rank}}, {"data_offsets", {tensors.size(), tensors.size() + block.size()}}};
      tensors += block;
    }
  file.data = std::move(tensors);
  test::write_adapter(folder, test::config_of(wish), file.bytes());
}

// The best of some copies of so many bytes into memory that is there.
double copy_ns(uint64_t bytes) {
  const std::vector<char> from(bytes, 3);
  std::vector<char> to(bytes, 1);
  double best = 1e18;
  for (int i = 0; i < 5; ++i) {
    const uint64_t started = own_ns();
    std::memcpy(to.data(), from.data(), bytes);
    keep(to[bytes / 2]);
    best = std::min(best, double(own_ns() - started));
  }
  return best;
}

double copied_ns(const Adapter& adapter, bool as_floats) {
  std::vector<float> memory(128 * 4096);
  const uint64_t started = own_ns();
  for (size_t number = 0; number < adapter.modules(); ++number) {
    const maru_adapter_module module = must_have(adapter.module(number), "module");
    for (const uint32_t matrix : {MARU_ADAPTER_A, MARU_ADAPTER_B}) {
      const uint64_t count = module.rank * (matrix == MARU_ADAPTER_A ? module.in_features : module.out_features);
      must(maru_adapter_copy(adapter.get(), number, matrix, as_floats ? uint32_t{MARU_ADAPTER_FLOAT32} : module.a.dtype,
                             memory.data(), count * (as_floats ? 4 : 2)),
           "copy");
    }
  }
  return double(own_ns() - started);
}

void acquire_times(const std::string& marud) {
  const MarudProcess process(marud, {.pages = 512, .page_bytes = 2 * kMiB, .region_bytes = 64 * kMiB});
  const Client client(process.socket_path());
  const std::string path = process.directory() + "/register";
  const maru_adapters_options options = options_at(path);
  const Adapters adapters = must_have(Adapters::open(client, &options), "open");
  std::printf(
      "acquire: rank, MiB of the file, then in us of processor time: HOT mapped, WARM mapped, HOT copied, WARM copied "
      "as floats, COLD "
      "(page cache) to HOT, "
      "COLD to WARM, and one copy of the file's bytes\n");
  for (const uint32_t rank : {8u, 16u, 32u, 64u}) {
    const std::string name = "rank" + std::to_string(rank), folder = process.directory() + "/" + name;
    write_large(folder, rank);
    must_be(adapters.load(name, folder), "load");
    std::vector<double> cold_hot, cold_warm, hot, warm, hot_copied, warm_copied;
    for (int round = 0; round < 5; ++round) {
      const auto timed = [&](maru_adapter_want want) {
        const uint64_t started = own_ns();
        const Adapter adapter = must_have(adapters.acquire(name, want), "acquire");
        return double(own_ns() - started);
      };
      cold_warm.push_back(timed(MARU_ADAPTER_ANY));
      for (int i = 0; i < 20; ++i) warm.push_back(timed(MARU_ADAPTER_ANY));
      warm_copied.push_back(copied_ns(must_have(adapters.acquire(name), "acquire"), true));
      cold_hot.push_back(timed(MARU_ADAPTER_EXACT));
      for (int i = 0; i < 20; ++i) hot.push_back(timed(MARU_ADAPTER_EXACT));
      hot_copied.push_back(copied_ns(must_have(adapters.acquire(name, MARU_ADAPTER_EXACT), "acquire"), false));
      must_be(adapters.unload(name), "unload");
      must_be(adapters.load(name, folder, MARU_ADAPTERS_LOAD_LAZY), "load");
    }
    const uint64_t bytes = uint64_t{rank} * 2 * kMiB;
    std::printf("acquire: %3u %4llu  %6.1f %6.1f  %9.0f %9.0f  %9.0f %9.0f  %8.0f\n", rank,
                static_cast<unsigned long long>(bytes / kMiB), median(hot) / 1e3, median(warm) / 1e3,
                median(hot_copied) / 1e3, median(warm_copied) / 1e3, median(cold_hot) / 1e3, median(cold_warm) / 1e3,
                copy_ns(bytes) / 1e3);
    std::filesystem::remove_all(folder);
  }
}

void register_times(const std::string& marud) {
  const MarudProcess process(marud, {.pages = 16384, .region_bytes = 4 * kMiB});
  const Client client(process.socket_path()), second_client(process.socket_path());
  constexpr uint64_t kFolders = 1000;
  for (uint64_t i = 0; i < kFolders; ++i) {
    test::AdapterWish wish;
    wish.seed = i + 1, wish.layers = 1;
    test::write_adapter(process.directory() + "/" + std::to_string(i), wish);
  }
  for (const uint64_t count : {10'000, 100'000}) {
    const std::string path = process.directory() + "/register" + std::to_string(count);
    maru_adapters_options options = options_at(path);
    options.entries_max = uint32_t(count);
    options.warm_adapters_max = 1'000'000;
    const Adapters adapters = must_have(Adapters::open(client, &options), "open");
    const uint64_t started = now_ns();
    for (uint64_t i = 0; i < count; ++i)
      must_be(adapters.load("adapter-" + std::to_string(i), process.directory() + "/" + std::to_string(i % kFolders),
                            MARU_ADAPTERS_LOAD_LAZY),
              "load");
    const double load_us = double(now_ns() - started) / double(count) / 1e3;
    test::Random random(7);
    std::vector<uint64_t> times;
    std::vector<std::string> chosen;
    for (int i = 0; i < 1000; ++i) {
      chosen.push_back("adapter-" + std::to_string(random.below(count)));
      const Adapter adapter = must_have(adapters.acquire(chosen.back()), "acquire");
    }
    for (int round = 0; round < 20; ++round)
      for (const std::string& name : chosen) {
        const uint64_t before = now_ns();
        const Adapter adapter = must_have(adapters.acquire(name), "acquire");
        times.push_back(now_ns() - before);
      }
    const Adapters second = must_have(Adapters::open(second_client, &options), "open");
    const maru_adapters_statistics before = must_have(second.statistics(), "statistics");
    for (const std::string& name : chosen) const Adapter adapter = must_have(second.acquire(name), "acquire");
    const maru_adapters_statistics after = must_have(second.statistics(), "statistics");
    std::printf(
        "register: %6llu adapters, %.1f us to load each (headers alone), %.0f bytes of the register each, acquire p99 "
        "%.1f us; a second "
        "client loads %llu bytes for %zu acquires\n",
        static_cast<unsigned long long>(count), load_us, double(after.register_bytes) / double(count),
        double(p99(times)) / 1e3, static_cast<unsigned long long>(after.loaded_bytes - before.loaded_bytes),
        chosen.size());
  }
}

// Zipf: the chance of number i is proportional to 1 / (i + 1)^s.
class Zipf {
 public:
  Zipf(uint64_t n, double s) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i) sums_.push_back(sum += std::pow(double(i + 1), -s));
  }
  uint64_t draw(test::Random& random) const {
    const double at = double(random.next() >> 11) * 0x1p-53 * sums_.back();
    return uint64_t(std::ranges::upper_bound(sums_, at) - sums_.begin());
  }
  double share_of_first(uint64_t n) const { return sums_[n - 1] / sums_.back(); }

 private:
  std::vector<double> sums_;
};

void zipf_ratio(const std::string& marud) {
  const MarudProcess process(marud, {.pages = 32768, .region_bytes = 4 * kMiB});
  const Client client(process.socket_path());
  constexpr uint64_t kAdapters = 2000;
  constexpr double kSkew = 1.2;
  for (uint64_t i = 0; i < kAdapters; ++i) {
    test::AdapterWish wish;
    wish.seed = i + 1, wish.layers = 1;
    test::write_adapter(process.directory() + "/" + std::to_string(i), wish);
  }
  for (const uint32_t budget : {100u, 400u}) {
    Time time;
    const std::string path = process.directory() + "/register" + std::to_string(budget);
    maru_adapters_options options = options_at(path, &time);
    options.hot_adapters_max = budget;
    options.warm_adapters_max = kAdapters;
    const Adapters adapters = must_have(Adapters::open(client, &options), "open");
    for (uint64_t i = 0; i < kAdapters; ++i)
      must_be(adapters.load(std::to_string(i), process.directory() + "/" + std::to_string(i), MARU_ADAPTERS_LOAD_LAZY),
              "load");
    const Zipf zipf(kAdapters, kSkew);
    test::Random random(11);
    constexpr uint64_t kUses = 400'000, kUsesASecond = 1000;
    maru_adapters_statistics warmed = {};
    uint64_t moves = 0;
    for (uint64_t use = 0; use < kUses; ++use) {
      if (use % kUsesASecond == 0) time.ms += 1000;
      if (use % (5 * kUsesASecond) == 0) moves += uint64_t(must_have(adapters.rebalance(64), "rebalance"));
      if (use == kUses / 4) warmed = must_have(adapters.statistics(), "statistics"), moves = 0;
      const Adapter adapter = must_have(adapters.acquire(std::to_string(zipf.draw(random))), "acquire");
    }
    const maru_adapters_statistics end = must_have(adapters.statistics(), "statistics");
    const double hot = double(end.acquires_hot - warmed.acquires_hot);
    const double all =
        hot + double(end.acquires_warm - warmed.acquires_warm) + double(end.acquires_cold - warmed.acquires_cold);
    std::printf(
        "zipf: %llu adapters, s %.1f, HOT budget %u: %.1f %% of uses find HOT; the first %u have %.1f %% of uses; %.2f "
        "moves a second\n",
        static_cast<unsigned long long>(kAdapters), kSkew, budget, 100 * hot / all, budget,
        100 * zipf.share_of_first(budget), double(moves) / (0.75 * double(kUses / kUsesASecond)));
  }
}

// A linear module's adapters for the products, in the clear memory of this process.
struct Products {
  static constexpr uint64_t kFeatures = 4096;
  std::vector<std::vector<uint16_t>> halves;
  std::vector<std::vector<float>> floats;
  std::vector<const void*> parts, float_parts;
  std::vector<maru_adapter_module> modules, float_modules;

  Products(uint32_t adapters, test::Random& random) {
    halves.resize(adapters), floats.resize(adapters), parts.resize(adapters), float_parts.resize(adapters);
    for (uint32_t i = 0; i < adapters; ++i) {
      const uint32_t rank = 8u << random.below(5);
      halves[i].resize(2 * rank * kFeatures);
      for (uint16_t& half : halves[i]) half = uint16_t(0x2000 + random.below(0x800) + (random.below(2) << 15));
      floats[i].resize(halves[i].size());
      parts[i] = halves[i].data(), float_parts[i] = floats[i].data();
      const auto rows = [&](const void* const* part, uint64_t bytes, uint64_t first, uint32_t dtype) {
        return maru_adapter_rows{part, first * kFeatures * bytes, rank, rank, kFeatures * bytes, rank, kFeatures, dtype,
                                 0};
      };
      modules.push_back({sizeof(maru_adapter_module), "m", kFeatures, kFeatures, rank, 0.5f,
                         rows(&parts[i], 2, 0, MARU_ADAPTER_FLOAT16), rows(&parts[i], 2, rank, MARU_ADAPTER_FLOAT16)});
      float_modules.push_back({sizeof(maru_adapter_module), "m", kFeatures, kFeatures, rank, 0.5f,
                               rows(&float_parts[i], 4, 0, MARU_ADAPTER_FLOAT32),
                               rows(&float_parts[i], 4, rank, MARU_ADAPTER_FLOAT32)});
    }
  }
};

float half_to_float(uint16_t half) {
  return std::bit_cast<float>(uint32_t(half & 0x8000) << 16 | ((uint32_t(half & 0x7FFF) << 13) + 0x3800'0000));
}

void bgmv_ratio() {
  constexpr uint32_t kRequests = 256, kAdapters = 64;
  constexpr uint64_t kFeatures = Products::kFeatures;
  test::Random random(5);
  Products products(kAdapters, random);
  std::vector<float> x(kRequests * kFeatures, 0.25f), y(kRequests * kFeatures);
  std::vector<uint32_t> chosen(kRequests);
  for (uint32_t i = 0; i < kRequests; ++i) chosen[i] = i < kAdapters ? i : uint32_t(random.below(kAdapters));
  const auto requests_of = [&](const std::vector<maru_adapter_module>& modules) {
    std::vector<maru_bgmv_request> requests;
    for (uint32_t i = 0; i < kRequests; ++i)
      requests.push_back({&modules[chosen[i]], &x[i * kFeatures], &y[i * kFeatures]});
    return requests;
  };
  const std::vector<maru_bgmv_request> requests = requests_of(products.modules),
                                       float_requests = requests_of(products.float_modules);
  const Bgmv all = must_have(Bgmv::create(0), "bgmv"), one = must_have(Bgmv::create(1), "bgmv");
  const auto batch = [&] { must_be(all.add(requests), "add"); };
  // A loop over the adapters, and for each over its requests, with these same instructions.
  const auto loop = [&](const std::vector<maru_bgmv_request>& given) {
    for (uint32_t adapter = 0; adapter < kAdapters; ++adapter)
      for (uint32_t i = 0; i < kRequests; ++i)
        if (chosen[i] == adapter) must_be(one.add(std::span(&given[i], 1)), "add");
  };
  // The loop of a program without kernels for halves: each adapter's matrices become dense floats, and are then multiplied.
  const auto dense_loop = [&] {
    for (uint32_t adapter = 0; adapter < kAdapters; ++adapter)
      for (size_t i = 0; i < products.halves[adapter].size(); ++i)
        products.floats[adapter][i] = half_to_float(products.halves[adapter][i]);
    loop(float_requests);
  };
  std::vector<double> batches, ones, loops, dense;
  for (int round = 0; round < 9; ++round) {
    const auto timed = [](const auto& call) {
      const uint64_t started = own_ns();
      call();
      return double(own_ns() - started);
    };
    const uint64_t started = now_ns();
    batch();
    batches.push_back(double(now_ns() - started));
    ones.push_back(timed([&] { must_be(one.add(requests), "add"); }));
    loops.push_back(timed([&] { loop(requests); }));
    dense.push_back(timed(dense_loop));
  }
  const char* const names[] = {"", "plain", "AVX2", "AVX-512"};
  std::printf(
      "bgmv: %u requests, %u adapters, ranks 8 to 128, %llu features, %s. Processor time of one thread: batch %.2f ms; "
      "loop over "
      "adapters %.2f ms (%.1f x), with dense floats made of each adapter %.2f ms (%.1f x). All threads, by the clock: "
      "%.2f ms\n",
      kRequests, kAdapters, static_cast<unsigned long long>(kFeatures), names[maru_bgmv_uses(all.get())],
      median(ones) / 1e6, median(loops) / 1e6, median(loops) / median(ones), median(dense) / 1e6,
      median(dense) / median(ones), median(batches) / 1e6);
}

// Requests for KV blocks and for adapters whose mix changes: hits in one pool, and in two pools of half the size.
constexpr uint64_t kBlockBytes = 16384;
struct Found {
  uint64_t kv = 0, adapters = 0;
};
Found serve(maru_client* kv_client, const Adapters& adapters, Time& time, uint64_t kv_keys, uint64_t adapter_count) {
  Found found;
  test::Random random(3);
  const Zipf kv(kv_keys, 0.8), popular(adapter_count, 0.8);
  const std::vector<char> payload(kBlockBytes, 1);
  for (uint64_t i = 0; i < 160'000; ++i) {
    if (i % 100 == 0) time.ms += 1000;
    const bool is_kv_time = i / 40'000 % 2 == 0;
    if (random.below(10) < (is_kv_time ? 9u : 1u)) {
      const std::string text = "kv " + std::to_string(kv.draw(random));
      const maru_key key = {text.data(), uint32_t(text.size()), MARU_KEY_BYTES, 0};
      maru_view view = {};
      if (maru_retrieve(kv_client, &key, &view) == 0) {
        ++found.kv;
        maru_release(kv_client, &view);
      } else {
        (void)maru_store_copy(kv_client, &key, payload.data(), payload.size(), nullptr, nullptr);
      }
    } else {
      const maru_adapters_statistics before = must_have(adapters.statistics(), "statistics");
      const AdapterAnswer<Adapter> adapter = adapters.acquire(std::to_string(popular.draw(random)), MARU_ADAPTER_EXACT);
      const maru_adapters_statistics after = must_have(adapters.statistics(), "statistics");
      found.adapters += adapter.ok() && after.loads == before.loads;
    }
  }
  return found;
}

void pool_gain(const std::string& marud) {
  constexpr uint64_t kHalfPages = 8192, kAdapters = 3000, kKeys = 20'000;
  // Each pool has 128 MiB beside its pages (marud_process.h), so that one of twice the bytes has more than twice the pages.
  constexpr uint64_t kWholePages = 2 * kHalfPages + 128 * kMiB / (kSmallPageBytes + 320);
  const auto run = [&](bool is_one) {
    const uint64_t pages = is_one ? kWholePages : kHalfPages;
    const MarudProcess process(marud, {.pages = pages, .region_bytes = kMiB}),
        other(marud, {.pages = pages, .region_bytes = kMiB});
    const Client client(process.socket_path()), other_client(other.socket_path());
    for (uint64_t i = 0; i < kAdapters; ++i) {
      test::AdapterWish wish;
      wish.seed = i + 1, wish.layers = 1, wish.rank = 32, wish.modules = {{"q_proj", 512, 512}};
      test::write_adapter(process.directory() + "/" + std::to_string(i), wish);
    }
    Time time;
    const std::string path = process.directory() + "/register";
    maru_adapters_options options = options_at(path, &time);
    options.hot_adapters_max = kAdapters;
    options.part_bytes = kBlockBytes;  // as S-LoRA has it: pages of one size for both
    const Adapters adapters = must_have(Adapters::open(is_one ? client : other_client, &options), "open");
    for (uint64_t i = 0; i < kAdapters; ++i)
      must_be(adapters.load(std::to_string(i), process.directory() + "/" + std::to_string(i), MARU_ADAPTERS_LOAD_LAZY),
              "load");
    return serve(client, adapters, time, kKeys, kAdapters);
  };
  const Found one = run(true), halves = run(false);
  const auto print = [](const char* what, const Found& found) {
    std::printf("pools: %-10s %6llu KV blocks and %6llu adapters found, %6llu in all\n", what,
                static_cast<unsigned long long>(found.kv), static_cast<unsigned long long>(found.adapters),
                static_cast<unsigned long long>(found.kv + found.adapters));
  };
  print("one pool", one);
  print("two halves", halves);
}

void run(const std::string& marud, std::set<std::string> wanted) {
  if (wanted.empty()) wanted = {"acquire", "register", "zipf", "bgmv", "pools"};
  if (wanted.contains("acquire")) acquire_times(marud);
  if (wanted.contains("register")) register_times(marud);
  if (wanted.contains("zipf")) zipf_ratio(marud);
  if (wanted.contains("bgmv")) bgmv_ratio();
  if (wanted.contains("pools")) pool_gain(marud);
}

}  // namespace
}  // namespace maru::bench

int main(int count, char** arguments) {
  if (count < 2) return std::fprintf(stderr, "adapter_times MARUD [QUESTION...]\n"), 2;
  try {
    maru::bench::run(arguments[1], {arguments + 2, arguments + count});
    return 0;
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "adapter_times: %s\n", exception.what());
    return 1;
  }
}
