// The file tier's log after crashes: whatever of a write reached the file, the tier has what it had before or after that
// write.
#include "daemon/tierd/tiers/file/file_tier.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/tier_user.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sys/mount.h>

namespace maru::test {
namespace {

constexpr uint64_t kRegionBytes = 64u << 10, kRegions = 6;
constexpr uint64_t kCapacity = tierd::kLogFirstRegion + kRegions * kRegionBytes;
constexpr uint64_t kBlock = tierd::kLogBlock;

using Model = std::map<std::string, TierEntry>;

std::vector<uint64_t> changed_blocks(const std::string& before, const std::string& after) {
  std::vector<uint64_t> changed;
  for (uint64_t at = 0; at < after.size(); at += kBlock)
    if (before.compare(at, kBlock, after, at, kBlock) != 0) changed.push_back(at);
  return changed;
}

// Whether one of the blocks that changed is the header of a region that had one.
bool begins_region_anew(const std::string& before, const std::vector<uint64_t>& changed) {
  return std::any_of(changed.begin(), changed.end(), [&](uint64_t at) {
    const bool is_header = at >= tierd::kLogFirstRegion && (at - tierd::kLogFirstRegion) % kRegionBytes == 0;
    return is_header && at < before.size() && before[at] != '\0';
  });
}

class FileLog : public testing::Test {
 protected:
  FileLog() : seed_(fresh_seed()), random_(seed_) {
    std::printf("MARU_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  std::string log_path() const { return directory_.file("log"); }
  tierd::TierOptions options(uint64_t capacity = kCapacity, uint64_t region_bytes = kRegionBytes) const {
    return {{"path", log_path()},
            {"capacity", std::to_string(capacity)},
            {"region_bytes", std::to_string(region_bytes)},
            {"direct", "no"},
            {"readers", "1"}};
  }
  std::unique_ptr<tierd::Tier> open() { return open_or_throw("file", options()); }
  std::string refusal(const tierd::TierOptions& wrong) {
    const auto tier = tierd::Tier::open("file", wrong);
    return tier ? "" : tier.error().text();
  }
  std::string bytes() const {
    std::ifstream file(log_path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set_bytes(const std::string& bytes) const { std::ofstream(log_path(), std::ios::binary) << bytes; }

  // Everything that a tier finds in these bytes.
  Model found_in(const std::string& bytes, uint64_t* ret_damaged = nullptr) {
    set_bytes(bytes);
    const auto tier = open();
    Model found;
    std::vector<maru_tier_entry> page(8);
    std::set<std::string> keys;
    uint64_t cursor = 0, entry_bytes = 0;
    for (int n = 0; (n = tier->list(&cursor, page.data(), page.size())) > 0;)
      for (int i = 0; i < n; ++i) {
        const maru_tier_entry& entry = page[size_t(i)];
        EXPECT_TRUE(keys.emplace(reinterpret_cast<const char*>(entry.key), entry.key_bytes).second) << "listed twice";
        entry_bytes += entry.payload_bytes + entry.attributes_bytes;
      }
    EXPECT_EQ(tier->usage().entries, keys.size());
    EXPECT_EQ(tier->usage().entry_bytes, entry_bytes);
    TierUser user(*tier);
    for (const std::string& key : keys)
      if (const auto entry = user.load(key)) found[key] = *entry;
    if (ret_damaged) *ret_damaged = tier->usage().damaged;
    return found;
  }

  struct Step {
    std::string bytes;
    Model model;
    bool has_evicted;
  };
  // A life of a log, with a copy of its file after each step.
  std::vector<Step> live(int steps) {
    std::vector<Step> life;
    const auto tier = open();
    TierUser user(*tier);
    Model model;
    life.push_back({bytes(), model, false});
    for (int i = 0; i < steps; ++i) {
      const std::string key = "key " + std::to_string(random_.below(12));
      if (random_.one_in(4)) {
        const int result = user.remove(key);
        EXPECT_TRUE(result == (model.erase(key) ? 0 : -ENOENT) || (result == -ENOENT && tier->usage().evicted > 0));
      } else if (random_.one_in(4)) {
        (void)user.load(key);
      } else {
        model[key] = random_entry(random_, 20'000, 300);
        EXPECT_EQ(user.store(key, model[key]), 0);
      }
      // The header of a region that begins anew reaches the file before its entries are gone.
      const std::string copy = bytes();
      const bool has_evicted = life.back().has_evicted || tier->usage().evicted > 0 ||
                               begins_region_anew(life.back().bytes, changed_blocks(life.back().bytes, copy));
      if (has_evicted)  // what is gone by now is gone
        std::erase_if(model, [&](const auto& entry) { return user.lookup(entry.first).result != 0; });
      life.push_back({copy, model, has_evicted});
    }
    return life;
  }

  const uint64_t seed_;
  Random random_;
  TemporaryDirectory directory_;
};

TEST_F(FileLog, ACrashBetweenStepsLosesNothing) {
  const auto life = live(60);
  for (const Step& step : life) {
    const Model found = found_in(step.bytes);
    if (!step.has_evicted) {
      EXPECT_EQ(found, step.model);
    }
  }
}

bool is_in(const Model& model, const std::string& key, const TierEntry& entry) {
  const auto found = model.find(key);
  return found != model.end() && found->second == entry;
}

std::string keys_of(const Model& model) {
  std::string keys;
  for (const auto& [key, entry] : model) keys += key + ", ";
  return keys;
}

TEST_F(FileLog, ACrashInAStepLeavesItBeforeOrAfter) {
  const auto life = live(60);
  for (size_t i = 0; i + 1 < life.size() && !life[i + 1].has_evicted; ++i) {
    const std::string &before = life[i].bytes, &after = life[i + 1].bytes;
    const std::vector<uint64_t> changed = changed_blocks(before, after);
    for (int tries = 0; tries < 6 && !changed.empty(); ++tries) {
      // A prefix of what changed, the rest of it, or any of it; in the last block half of it.
      std::string torn = before;
      const uint64_t cut = random_.below(changed.size() + 1);
      for (uint64_t j = 0; j < changed.size(); ++j) {
        const bool is_written = tries % 3 == 0 ? j < cut : tries % 3 == 1 ? j >= cut : random_.one_in(2);
        const uint64_t size = is_written && j + 1 == cut && random_.one_in(2) ? kBlock / 2 : kBlock;
        if (is_written) torn.replace(changed[j], size, after, changed[j], size);
      }
      const Model found = found_in(torn);
      if (found == life[i].model || found == life[i + 1].model) continue;
      // Meanwhile a region may begin anew. Then a device that writes in another order takes its entries, which are misses.
      ASSERT_TRUE(begins_region_anew(before, changed))
          << "step " << i << ", found " << keys_of(found) << ", before " << keys_of(life[i].model) << ", after "
          << keys_of(life[i + 1].model);
      for (const auto& [key, entry] : found)
        EXPECT_TRUE(is_in(life[i].model, key, entry) || is_in(life[i + 1].model, key, entry)) << key;
    }
  }
}

TEST_F(FileLog, DamageAnywhereIsAMissAndNeverAnotherValue) {
  const auto life = live(80);
  std::map<std::string, std::vector<TierEntry>> ever;
  for (const Step& step : life)
    for (const auto& [key, entry] : step.model) ever[key].push_back(entry);
  uint64_t misses = 0;
  for (int tries = 0; tries < 150; ++tries) {
    std::string bytes = life.back().bytes;
    for (uint64_t faults = 1 + random_.below(4); faults > 0; --faults) {
      const uint64_t at = tierd::kLogFirstRegion + random_.below(bytes.size() - tierd::kLogFirstRegion - kBlock);
      const uint64_t block = at / kBlock * kBlock;
      switch (random_.below(4)) {
        case 0: bytes[at] = char(bytes[at] ^ (1 << random_.below(8))); break;
        case 1: bytes.replace(block, kBlock, kBlock, '\0'); break;
        case 2: bytes.replace(block, kBlock, life[random_.below(life.size())].bytes, block, kBlock); break;
        default: bytes.replace(block, kBlock, bytes.substr(tierd::kLogFirstRegion + kRegionBytes, kBlock)); break;
      }
    }
    const Model found = found_in(bytes);
    for (const auto& [key, entry] : found)
      EXPECT_TRUE(std::count(ever[key].begin(), ever[key].end(), entry) > 0) << key;
    misses += life.back().model.size() - std::min(found.size(), life.back().model.size());
  }
  EXPECT_GT(misses, 0u) << "the damage hit nothing";
}

TEST_F(FileLog, WithoutFootersTheRecordsSayTheSame) {
  const auto life = live(30);
  std::string bytes = life.back().bytes;
  const Model with = found_in(bytes);
  for (uint64_t i = 0; i < kRegions; ++i)
    bytes.replace(tierd::kLogFirstRegion + (i + 1) * kRegionBytes - kBlock, kBlock, kBlock, '\0');
  EXPECT_EQ(found_in(bytes), with);
}

TEST_F(FileLog, WhatIsUsedOutlivesWhatIsNot) {
  const auto tier = open();
  TierUser user(*tier);
  const TierEntry entry = {"attributes", std::string(8000, 'x'), 3};
  ASSERT_EQ(user.store("used", entry), 0);
  ASSERT_EQ(user.store("unused", entry), 0);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(user.load("used"), entry) << "after " << i << " stores";
    ASSERT_EQ(user.store("filler " + std::to_string(i), entry), 0);
  }
  EXPECT_EQ(user.lookup("unused").result, -ENOENT);
  EXPECT_GT(tier->usage().reinserted, 0u);
}

TEST_F(FileLog, BadConfigurationsAreRefusedAndNothingIsOverwritten) {
  EXPECT_NE(refusal(options(100'000)).find("expected at least"), std::string::npos) << refusal(options(100'000));
  const std::string foreign(200'000, 'F');
  set_bytes(foreign);
  EXPECT_NE(refusal(options()).find("found data of another kind"), std::string::npos) << refusal(options());
  EXPECT_EQ(bytes(), foreign);
  auto forced = options();
  forced.emplace_back("force", "true");
  {
    const auto tier = open_or_throw("file", forced);
    EXPECT_NE(refusal(options()).find("another process uses it"), std::string::npos) << refusal(options());
  }
  EXPECT_NE(refusal(options(kCapacity * 4, kRegionBytes * 2)).find("set region_bytes"), std::string::npos);
  tierd::TierOptions lost = options();
  lost[0].second = directory_.file("no/such/folder/log");
  EXPECT_NE(refusal(lost).find("expected a path whose folder is there"), std::string::npos);
  lost = options();
  lost.emplace_back("capactiy", "5");
  EXPECT_NE(refusal(lost).find("\"capactiy\" is unknown"), std::string::npos) << refusal(lost);
}

TEST_F(FileLog, ALargerCapacityKeepsAllEntries) {
  const TierEntry entry = {"attributes", std::string(30'000, 'x'), 5};
  {
    const auto tier = open();
    TierUser user(*tier);
    for (int i = 0; i < 4; ++i) ASSERT_EQ(user.store("key " + std::to_string(i), entry), 0);
  }
  const auto tier = open_or_throw("file", options(2 * kCapacity));
  EXPECT_EQ(tier->usage().entries, 4u);
}

TEST_F(FileLog, ASmallerCapacityRevivesNothing) {
  const TierEntry entry = {"attributes", std::string(30'000, 'x'), 5};
  {
    const auto tier = open_or_throw("file", options(2 * kCapacity));
    TierUser user(*tier);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(user.store("key " + std::to_string(i), entry), 0);
    ASSERT_EQ(user.remove("key 5"), 0);  // in the tenth region, which is cut off
  }
  const uint64_t nine_regions = tierd::kLogFirstRegion + 9 * kRegionBytes;
  for (const uint64_t capacity : {nine_regions, 2 * kCapacity}) {
    const auto tier = open_or_throw("file", options(capacity));
    TierUser user(*tier);
    EXPECT_EQ(user.lookup("key 5").result, -ENOENT) << "a deleted entry is back";
    EXPECT_EQ(user.store("key", entry), 0);
  }
}

// A file system of its own, so small that it is full before the log has its capacity.
TEST_F(FileLog, AFullDiskCostsStoresAndNothingElse) {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    GTEST_SKIP() << "no mount namespace of its own";
  const std::string mount_point = directory_.file("small");
  std::filesystem::create_directory(mount_point);
  ASSERT_EQ(::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=400k"), 0);
  {
    tierd::TierOptions on_small = options();
    on_small[0].second = mount_point + "/log";
    std::ofstream(mount_point + "/other") << std::string(100 << 10, 'o');
    const auto tier = open_or_throw("file", on_small);
    TierUser user(*tier);
    Model model;
    int full = 0;
    for (int i = 0; i < 150; ++i) {
      const std::string key = "key " + std::to_string(i);
      const TierEntry entry = random_entry(random_, 10'000, 100);
      const int result = user.store(key, entry);
      if (result == 0) model[key] = entry;
      EXPECT_TRUE(result == 0 || result == -ENOSPC) << result;
      full += result == -ENOSPC;
    }
    EXPECT_GT(full, 0) << "the disk was never full";
    EXPECT_GT(model.size(), 20u) << "after the disk was full nothing was stored any more";
    for (const auto& [key, entry] : model)
      if (const auto found = user.load(key)) {
        EXPECT_EQ(*found, entry);
      }
  }
  ::umount(mount_point.c_str());
}

}  // namespace
}  // namespace maru::test
