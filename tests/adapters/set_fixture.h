// A marud, a folder of adapters, and sets of one process on one register, with a clock that the test moves.
#pragma once

#include "libmaru/adapters/adapter_set.h"
#include "tests/process/baseline.h"
#include "tests/support/adapter_folder.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"

#include <atomic>
#include <gtest/gtest.h>
#include <memory>

namespace maru::test {

// The clock of the sets; far from zero, so that nothing is mistaken for having come just now.
inline constexpr uint64_t kFirstMs = 1'000'000;

struct SetWish {
  uint64_t hot_max = 4, warm_max = 8;
  uint64_t bytes_max = 1ull << 40;
  uint64_t part_bytes = 8192;
  uint32_t stay_ms = 30'000;
  uint32_t timeout_ms = 5000;
  uint32_t entries_max = 512;
  std::string base{};
  uint8_t fingerprint = 0;
  std::vector<adapters::BaseModule> modules{};
  std::string tier_socket{};
  std::function<void(adapters::Step)> at_step{};
};

class AdapterHome {
 public:
  explicit AdapterHome(const PoolWish& pool = {}) : marud_({pool}) {}

  std::unique_ptr<adapters::AdapterSet> open(maru_client* client, const SetWish& own = {}) {
    adapters::AdapterSet::Wish wish;
    maru_geometry geometry = {};
    geometry.size = sizeof(geometry);
    EXPECT_EQ(maru_get_geometry(client, &geometry), 0);
    wish.in_register.path = register_path();
    std::memcpy(wish.in_register.pool_uuid, geometry.uuid, 16);
    wish.in_register.page_bytes = geometry.page_bytes;
    wish.in_register.part_bytes = own.part_bytes;
    wish.in_register.entries_max = own.entries_max;
    wish.in_register.timeout_ms = own.timeout_ms;
    wish.in_register.base_model = own.base;
    wish.in_register.rules = {60'000, 10, 5, own.stay_ms, {own.hot_max, own.warm_max}, {own.bytes_max, own.bytes_max}};
    wish.base = own.modules;
    wish.tier_socket = own.tier_socket;
    wish.now_ms = [this] { return now_ms_.load(); };
    wish.at_step = own.at_step;
    auto set = std::make_unique<adapters::AdapterSet>(client, std::move(wish));
    maru_adapters_reason reason = {};
    const int status = set->open(&reason);
    EXPECT_EQ(status, 0) << reason.text;
    return status == 0 ? std::move(set) : nullptr;
  }
  std::string register_path() const { return marud_.directory().file("register"); }
  std::string folder(const std::string& name) const { return marud_.directory().file("adapters/" + name); }
  // Writes an adapter, and loads it.
  void add(adapters::AdapterSet& set, const std::string& name, AdapterWish wish = {}) {
    wish.seed = std::hash<std::string>()(name);
    write_adapter(folder(name), wish);
    maru_adapters_reason reason = {};
    ASSERT_EQ(set.load(name, folder(name), 0, &reason), 0) << reason.text;
  }
  void pass(uint64_t ms) { now_ms_ += ms; }
  MarudProcess& marud() { return marud_; }

 private:
  MarudProcess marud_;
  std::atomic<uint64_t> now_ms_{kFirstMs};
};

// Holds an adapter for a scope, and says why it could not.
class Use {
 public:
  Use(adapters::AdapterSet& set, const std::string& name, uint32_t want = MARU_ADAPTER_ANY) : set_(&set) {
    maru_adapters_reason reason = {};
    status_ = set.acquire(name, want, &adapter_, &reason);
    reason_ = reason.text;
  }
  ~Use() { release(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  void release() {
    if (adapter_ != nullptr) set_->release(std::exchange(adapter_, nullptr));
  }
  int status() const { return status_; }
  const std::string& reason() const { return reason_; }
  const maru_adapter& operator*() const { return *adapter_; }
  const maru_adapter* operator->() const { return adapter_; }
  const maru_adapter* get() const { return adapter_; }

 private:
  adapters::AdapterSet* set_;
  maru_adapter* adapter_ = nullptr;
  int status_ = 0;
  std::string reason_;
};

// The first difference between what is held and the file, or nothing; `relative`: how large a difference may be, in parts
// of the row's largest weight.
inline std::string difference(const maru_adapter* adapter, const AdapterWish& wish, float relative) {
  const TensorsFile file = tensors_of(wish);
  for (size_t number = 0; number < maru_adapter_modules(adapter); ++number) {
    maru_adapter_module module = {};
    module.size = sizeof(module);
    if (maru_adapter_get_module(adapter, number, &module) != 0) return "no module";
    for (const uint32_t matrix : {MARU_ADAPTER_A, MARU_ADAPTER_B}) {
      const bool is_a = matrix == MARU_ADAPTER_A;
      const uint64_t rows = is_a ? module.rank : module.out_features, columns = is_a ? module.in_features : module.rank;
      std::vector<float> held(rows * columns);
      if (maru_adapter_copy(adapter, number, matrix, MARU_ADAPTER_FLOAT32, held.data(), held.size() * sizeof(float)) !=
          0)
        return "no copy";
      const std::string name =
          std::string("base_model.model.") + module.name + (is_a ? ".lora_A.weight" : ".lora_B.weight");
      const uint64_t held_rows = module.rank, held_columns = is_a ? columns : rows;
      for (uint64_t rank = 0; rank < held_rows; ++rank) {
        const auto at = [&](uint64_t i) { return is_a ? rank * held_columns + i : i * held_rows + rank; };
        float most = 0;
        for (uint64_t i = 0; i < held_columns; ++i) most = std::max(most, std::fabs(tensor_weight(file, name, at(i))));
        for (uint64_t i = 0; i < held_columns; ++i)
          if (std::fabs(tensor_weight(file, name, at(i)) - held[at(i)]) > most * relative)
            return name + " [" + std::to_string(rank) + ", " + std::to_string(i) + "]";
      }
    }
  }
  return {};
}

inline AdapterWish wish_named(const std::string& name, AdapterWish wish = {}) {
  wish.seed = std::hash<std::string>()(name);
  return wish;
}

// All pages of the pool that hold nothing, when no client keeps any back.
inline uint64_t free_pages(const MarudProcess& marud) {
  const TestClient client(marud.socket_path());
  maru_block_counts counts = {};
  counts.size = sizeof(counts);
  EXPECT_EQ(maru_count_blocks(client, &counts), 0);
  return counts.free_pages;
}

}  // namespace maru::test
