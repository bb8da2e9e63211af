// The regions of a pool as a picture.
#include "tests/unit/pool_fixture.h"

#include <algorithm>

namespace maru::daemon {
namespace {

using nlohmann::json;

json map_of(const PoolUnderTest& home) { return home.pool->admin("map", json::object(), home.now_ms); }

void pass(PoolUnderTest& home, uint64_t ms) {
  for (const uint64_t until_ms = home.now_ms + ms; home.now_ms < until_ms;) {
    home.now_ms += 50;
    while (home.pool->turn(home.now_ms)) {
    }
  }
}

TEST(PoolMap, SaysWhoRentsWhatAndHowFullItIs) {
  PoolUnderTest home(4u << 20);
  const auto one = home.attach(), two = home.attach();
  ASSERT_TRUE(one && two);
  for (int i = 0; i < 40; ++i) ASSERT_FALSE(one->store("one" + std::to_string(i)).is_none());
  for (int i = 0; i < 5; ++i) ASSERT_FALSE(two->store("two" + std::to_string(i)).is_none());
  pass(home, 1000);

  const json map = map_of(home);
  const json& cells = map.at("cells");
  const size_t regions = home.region.regions();
  EXPECT_EQ(map.at("regions"), regions);
  EXPECT_EQ(map.at("regions_per_cell"), 1);
  EXPECT_EQ(map.at("region_pages"), 16);
  EXPECT_EQ(map.at("owners_left_out"), 0);
  ASSERT_EQ(map.at("owners").size(), 2u);
  EXPECT_EQ(map.at("owners")[0].at("lane"), one->grant.lane) << "who rents most comes first";
  ASSERT_EQ(cells.at("states").get<std::string>().size(), regions);
  std::vector<uint64_t> rented(2), used(2);
  for (size_t i = 0; i < regions; ++i) {
    const bool is_rented = cells.at("states").get<std::string>()[i] == 'r';
    EXPECT_EQ(is_rented, cells.at("owner")[i].is_number());
    EXPECT_EQ(is_rented, cells.at("used_pages")[i] != 0) << "region " << i;
    if (!is_rented) continue;
    ++rented[cells.at("owner")[i].get<size_t>()];
    used[cells.at("owner")[i].get<size_t>()] += cells.at("used_pages")[i].get<uint64_t>();
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(map.at("owners")[i].at("regions"), rented[i]);
    EXPECT_EQ(map.at("owners")[i].at("used_pages"), used[i]);
  }
  EXPECT_EQ(used, (std::vector<uint64_t>{40, 5}));

  home.pool->detach(one->grant.lane);
  home.settle();
  EXPECT_NE(map_of(home).at("cells").at("states").get<std::string>().find('o'), std::string::npos)
      << "blocks of a client that left stay in regions of nobody";
  EXPECT_EQ(map_of(home).at("owners").size(), 1u);
}

TEST(PoolMap, HeatIsTheRateOfUseAndCools) {
  PoolUnderTest home(4u << 20);
  const auto client = home.attach();
  ASSERT_TRUE(client);
  const PageRef ref = client->store("used");
  ASSERT_FALSE(ref.is_none());
  const uint32_t index = home.region.region_of(ref.page());
  const auto uses = [&](uint32_t region) { return map_of(home).at("cells").at("uses_per_s")[region].get<double>(); };
  // 20 uses a second, for many half-lives.
  for (int i = 0; i < 2000; ++i) {
    home.now_ms += 50;
    client->touch(ref);
    home.pool->turn(home.now_ms);
  }
  EXPECT_NEAR(uses(index), 20, 2);
  EXPECT_EQ(map_of(home).at("cells").at("idle_s")[index], 0);
  const uint32_t other = index == 0 ? 1 : 0;
  EXPECT_EQ(uses(other), 0);
  EXPECT_TRUE(map_of(home).at("cells").at("idle_s")[other].is_null());
  pass(home, 8000);
  EXPECT_NEAR(uses(index), 10, 2) << "one half-life later";
  pass(home, 92'000);
  EXPECT_EQ(uses(index), 0);
  EXPECT_NEAR(map_of(home).at("cells").at("idle_s")[index].get<double>(), 100, 1);
  home.now_ms -= 60'000;  // the clock was set back
  home.pool->turn(home.now_ms);
  EXPECT_EQ(map_of(home).at("cells").at("idle_s")[index].get<double>(), 40);
}

TEST(PoolMap, ALargePoolHasNoMoreCellsThanASmallOne) {
  PoolUnderTest home(24u << 20, 4);
  const size_t regions = home.region.regions();
  ASSERT_GT(regions, 1024u);
  const auto client = home.attach();
  ASSERT_TRUE(client);
  for (int i = 0; i < 30; ++i) ASSERT_FALSE(client->store("block" + std::to_string(i)).is_none());
  pass(home, 1000);
  const json map = map_of(home);
  const uint64_t each = map.at("regions_per_cell");
  const size_t count = map.at("cells").at("states").get<std::string>().size();
  EXPECT_GT(each, 1u);
  EXPECT_LE(count, 1024u);
  EXPECT_EQ(count, (regions + each - 1) / each) << "every region is in a cell";
  uint64_t used = 0;
  for (const json& pages : map.at("cells").at("used_pages")) used += pages.get<uint64_t>();
  EXPECT_EQ(used, 30u);
  for (const char* column : {"owner", "used_pages", "uses_per_s", "idle_s"})
    EXPECT_EQ(map.at("cells").at(column).size(), count) << column;
  EXPECT_LT(map.dump().size(), size_t{wire::kPayloadBytesMax} / 2);
}

}  // namespace
}  // namespace maru::daemon
