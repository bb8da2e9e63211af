// The table of tenants: places, limits that apply, and the order in which tenants' blocks go.
#include "daemon/pool/tenants/tenants.h"
#include "daemon/policy/eviction_order.h"

#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

bool never_idle(uint32_t) { return false; }

uint32_t add(TenantTable& table, uint64_t tenant) { return table.find_or_add(tenant, never_idle); }

TEST(TenantTable, KnowsATenantByItsIndex) {
  TenantTable table(4);
  EXPECT_EQ(table.index_of(7), 0u);
  const uint32_t index = add(table, 7);
  EXPECT_EQ(index, 1 + 7 % 4u);
  EXPECT_EQ(add(table, 7), index);
  EXPECT_EQ(table.index_of(7), index);
  EXPECT_EQ(add(table, 0), 0u);
}

TEST(TenantTable, WhoFindsNoPlaceIsAmongTheOthers) {
  TenantTable table(2);
  add(table, 10);
  add(table, 11);
  EXPECT_EQ(add(table, 12), 0u);
  // The place of one of whom nothing is known is free for the next.
  EXPECT_NE(table.find_or_add(12, [](uint32_t) { return true; }), 0u);
  EXPECT_EQ(table.index_of(10), 0u);
}

TEST(TenantTable, ANamedTenantKeepsItsPlace) {
  TenantTable table(1);
  table.set(add(table, 10), "ten", {});
  EXPECT_EQ(table.find_or_add(11, [](uint32_t) { return true; }), 0u);
}

TEST(TenantTable, TakesOverOnlyWhatLiesWhereItMay) {
  TenantTable table(100);
  EXPECT_FALSE(table.put(1, 50));  // 50 places away
  EXPECT_TRUE(table.put(1, 99));   // the next, around the end
  EXPECT_TRUE(table.put(1 + 7, 7));
  EXPECT_FALSE(table.put(1 + 8, 7));  // twice
  EXPECT_TRUE(table.put(1 + 8, 107));
  EXPECT_FALSE(table.put(1 + 9, 0));
}

TEST(TenantTable, LimitsOfItsOwnGoBeforeTheDefault) {
  TenantTable table(8);
  const uint32_t own = add(table, 1), none = add(table, 2), other = add(table, 3);
  table.reset_limits({.soft_bytes = 100, .hard_bytes = 200}, false);
  table.set(own, "own", {.soft_bytes = 50, .hard_bytes = {}});
  table.set(none, "none", {.soft_bytes = 0, .hard_bytes = 0});
  table.finish_limits();
  EXPECT_EQ(table.row(own).soft_bytes, 50u);
  EXPECT_EQ(table.row(own).hard_bytes, 200u);
  EXPECT_EQ(table.row(none).limit_bytes(), 0u);
  EXPECT_EQ(table.row(other).soft_bytes, 100u);
  EXPECT_TRUE(table.needs_credit(own));
  EXPECT_FALSE(table.needs_credit(none));
  EXPECT_TRUE(table.unlisted_need_credit());
  EXPECT_EQ(table.row(add(table, 4)).hard_bytes, 200u);  // who comes later as well
}

TEST(TenantTable, AnAllowListAsksCreditOfWhoIsNotOnIt) {
  TenantTable table(8);
  const uint32_t listed = add(table, 1), other = add(table, 2);
  table.reset_limits({}, true);
  table.set(listed, "listed", {});
  table.finish_limits();
  EXPECT_FALSE(table.needs_credit(listed));
  EXPECT_TRUE(table.needs_credit(other));
  EXPECT_FALSE(table.matters());
}

TEST(TenantTable, RunTimeGoesBeforeTheConfiguration) {
  TenantSettings configured, at_run_time;
  configured.tenants = {{"a", {.soft_bytes = 1, .hard_bytes = 2}}, {"b", {}}, {"c", {}}};
  configured.defaults = {.soft_bytes = 10, .hard_bytes = 20};
  configured.listed_only = true;
  EXPECT_EQ(merged(configured, {}), configured);
  at_run_time.tenants = {{"a", {.soft_bytes = 5, .hard_bytes = {}}}, {"d", {}}};
  at_run_time.removed = {"b"};
  at_run_time.defaults.hard_bytes = 0;
  at_run_time.listed_only = false;
  const TenantSettings both = merged(configured, at_run_time);
  EXPECT_EQ(both.tenants.size(), 3u);
  EXPECT_EQ(both.tenants.at("a"), (TenantLimits{.soft_bytes = 5, .hard_bytes = {}}));
  EXPECT_FALSE(both.tenants.contains("b"));
  EXPECT_EQ(both.defaults, (TenantLimits{.soft_bytes = 10, .hard_bytes = 0}));
  EXPECT_EQ(both.listed_only, false);
}

class EvictionClass : public testing::Test {
 protected:
  EvictionClass() {
    table_.reset_limits({}, false);
    table_.set(over_, "over", {.soft_bytes = 100, .hard_bytes = {}});
    table_.set(within_, "within", {.soft_bytes = 100, .hard_bytes = {}});
    table_.set(asker_, "asker", {.soft_bytes = {}, .hard_bytes = 100});
    table_.finish_limits();
    table_.set_used(over_, 101);
    table_.set_used(within_, 100);
    table_.set_used(asker_, 100);
    table_.set_used(unlimited_, 1000);
  }
  TenantTable table_{16};
  uint32_t over_ = add(table_, 1), within_ = add(table_, 2), asker_ = add(table_, 3), unlimited_ = add(table_, 4);
};

TEST_F(EvictionClass, OverTheLimitThenUnlimitedThenTheAsker) {
  EXPECT_EQ(table_.eviction_class(over_, asker_), 0u);
  EXPECT_EQ(table_.eviction_class(0, asker_), 1u);
  EXPECT_EQ(table_.eviction_class(unlimited_, asker_), 1u);
  EXPECT_EQ(table_.eviction_class(asker_, asker_), 2u);
  EXPECT_EQ(table_.eviction_class(within_, asker_), kTenantProtected);
}

TEST_F(EvictionClass, OthersYieldOnlyWhenNobodyIsOver) {
  table_.all_may_yield(true);
  EXPECT_EQ(table_.eviction_class(within_, asker_), kTenantProtected);
  table_.freed(over_, 1);  // one block of it went
  EXPECT_EQ(table_.eviction_class(over_, asker_), 3u);
  EXPECT_EQ(table_.eviction_class(within_, asker_), 3u);
  table_.all_may_yield(false);
  EXPECT_EQ(table_.eviction_class(within_, asker_), kTenantProtected);
}

TEST_F(EvictionClass, FloodingBeyondTheLimitProtectsNobodyButTheOthers) {
  table_.all_may_yield(true);
  table_.set_used(asker_, 101);
  EXPECT_EQ(table_.eviction_class(asker_, asker_), 0u);
  EXPECT_EQ(table_.eviction_class(within_, asker_), kTenantProtected);
}

TEST(TenantTable, WithoutLimitsEveryBlockIsTheSame) {
  TenantTable table(4);
  const uint32_t index = add(table, 1);
  EXPECT_FALSE(table.matters());
  EXPECT_EQ(table.eviction_class(index, 0), 0u);
  EXPECT_EQ(table.eviction_class(0, index), 0u);
}

}  // namespace
}  // namespace maru::daemon
