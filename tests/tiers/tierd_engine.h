// An engine that uses tiers, and believes nothing.
#pragma once

#include "tests/support/block_content.h"
#include "tests/support/test_client.h"
#include "tests/tiers/tierd_process.h"

#include <gtest/gtest.h>

namespace maru::test {

// Asks for chains that it has stored before, prefetches, reads, and stores what is not there.
class Engine {
 public:
  static constexpr uint64_t kKeys = 800;  // of 16 to 64 KiB: more than the pool of a test holds

  Engine(const MarudProcess& marud, uint64_t seed) : client_(marud.socket_path()), random_(seed) {}

  void step(const TierdProcess& tierd) {
    const uint64_t chain = random_.below(kKeys / 10), blocks = 1 + random_.below(10);
    std::vector<std::string> keys;
    for (uint64_t i = 0; i < blocks; ++i) keys.push_back("chain " + std::to_string(chain) + " " + std::to_string(i));
    if (random_.one_in(2)) {
      Prefetch prefetch(tierd, keys, uint32_t(5 + random_.below(200)));
      if (random_.one_in(10))
        prefetch.release();  // goes away in the middle
      else if (prefetch.wait() == 0)
        loaded += prefetch.status().loaded;
      read(keys);
    } else {
      read(keys);
    }
    store(keys);
  }

  // Deletes every block, the ends of chains first. A block that maru-tierd still writes counts as its parent's child.
  void empty_pool() {
    EXPECT_TRUE(wait_until([&] {
      bool is_empty = true;
      for (uint64_t chain = 0; chain < kKeys / 10; ++chain)
        for (uint64_t i = 10; i-- > 0;)
          is_empty &= client_.remove("chain " + std::to_string(chain) + " " + std::to_string(i)) == -ENOENT;
      return is_empty;
    }));
  }

  uint64_t reads = 0, loaded = 0;
  TestClient& client() { return client_; }

 private:
  static uint64_t bytes_of(const std::string& key) { return 16'000 + std::hash<std::string>{}(key) % 48'000; }

  void read(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      maru_view view = {};
      const int result = client_.retrieve(key, &view);
      if (result == -ENOENT) continue;
      ASSERT_EQ(result, 0);
      ++reads;
      EXPECT_EQ(view.bytes, bytes_of(key));
      EXPECT_EQ(BlockContent::problem(view.data, view.bytes, key), nullptr) << key;
      client_.release(view);
    }
  }
  void store(const std::vector<std::string>& keys) {
    for (size_t i = 0; i < keys.size(); ++i) {
      std::string payload(bytes_of(keys[i]), 0);
      BlockContent::write(payload.data(), payload.size(), keys[i], i);
      const int result = client_.store(keys[i], payload, i ? keys[i - 1] : "");
      if (result == -ENOLINK) return;  // its parent was evicted meanwhile
      ASSERT_GE(result, 0) << keys[i];
    }
  }

  TestClient client_;
  Random random_;
};

}  // namespace maru::test
