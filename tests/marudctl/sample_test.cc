#include "daemon/tools/marudctl/sample.h"

#include <gtest/gtest.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;

json status_with(uint64_t pid, uint64_t epoch, uint64_t hits, uint64_t misses, uint64_t stores) {
  return {{"version", "1"},
          {"pid", pid},
          {"uptime_ms", 5000u},
          {"pools",
           {{{"name", "default"},
             {"condition", "serving"},
             {"epoch", epoch},
             {"pages", 100u},
             {"page_bytes", 4096u},
             {"in_use_bytes", 25u * 4096u},
             {"counters", {{"retrieve_hits", hits}, {"retrieve_misses", misses}, {"stores", stores}}}}}}};
}
json client_with(uint64_t generation, uint64_t stores) {
  return json::array({{{"pid", 7u},
                       {"pool", "default"},
                       {"lane", 3u},
                       {"generation", generation},
                       {"counters", {{"stores", stores}}}}});
}
Sample sample(uint64_t seconds, json status, json clients = json::array()) {
  return {seconds * 1'000'000'000, 250'000, std::move(status), std::move(clients), json::object()};
}

TEST(Sample, RatesAndSharesAreThoseOfTheTimeBetween) {
  const json figures =
      changes(sample(10, status_with(5, 1, 100, 100, 10)), sample(12, status_with(5, 1, 190, 110, 30)));
  const json pool = figures["pools"][0];
  EXPECT_EQ(figures["interval_ms"], 2000);
  EXPECT_EQ(figures["answer_us"], 250);
  EXPECT_DOUBLE_EQ(pool["retrieves_per_s"].get<double>(), 50);
  EXPECT_DOUBLE_EQ(pool["retrieve_hit_percent"].get<double>(), 90) << "of what was asked since, not ever";
  EXPECT_DOUBLE_EQ(pool["stores_per_s"].get<double>(), 10);
  EXPECT_DOUBLE_EQ(pool["in_use_percent"].get<double>(), 25);
  EXPECT_TRUE(pool["match_hit_percent"].is_null()) << "nothing was asked";
}

TEST(Sample, LatencyIsThatOfTheRequestsBetween) {
  const auto status = [](uint64_t rents, uint64_t micros, json by_time) {
    json out = status_with(5, 1, 0, 0, 0);
    out["pools"][0].update({{"rents", rents}, {"rents_us", micros}, {"rents_by_time", std::move(by_time)}});
    return out;
  };
  const json before = status(1000, 9'000'000, {0u, 0u, 0u, 0u, 0u, 0u, 0u, 1000u, 0u, 0u});
  const auto latency = [&](const json& after) { return changes(sample(10, before), sample(12, after))["pools"][0]; };
  const json none = latency(before);
  EXPECT_TRUE(none["rent_mean_us"].is_null() && none["rent_99_us"].is_null()) << "nobody asked";
  const json most = latency(status(1100, 9'000'500, {0u, 0u, 99u, 0u, 0u, 1u, 0u, 1000u, 0u, 0u}));
  EXPECT_DOUBLE_EQ(most["rent_mean_us"].get<double>(), 5);
  EXPECT_DOUBLE_EQ(most["rent_99_us"].get<double>(), 10);
  const json slow = latency(status(1100, 9'000'500, {0u, 0u, 98u, 0u, 0u, 2u, 0u, 1000u, 0u, 0u}));
  EXPECT_DOUBLE_EQ(slow["rent_99_us"].get<double>(), 10'000);
  const json older = latency(status(1100, 9'000'500, nullptr));
  EXPECT_TRUE(older["rent_99_us"].is_null()) << "a marud that does not say";
}

TEST(Sample, CountersThatBeganAnewAreNoRates) {
  const Sample before = sample(10, status_with(5, 1, 100, 100, 10), client_with(1, 1000));
  for (const Sample& after : {sample(11, status_with(6, 1, 5000, 0, 0)), sample(11, status_with(5, 2, 5000, 0, 0))})
    EXPECT_DOUBLE_EQ(changes(before, after)["pools"][0]["retrieves_per_s"].get<double>(), 0);
  const json figures = changes(before, sample(11, status_with(5, 1, 90, 100, 10), client_with(2, 5000)));
  EXPECT_DOUBLE_EQ(figures["clients"][0]["stores_per_s"].get<double>(), 0) << "another client in the same lane";
  EXPECT_DOUBLE_EQ(figures["pools"][0]["retrieves_per_s"].get<double>(), 0) << "a counter that fell";
}

TEST(Sample, WithoutAnEarlierLookEverythingIsStillThere) {
  const json figures = changes({}, sample(10, status_with(5, 1, 100, 100, 10), client_with(1, 1000)));
  EXPECT_EQ(figures["pools"].size(), 1u);
  EXPECT_EQ(figures["clients"][0]["pid"], 7);
  EXPECT_DOUBLE_EQ(figures["clients"][0]["stores_per_s"].get<double>(), 0);
  EXPECT_EQ(changes({}, {})["pools"].size(), 0u);
}

TEST(Sample, TiersHaveTheRatesOfTheTimeBetweenAndNoneOfAnotherMaruTierd) {
  const auto tiers = [](uint64_t pid, uint64_t hits, uint64_t misses, uint64_t loaded_bytes) {
    return json{
        {"pid", pid},
        {"pool", "default"},
        {"queued", 3u},
        {"tiers",
         {{{"name", "nvme"}, {"entries", 9u}, {"hits", hits}, {"misses", misses}, {"loaded_bytes", loaded_bytes}}}}};
  };
  Sample before = sample(10, status_with(5, 1, 0, 0, 0)), after = sample(12, status_with(5, 1, 0, 0, 0));
  EXPECT_TRUE(changes(before, after)["tiers"].empty());
  before.tiers = tiers(7, 100, 100, 1000);
  after.tiers = tiers(7, 130, 110, 5000);
  const json tier = changes(before, after)["tiers"][0];
  EXPECT_EQ(tier["name"], "nvme");
  EXPECT_EQ(tier["pool"], "default");
  EXPECT_EQ(tier["waiting_blocks"], 3u);
  EXPECT_DOUBLE_EQ(tier["hit_percent"].get<double>(), 75);
  EXPECT_DOUBLE_EQ(tier["loaded_bytes_per_s"].get<double>(), 2000);
  after.tiers = tiers(8, 130, 110, 5000);
  EXPECT_DOUBLE_EQ(changes(before, after)["tiers"][0]["loaded_bytes_per_s"].get<double>(), 0);
}

}  // namespace
}  // namespace maru::marudctl
