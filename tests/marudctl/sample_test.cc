#include "daemon/marudctl/sample.h"

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
  return {seconds * 1'000'000'000, 250'000, std::move(status), std::move(clients)};
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

}  // namespace
}  // namespace maru::marudctl
