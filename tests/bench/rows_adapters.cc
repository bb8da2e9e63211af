// LoRA adapters: holding one, copying its weights out, making its forms from the file, and a register of many.
//
// The shapes are q, k, v and o of 32 layers of a 7B model, rank 16: 32 MiB of halves.
#include "tests/bench/adapter_rows.h"
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/suite.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace maru::bench {

namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint32_t kRank = 16;
constexpr uint64_t kFeatures = 4096, kModules = 128;
constexpr uint64_t kWeights = 2 * kRank * kFeatures * kModules;

// Written without a loop over each weight.
void write_large(const std::string& folder) {
  test::AdapterWish wish;
  wish.rank = kRank, wish.layers = 32;
  wish.modules = {{"q_proj", kFeatures, kFeatures},
                  {"k_proj", kFeatures, kFeatures},
                  {"v_proj", kFeatures, kFeatures},
                  {"o_proj", kFeatures, kFeatures}};
  test::TensorsFile file;
  std::string block(2 * kRank * kFeatures, 0);
  for (uint64_t i = 0; i < block.size(); i += 2) block[i] = char(i * 37 >> 3), block[i + 1] = char(0x20 + (i >> 5) % 8);
  for (uint32_t layer = 0; layer < wish.layers; ++layer)
    for (const auto& linear : wish.modules) {
      const std::string path = "base_model.model." + test::module_path(layer, linear.name);
      file.add(path + ".lora_A.weight", "F16", {kRank, kFeatures}, block);
      file.add(path + ".lora_B.weight", "F16", {kFeatures, kRank}, block);
    }
  test::write_adapter(folder, test::config_of(wish), file.bytes());
}

// One adapter, and what the rows do with it.
class Large {
 public:
  explicit Large(const std::string& marud)
      : process_(marud, {.pages = 256, .page_bytes = 2 * kMiB, .region_bytes = 64 * kMiB}),
        client_(process_.socket_path()) {
    folder_ = process_.directory() + "/large";
    write_large(folder_);
    path_ = process_.directory() + "/register";
    options_ = adapters_options_at(path_);
    adapters_.emplace(must_have(Adapters::open(client_, &options_), "open"));
    must_have(adapters_->load("large", folder_, MARU_ADAPTERS_LOAD_LAZY), "load");
  }

  const Client& client() const { return client_; }
  Adapter acquire(uint32_t want) const {
    return must_have(adapters_->acquire("large", maru_adapter_want(want)), "acquire");
  }
  // So that the next acquire finds the file alone.
  void make_cold() const {
    must_have(adapters_->unload("large"), "unload");
    must_have(adapters_->load("large", folder_, MARU_ADAPTERS_LOAD_LAZY), "load");
  }

  double hold(uint32_t want, uint64_t count) const {
    return typical_ns(count, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) const Adapter adapter = acquire(want);
    });
  }
  // The same blocks by maru.h alone: a prefix found and pinned, its addresses, its end.
  double hold_blocks(uint32_t want, uint64_t count) const {
    const maru_adapter_info info = must_have(acquire(want).info(), "info");
    const uint64_t parts = want == MARU_ADAPTER_EXACT ? info.hot_parts : info.warm_parts;
    std::vector<std::string> texts;
    std::vector<maru_key> keys;
    for (uint64_t i = 0; i < parts; ++i) texts.push_back("part " + std::to_string(want) + " " + std::to_string(i));
    maru_block parent = 0;
    for (const std::string& text : texts) {
      keys.push_back({text.data(), uint32_t(text.size()), MARU_KEY_BYTES, 0});
      maru_store_options options = {};
      options.size = sizeof(options), options.parent = parent;
      must(maru_store_copy(client_, &keys.back(), "x", 1, &options, &parent), "store");
    }
    std::vector<maru_view> views(parts);
    const double ns = typical_ns(count, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) {
        maru_match match = {};
        must(maru_match_prefix(client_, keys.data(), keys.size(), &match), "match");
        must(maru_resolve(client_, &match, keys.data(), keys.size(), views.data()), "resolve");
        maru_release_match(client_, &match);
      }
    });
    for (size_t i = keys.size(); i-- > 0;) must(maru_delete(client_, &keys[i]), "delete");
    return ns;
  }

  // All matrices into memory of one, nanoseconds.
  double copy_out(uint32_t want, bool as_floats) const {
    const Adapter adapter = acquire(want);
    const uint64_t started_ns = now_ns();
    for (size_t number = 0; number < adapter.modules(); ++number)
      for (const uint32_t matrix : {MARU_ADAPTER_A, MARU_ADAPTER_B})
        must(maru_adapter_copy(adapter.get(), number, matrix,
                               as_floats ? uint32_t{MARU_ADAPTER_FLOAT32} : uint32_t{MARU_ADAPTER_FLOAT16}, out_.data(),
                               kRank * kFeatures * (as_floats ? 4 : 2)),
             "copy");
    return double(now_ns() - started_ns);
  }
  // As many bytes from as many places, into memory of one.
  double copy_plainly(bool as_floats) const {
    const uint64_t bytes = kRank * kFeatures * (as_floats ? 4 : 2);
    const uint64_t started_ns = now_ns();
    for (uint64_t i = 0; i < 2 * kModules; ++i) {
      std::memcpy(out_.data(), from_.data() + i * bytes, bytes);
      keep(out_.data()[bytes / 2]);
    }
    return double(now_ns() - started_ns);
  }

  double load(uint32_t want) const {
    make_cold();
    const uint64_t started_ns = now_ns();
    const Adapter adapter = acquire(want);
    return double(now_ns() - started_ns);
  }
  // The same file from the page cache into memory that is there, with one read: what the device takes, and one copy.
  double read_file() const {
    const int fd = ::open((folder_ + "/adapter_model.safetensors").c_str(), O_RDONLY | O_CLOEXEC);
    const uint64_t started_ns = now_ns();
    uint64_t got = 0;
    for (ssize_t bytes = 0; (bytes = ::pread(fd, from_.data(), 2 * kWeights, off_t(got))) > 0;) got += uint64_t(bytes);
    const double ns = double(now_ns() - started_ns);
    ::close(fd);
    if (got < 2 * kWeights) throw std::runtime_error("the adapter's file is short");
    return ns;
  }

 private:
  const MarudProcess process_;
  const Client client_;
  std::string folder_, path_;
  maru_adapters_options options_ = {};
  std::optional<Adapters> adapters_;
  FloorMemory from_{4 * kWeights, true}, out_{4 * kRank * kFeatures, true};
};

Facts facts_for(const Client& client) { return facts_of(client.geometry(), 1); }

void large_rows(Suite& suite) {
  const char* const rows[] = {"adapter_hot_mapped",  "adapter_warm_mapped", "adapter_hot_copied",
                              "adapter_warm_floats", "adapter_cold_hot",    "adapter_cold_warm"};
  if (std::none_of(std::begin(rows), std::end(rows), [&](const char* row) { return suite.wants(row); })) return;
  suite.progress("writing an adapter");
  const Large large(suite.options().marud);
  const uint64_t holds = suite.operations(4096);
  const auto mapped = [&](const char* row, uint32_t want) {
    if (!suite.wants(row)) return;
    // A WARM form alone, or the HOT one: an acquire of any form takes the better.
    large.make_cold();
    suite.measure(row,
                  {{"value", [&, want] { return large.hold(want, holds); }},
                   {"floor", [&, want] { return large.hold_blocks(want, holds); }}},
                  facts_for(large.client()));
  };
  mapped("adapter_warm_mapped", MARU_ADAPTER_ANY);
  mapped("adapter_hot_mapped", MARU_ADAPTER_EXACT);
  const auto copied = [&](const char* row, uint32_t want, bool as_floats) {
    if (!suite.wants(row)) return;
    large.make_cold();
    suite.measure(row,
                  {{"value", [&, want, as_floats] { return large.copy_out(want, as_floats); }},
                   {"floor", [&, as_floats] { return large.copy_plainly(as_floats); }}},
                  facts_for(large.client()));
  };
  copied("adapter_hot_copied", MARU_ADAPTER_EXACT, false);
  copied("adapter_warm_floats", MARU_ADAPTER_ANY, true);
  const auto cold = [&](const char* row, uint32_t want) {
    if (!suite.wants(row)) return;
    run_on_all_cpus();
    double alone_ns = 0;
    Facts facts = facts_for(large.client());
    facts.extra = {{"one_thread", [&] { return alone_ns; }}};
    suite.measure(row,
                  {{"value", [&, want] { return large.load(want); }},
                   {"floor", [&] { return large.read_file(); }},
                   {"one thread",
                    [&, want] {
                      run_on_cpu(0);
                      alone_ns = large.load(want);
                      run_on_all_cpus();
                      return alone_ns;
                    }}},
                  facts);
    run_on_cpu(0);
  };
  cold("adapter_cold_hot", MARU_ADAPTER_EXACT);
  cold("adapter_cold_warm", MARU_ADAPTER_ANY);
}

// So many adapters in one register, from a thousand folders.
class Many {
 public:
  static constexpr uint64_t kFolders = 1000;

  Many(const MarudProcess& process, uint64_t count) : process_(process), client_(process.socket_path()), count_(count) {
    path_ = process.directory() + "/register" + std::to_string(count);
    options_ = adapters_options_at(path_);
    options_.entries_max = uint32_t(count);
    options_.warm_adapters_max = 1'000'000;
    adapters_.emplace(must_have(Adapters::open(client_, &options_), "open"));
    const uint64_t started_ns = now_ns();
    for (uint64_t i = 0; i < count; ++i)
      must_have(adapters_->load("adapter-" + std::to_string(i), folder(i), MARU_ADAPTERS_LOAD_LAZY), "load");
    load_ns_ = double(now_ns() - started_ns) / double(count);
    Random random(7);
    for (int i = 0; i < 1000; ++i) {
      chosen_.push_back("adapter-" + std::to_string(random.below(count)));
      const Adapter adapter = must_have(adapters_->acquire(chosen_.back()), "acquire");
    }
  }
  std::string folder(uint64_t number) const { return process_.directory() + "/" + std::to_string(number % kFolders); }

  const Client& client() const { return client_; }
  double load_ns() const { return load_ns_; }
  double bytes_each() const {
    return double(must_have(adapters_->statistics(), "statistics").register_bytes) / double(count_);
  }
  // The 99th percentile of acquires that find a form.
  double acquire_p99() const {
    std::vector<uint64_t> times;
    for (const std::string& name : chosen_) {
      const uint64_t started_ns = now_ns();
      const Adapter adapter = must_have(adapters_->acquire(name), "acquire");
      times.push_back(now_ns() - started_ns);
    }
    return p99(times);
  }
  // The same blocks, one for each adapter, by maru.h alone.
  double block_p99() const {
    std::vector<uint64_t> times;
    for (const std::string& name : chosen_) {
      const maru_key key = {name.data(), uint32_t(name.size()), MARU_KEY_BYTES, 0};
      maru_store_copy(client_, &key, "x", 1, nullptr, nullptr);
      const uint64_t started_ns = now_ns();
      maru_match match = {};
      maru_view view = {};
      must(maru_match_prefix(client_, &key, 1, &match), "match");
      must(maru_resolve(client_, &match, &key, 1, &view), "resolve");
      maru_release_match(client_, &match);
      times.push_back(now_ns() - started_ns);
    }
    return p99(times);
  }
  // What another client reads for the same adapters.
  double second_client_bytes() const {
    const Client second(process_.socket_path());
    const Adapters adapters = must_have(Adapters::open(second, &options_), "open");
    const uint64_t before = must_have(adapters.statistics(), "statistics").loaded_bytes;
    for (const std::string& name : chosen_) const Adapter adapter = must_have(adapters.acquire(name), "acquire");
    return double(must_have(adapters.statistics(), "statistics").loaded_bytes - before);
  }

 private:
  static double p99(std::vector<uint64_t>& times) {
    const auto at = times.begin() + ptrdiff_t(times.size() * 99 / 100);
    std::nth_element(times.begin(), at, times.end());
    return double(*at);
  }

  const MarudProcess& process_;
  const Client client_;
  const uint64_t count_;
  std::string path_;
  maru_adapters_options options_ = {};
  std::optional<Adapters> adapters_;
  std::vector<std::string> chosen_;
  double load_ns_ = 0;
};

void register_row(Suite& suite, const char* row, uint64_t count) {
  if (!suite.wants(row)) return;
  suite.progress("writing adapters");
  const MarudProcess process(suite.options().marud, {.pages = 16384, .region_bytes = 4 * kMiB});
  for (uint64_t i = 0; i < Many::kFolders; ++i) {
    test::AdapterWish wish;
    wish.seed = i + 1, wish.layers = 1;
    test::write_adapter(process.directory() + "/" + std::to_string(i), wish);
  }
  const Many many(process, count);
  Facts facts = facts_of(many.client().geometry(), count);
  facts.extra = {{"load_ns_each", [&] { return many.load_ns(); }},
                 {"bytes_each", [&] { return many.bytes_each(); }},
                 {"second_client_bytes", [&] { return many.second_client_bytes(); }}};
  suite.measure(row, {{"value", [&] { return many.acquire_p99(); }}, {"floor", [&] { return many.block_p99(); }}},
                facts);
}

}  // namespace

void adapter_rows(Suite& suite) {
  large_rows(suite);
  register_row(suite, "adapter_register_10k", 10'000);
  register_row(suite, "adapter_register_100k", suite.quick() ? 20'000 : 100'000);
}

}  // namespace maru::bench
