// The accounts of tenants in lanes: what is charged and returned, credit, folding, and what a pass over the pages finds.
#include "libmaru/shm/blocks/tenant_account.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "tests/unit/small_pool.h"

#include <map>

namespace maru::shm {
namespace {

constexpr uint64_t kPage = 4096;

class TenantAccountTest : public testing::Test {
 protected:
  uint64_t id(std::string_view name) const { return tenant_id(pool_.region.secret(), bytes_of(name)); }

  PublishResult store(uint32_t lane, std::string_view key, uint64_t tenant, uint32_t pages = 1) {
    const PageRef own = pool_.take(lane, pages);
    NewBlock block = pool_.block(key);
    block.tenant = tenant;
    block.digest = pool_.digest(key, tenant);
    const PublishResult result = publish(pool_.lane(lane), own, block);
    if (result.status != PublishStatus::kStored) give_back_run(pool_.region, pool_.lane(lane).id, own);
    return result;
  }
  uint64_t used(uint64_t tenant) const { return read_tenant(pool_.region, pool_.lanes, tenant).bytes(); }
  uint64_t counted(uint64_t tenant) const {
    uint64_t sum = 0;
    for (uint32_t page = 0; page < pool_.region.pages(); ++page) {
      uint64_t of = 0;
      const uint64_t bytes = tenant_bytes(pool_.region, page, &of);
      if (of == tenant) sum += bytes;
    }
    return sum;
  }
  void limit(uint64_t tenant) {
    const auto place = uint32_t(tenant % pool_.region.parameters().tenants);
    pool_.region.tenant(place).flags.store_relaxed(format::kTenantNeedsCredit);
    pool_.region.tenant(place).id.store_relaxed(tenant);
    pool_.region.tenant_rules().flags.store_relaxed(format::kRulesLimited);
  }

  SmallPool pool_;
};

TEST_F(TenantAccountTest, WhatIsStoredIsChargedAndWhatIsFreedIsReturned) {
  const uint64_t a = id("a"), b = id("b");
  const PageRef one = store(1, "one", a).block;
  const PageRef two = store(2, "two", a, 3).block;
  store(1, "three", b);
  store(1, "four", 0);
  EXPECT_EQ(used(a), 4 * kPage);
  EXPECT_EQ(used(b), kPage);
  EXPECT_EQ(counted(a), used(a));
  ASSERT_TRUE(pool_.remove(3, two));  // by another lane: its own account says so
  EXPECT_EQ(used(a), kPage);
  EXPECT_EQ(pool_.region.account(3, find_account(pool_.region, 3, a)).returned.load_relaxed(), 3 * kPage);
  ASSERT_TRUE(pool_.remove(1, one));
  EXPECT_EQ(used(a), 0u);
  EXPECT_EQ(counted(a), 0u);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(TenantAccountTest, AStoreThatLosesReturnsWhatItCharged) {
  const uint64_t a = id("a");
  ASSERT_EQ(store(1, "key", a).status, PublishStatus::kStored);
  EXPECT_EQ(store(2, "key", a).status, PublishStatus::kDuplicate);  // seen before anything is charged
  EXPECT_EQ(find_account(pool_.region, 2, a), kOthersAccount);
  const PageRef own = pool_.take(3);
  NewBlock block = pool_.block("child");
  block.tenant = a;
  block.parent = PageRef::of(40, 9);
  pool_.set_word(40, PageWord::ready(9, limits::kChildCountMax));  // so that step 4 refuses
  EXPECT_EQ(publish(pool_.lane(3), own, block).status, PublishStatus::kNoParent);
  const format::LaneAccount& account = pool_.region.account(3, find_account(pool_.region, 3, a));
  EXPECT_EQ(account.charged.load_relaxed(), kPage);
  EXPECT_EQ(account.returned.load_relaxed(), kPage);
  EXPECT_EQ(account.in_flight.load_relaxed(), 0u);
}

TEST_F(TenantAccountTest, WithoutATenantNoAccountIsTouched) {
  store(1, "key", 0);
  for (uint32_t i = 0; i < pool_.region.account_slots(); ++i) {
    EXPECT_EQ(pool_.region.account(1, i).tenant.load_relaxed(), 0u);
    EXPECT_EQ(pool_.region.account(1, i).charged.load_relaxed(), 0u);
  }
  EXPECT_EQ(pool_.region.lane_header(1).accounts.load_relaxed(), 0u);
}

TEST_F(TenantAccountTest, ALaneWithoutARoomCountsForTheOthers) {
  const uint32_t places = pool_.region.account_slots() - 1;
  for (uint32_t i = 0; i < places; ++i)
    EXPECT_EQ(store(1, "k" + std::to_string(i), 1000 + i).status, PublishStatus::kStored);
  EXPECT_EQ(store(1, "more", 5000).status, PublishStatus::kStored);
  EXPECT_EQ(find_account(pool_.region, 1, 5000), kOthersAccount);
  EXPECT_EQ(pool_.region.account(1, kOthersAccount).charged.load_relaxed(), kPage);
  limit(5000);  // and with a limit it has to ask
  EXPECT_EQ(store(1, "again", 5000).status, PublishStatus::kNeedsCredit);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(TenantAccountTest, CreditIsUsedUpAndNotPassed) {
  const uint64_t a = id("a");
  limit(a);
  EXPECT_EQ(store(1, "1", a).status, PublishStatus::kNeedsCredit);
  const uint32_t account = find_account(pool_.region, 1, a);
  ASSERT_NE(account, kOthersAccount);
  grant_credit(pool_.region, 1, account, 2 * kPage);
  EXPECT_EQ(store(1, "1", a).status, PublishStatus::kStored);
  EXPECT_EQ(store(1, "2", a, 2).status, PublishStatus::kNeedsCredit);
  EXPECT_EQ(store(1, "2", a).status, PublishStatus::kStored);
  EXPECT_EQ(store(1, "3", a).status, PublishStatus::kNeedsCredit);
  EXPECT_EQ(store(1, "other", id("b")).status, PublishStatus::kStored);  // without a record, and nobody else is limited
  pool_.region.tenant_rules().flags.store_relaxed(format::kRulesLimited | format::kRulesUnlistedNeedCredit);
  EXPECT_EQ(store(1, "others", id("b")).status, PublishStatus::kNeedsCredit);
}

TEST_F(TenantAccountTest, CommittedIsWhatIsUsedAndWhatMayStillBe) {
  const uint64_t a = id("a");
  store(1, "1", a);  // before there is a limit
  limit(a);
  LaneSet unsettled;
  EXPECT_EQ(committed_bytes(pool_.region, pool_.lanes, a, &unsettled), kPage);
  const uint32_t account = find_account(pool_.region, 1, a);
  grant_credit(pool_.region, 1, account, 3 * kPage);
  EXPECT_EQ(committed_bytes(pool_.region, pool_.lanes, a, &unsettled), 4 * kPage);
  // A store in flight that may not have seen the limit counts as a region, until none is seen.
  unsettled = pool_.lanes;
  pool_.region.account(1, account).in_flight.store_relaxed(kStoreInFlight);
  EXPECT_EQ(committed_bytes(pool_.region, pool_.lanes, a, &unsettled), 4 * kPage + 16 * kPage);
  // Nor is its credit taken back, unless it must be.
  revoke_credit(pool_.region, pool_.lanes, a, false);
  EXPECT_EQ(pool_.region.credit(1, account).load_relaxed(), 4 * kPage);
  pool_.region.account(1, account).in_flight.store_relaxed(kFreeInFlight);  // frees do not matter here
  EXPECT_EQ(committed_bytes(pool_.region, pool_.lanes, a, &unsettled), 4 * kPage);
  EXPECT_FALSE(unsettled.has(1));
  revoke_credit(pool_.region, pool_.lanes, a, false);
  EXPECT_EQ(committed_bytes(pool_.region, pool_.lanes, a, &unsettled), kPage);
}

TEST_F(TenantAccountTest, AReadingWithSomethingInFlightIsNotQuiet) {
  const uint64_t a = id("a");
  store(1, "1", a);
  EXPECT_TRUE(read_tenant(pool_.region, pool_.lanes, a).is_quiet);
  pool_.region.account(1, find_account(pool_.region, 1, a)).in_flight.store_relaxed(kFreeInFlight);
  EXPECT_FALSE(read_tenant(pool_.region, pool_.lanes, a).is_quiet);
}

TEST_F(TenantAccountTest, AFoldedLaneIsEmptyAndItsBytesAreInTheBalance) {
  const uint64_t a = id("a");
  const PageRef kept = store(1, "1", a, 2).block;
  store(1, "2", a);
  pool_.remove(2, kept);
  std::map<uint64_t, uint64_t> balance;
  for (uint32_t lane = 1; lane < 3; ++lane)
    fold_accounts(pool_.region, lane, [&](uint64_t tenant, uint64_t bytes) { balance[tenant] += bytes; });
  EXPECT_EQ(balance[a], kPage);
  EXPECT_EQ(used(a), 0u);
  for (uint32_t lane = 1; lane < 3; ++lane) EXPECT_EQ(find_account(pool_.region, lane, a), kOthersAccount);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(TenantAccountTest, ASealedBlockOfTheDeadIsReturnedByMarud) {
  struct Returns final : TenantReturns {
    uint64_t bytes = 0;
    void returned(uint32_t, uint64_t, uint64_t size) override { bytes += size; }
  } returns;
  struct Sink final : ReclaimSink {
    void parent_suspect(PageRef) override {}
    void retired_taken(PageRef) override {}
    void unregistered(PageRef) override {}
    void pages_freed(uint32_t) override {}
  } sink;
  pool_.lane(0).returns = &returns;
  const PageRef block = store(1, "1", id("a"), 2).block;
  pool_.set_word(block.page(), PageWord::sealed(block.generation(), pool_.lane(1).id));  // as if it had died in step 5
  reclaim_pages(pool_.lane(0), pool_.lane(1).id, 0, uint32_t(pool_.region.pages()), sink);
  EXPECT_EQ(returns.bytes, 2 * kPage);
  const PageRef other = store(2, "2", id("a")).block;
  ASSERT_EQ(retire_ref(pool_.lane(0), other), RetireStatus::kRetired);
  ASSERT_EQ(finish_retired(pool_.lane(0), other, pool_.lanes, nullptr), FinishStatus::kFreed);
  EXPECT_EQ(returns.bytes, 3 * kPage);
}

}  // namespace
}  // namespace maru::shm
