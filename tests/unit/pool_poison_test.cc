// Bad memory in a pool: what becomes of the page, of the block there, of what is above and below it, over restarts as well.
#include "libmaru/shm/blocks/hash.h"
#include "pool_fixture.h"
#include "tests/support/memory_error.h"

#include <cstdio>
#include <fstream>

namespace maru::daemon {
namespace {

using nlohmann::json;

class PoolPoison : public ::testing::Test {
 protected:
  json poison(uint32_t page) { return pool_.pool->admin("memory.poison", {{"page", page}}, pool_.now_ms); }
  json poison(std::string_view key) { return pool_.pool->admin("memory.poison", {{"key", key}}, pool_.now_ms); }
  uint32_t children(PageRef ref) const { return pool_.word(ref.page()).children(); }
  void expect_clean() { EXPECT_EQ(pool_.audit(), std::set<std::string>()); }

  PoolUnderTest pool_;
  std::unique_ptr<InProcessClient> client_ = pool_.attach();
};

TEST_F(PoolPoison, BlockIsAMissAndItsPageIsNeverUsedAgain) {
  const PageRef block = client_->store("k");
  EXPECT_EQ(poison("k").value("result", ""), "poisoned");
  EXPECT_FALSE(pool_.exists("k"));
  EXPECT_FALSE(shm::registry_exists(pool_.region, pool_.digest("k")));
  pool_.settle();
  expect_clean();
  const PageRef again = client_->store("k");
  ASSERT_FALSE(again.is_none());
  EXPECT_NE(again.page(), block.page());
  // As many blocks as the pool will ever take.
  for (int i = 0; i < 400; ++i) (void)client_->store("fill" + std::to_string(i));
  EXPECT_TRUE(pool_.word(block.page()).is(PageState::kPoisoned, block.generation()));
  EXPECT_EQ(poison(block.page()).value("result", ""), "was poisoned already");
}

TEST_F(PoolPoison, FreeAndOutPagesGoToo) {
  const PageRef block = client_->store("k");
  const uint32_t free_page = block.page() + 1, out_page = uint32_t(pool_.region.pages()) - 1;
  ASSERT_TRUE(pool_.word(free_page).is(PageState::kFree));
  ASSERT_TRUE(pool_.word(out_page).is(PageState::kOut));
  EXPECT_EQ(poison(free_page).value("was", ""), "free");
  EXPECT_EQ(poison(out_page).value("was", ""), "out");
  pool_.settle();
  EXPECT_EQ(pool_.count(PageState::kPoisoned), 2u);
  EXPECT_TRUE(pool_.exists("k"));
  expect_clean();
}

TEST_F(PoolPoison, WhatIsBelowGoesAndTheParentForgets) {
  const PageRef a = client_->store("a"), b = client_->store("b", a), c = client_->store("c", b);
  client_->store("d", c);
  const PageRef other = client_->store("other", a);
  ASSERT_EQ(children(a), 2u);
  poison("b");
  pool_.settle();
  for (const char* gone : {"b", "c", "d"}) EXPECT_FALSE(pool_.exists(gone)) << gone;
  EXPECT_TRUE(pool_.exists("a"));
  EXPECT_TRUE(pool_.exists("other"));
  EXPECT_EQ(children(a), 1u);
  EXPECT_TRUE(pool_.word(other.page()).is(PageState::kReady));
  EXPECT_TRUE(pool_.word(c.page()).is(PageState::kFree)) << "its memory is good";
  expect_clean();
}

TEST_F(PoolPoison, PinBelowKeepsTheAncestorsUntilItEnds) {
  const PageRef a = client_->store("a"), b = client_->store("b", a), c = client_->store("c", b);
  const shm::Pin pin = client_->pin(c);
  ASSERT_EQ(pin.status, shm::PinStatus::kPinned);
  poison("b");
  pool_.settle();
  EXPECT_FALSE(pool_.exists("c")) << "its key goes now";
  EXPECT_TRUE(pool_.word(c.page()).is(PageState::kRetired, c.generation())) << "and its memory stays while it is read";
  EXPECT_EQ(children(a), 1u);
  (void)pool_.pool->admin("clear", json::object(), pool_.now_ms);
  EXPECT_TRUE(pool_.exists("a")) << "the reader was promised all ancestors";
  ASSERT_TRUE(client_->pins.unpin(pin.slot, c));
  for (int i = 0; i < 20; ++i) {
    pool_.now_ms += 6000;
    pool_.pool->turn(pool_.now_ms);
  }
  EXPECT_EQ(children(a), 0u);
  EXPECT_TRUE(pool_.word(c.page()).is(PageState::kFree));
  expect_clean();
}

TEST_F(PoolPoison, PinOfTheBlockItselfHoldsItsAncestorsToo) {
  const PageRef a = client_->store("a"), b = client_->store("b", a);
  const shm::Pin pin = client_->pin(b);
  poison("b");
  pool_.settle();
  EXPECT_EQ(children(a), 1u);
  expect_clean();
  ASSERT_TRUE(client_->pins.unpin(pin.slot, b));
  for (int i = 0; i < 20; ++i) {
    pool_.now_ms += 6000;
    pool_.pool->turn(pool_.now_ms);
  }
  EXPECT_EQ(children(a), 0u);
  expect_clean();
}

TEST_F(PoolPoison, BadPageInsideOfARunTakesTheBlockAndGivesTheOthersBack) {
  const PageRef run = client_->store("run", PageRef::none(), 4);
  ASSERT_FALSE(run.is_none());
  EXPECT_EQ(poison(run.page() + 2).value("was", ""), "tail");
  EXPECT_FALSE(pool_.exists("run"));
  pool_.settle();
  EXPECT_TRUE(pool_.word(run.page()).is(PageState::kPoisoned));
  EXPECT_TRUE(pool_.word(run.page() + 1).is(PageState::kFree));
  EXPECT_TRUE(pool_.word(run.page() + 2).is(PageState::kPoisoned));
  EXPECT_TRUE(pool_.word(run.page() + 3).is(PageState::kFree));
  expect_clean();
}

TEST_F(PoolPoison, RunThatIsBeingFilledGoesWhenItIsPublished) {
  const PageRef run = client_->take(3);
  poison(run.page() + 1);
  pool_.settle();
  EXPECT_TRUE(pool_.word(run.page()).is(PageState::kReserved));
  shm::NewBlock block{};
  block.digest = pool_.digest("run");
  block.key = std::as_bytes(std::span("run", 3));
  block.length = 100;
  EXPECT_EQ(shm::publish(client_->lane, run, block).status, shm::PublishStatus::kStored);
  pool_.settle();
  EXPECT_FALSE(pool_.exists("run"));
  EXPECT_TRUE(pool_.word(run.page()).is(PageState::kPoisoned));
  EXPECT_TRUE(pool_.word(run.page() + 2).is(PageState::kFree));
  expect_clean();
}

TEST_F(PoolPoison, PageOfAClientThatFillsItIsLost) {
  const PageRef page = client_->take();
  EXPECT_EQ(poison(page.page()).value("was", ""), "reserved");
  shm::NewBlock block{};
  block.digest = pool_.digest("k");
  block.key = std::as_bytes(std::span("k", 1));
  block.length = 100;
  EXPECT_EQ(shm::publish(client_->lane, page, block).status, shm::PublishStatus::kNotReserved);
  EXPECT_EQ(shm::give_back_run(pool_.region, client_->lane.id, page), 0u);
  pool_.settle();
  expect_clean();
}

TEST_F(PoolPoison, JoiningARunThatHasOneGivesTheOthersBack) {
  ASSERT_TRUE(client_->rent(1));
  const uint32_t first = *client_->regions.begin() * pool_.region.region_pages();
  for (uint32_t i = 0; i < 3; ++i) ASSERT_FALSE(shm::take_page(pool_.region, client_->lane.id, first + i).is_none());
  poison(first + 1);
  EXPECT_FALSE(shm::join_run(pool_.region, client_->lane.id, first, 3));
  EXPECT_TRUE(pool_.word(first).is(PageState::kFree));
  EXPECT_TRUE(pool_.word(first + 2).is(PageState::kFree));
  pool_.settle();
  expect_clean();
}

TEST_F(PoolPoison, LastsOverRestarts) {
  const PageRef a = client_->store("a"), b = client_->store("b", a), run = client_->store("run", PageRef::none(), 3);
  client_->store("c", b);
  poison("b");
  // marud dies right after the word of a page inside of a run, and after that of another's head.
  pool_.region.block(run.page() + 1).word.store_release(PageWord::poisoned(0).bits);
  ASSERT_TRUE(pool_.restart());
  pool_.settle();
  EXPECT_TRUE(pool_.word(b.page()).is(PageState::kPoisoned, b.generation()));
  for (const char* gone : {"b", "c", "run"}) EXPECT_FALSE(pool_.exists(gone)) << gone;
  EXPECT_TRUE(pool_.exists("a"));
  EXPECT_EQ(children(a), 0u);
  EXPECT_EQ(pool_.pool->status_json(pool_.now_ms)["page_states"]["poisoned"], pool_.count(PageState::kPoisoned));
  expect_clean();
}

TEST_F(PoolPoison, ReportOfAPageThatReadsWellIsRemembered) {
  const PageRef block = client_->store("k");
  EXPECT_NE(pool_.pool->report_bad_page(block.page(), pool_.now_ms).find("reads all of it"), std::string::npos);
  EXPECT_EQ(pool_.pool->report_bad_page(block.page(), pool_.now_ms), "") << "not again at once";
  EXPECT_EQ(pool_.pool->report_bad_page(1u << 30, pool_.now_ms), "");
  EXPECT_TRUE(pool_.exists("k"));
  const json list = pool_.pool->admin("memory.list", json::object(), pool_.now_ms);
  ASSERT_EQ(list["memory"].size(), 1u);
  EXPECT_EQ(list["memory"][0]["state"], "reported");
  EXPECT_EQ(list["memory"][0]["page"], block.page());
}

TEST_F(PoolPoison, WrongRequestsSayWhatIsExpected) {
  for (const json& request : {json::object(), json{{"page", 1}, {"key", "k"}}, json{{"page", 1u << 30}},
                              json{{"key", "none"}}, json{{"page", "x"}}})
    EXPECT_TRUE(pool_.pool->admin("memory.poison", request, pool_.now_ms).contains("error")) << request.dump();
  EXPECT_EQ(pool_.count(PageState::kPoisoned), 0u);
}

TEST_F(PoolPoison, OfTheControlRegionItSaysWhere) {
  EXPECT_EQ(pool_.pool->bad_control_memory(), "");
  const auto& blocks = pool_.region.layout().sections[format::kSectionBlocks];
  ASSERT_TRUE(test::raise_memory_error(pool_.pool->device().control().data() + blocks.offset, BUS_MCEERR_AR));
  EXPECT_NE(pool_.pool->bad_control_memory().find("in the part \"blocks\""), std::string::npos)
      << pool_.pool->bad_control_memory();
  EXPECT_FALSE(pool_.pool->device().is_lost());
  pool_.pool->turn(pool_.now_ms);  // it goes on with what it has
}

// What the machine took away of an idle lane reads as zeros, which are no pins.
TEST_F(PoolPoison, PinsThatCannotBeReadCountAsPins) {
  const PageRef block = client_->store("k");
  const shm::Pin pin = client_->pin(block);
  ASSERT_EQ(pin.status, shm::PinStatus::kPinned);
  const auto* slot = reinterpret_cast<const std::byte*>(&pool_.region.lane(client_->grant.lane).pins[pin.slot]);
  const auto marud = pool_.pool->device().control();
  ASSERT_TRUE(test::raise_memory_error(marud.data() + (slot - pool_.mapping.data()), BUS_MCEERR_AR));
  (void)pool_.pool->admin("evict", {{"pages", 16}}, pool_.now_ms);
  EXPECT_TRUE(pool_.word(block.page()).is(PageState::kReady, block.generation()));
  (void)pool_.pool->admin("clear", json::object(), pool_.now_ms);
  EXPECT_FALSE(pool_.word(block.page()).is(PageState::kFree)) << "somebody reads it";
  EXPECT_FALSE(pool_.pool->bad_control_memory().empty()) << "whoever hosts the pool fences it";
}

// After a loss of power every byte is read; one page of them cannot be.
TEST_F(PoolPoison, PageThatVerifyingCannotReadIsNeverUsedAgain) {
  const PageRef good = client_->store("good"), bad = client_->store("bad"), child = client_->store("child", bad);
  const std::vector<std::byte> zeros(100);
  for (const PageRef ref : {good, bad, child})
    pool_.region.detail(ref.page()).checksum.store_relaxed(shm::payload_checksum(zeros));
  const auto verified = pool_.pool->verify(
      [&](uint64_t done, uint64_t) {
        if (done / (pool_.region.region_pages() * 4096) != pool_.region.region_of(bad.page())) return true;
        // Where the region is mapped to be read, and nothing else of this process is.
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
          unsigned long start = 0, end = 0, offset = 0;
          char rights[5] = {};
          if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx", &start, &end, rights, &offset) != 4) continue;
          if (std::string_view(rights) != "r--s" || line.find("memfd:") == line.npos) continue;
          const uint64_t at = pool_.pool->device().pages_offset() + bad.page() * 4096;
          EXPECT_TRUE(test::raise_memory_error(reinterpret_cast<void*>(start + (at - offset)), BUS_MCEERR_AR));
          return true;
        }
        ADD_FAILURE() << "no mapping of the pages";
        return true;
      },
      pool_.now_ms);
  ASSERT_TRUE(verified) << verified.error().text();
  EXPECT_EQ(verified->dropped, 2u) << "the block there, and what is below it";
  EXPECT_TRUE(pool_.word(bad.page()).is(PageState::kPoisoned));
  EXPECT_TRUE(pool_.word(child.page()).is(PageState::kFree));
  EXPECT_TRUE(pool_.exists("good"));
  EXPECT_FALSE(pool_.exists("bad"));
  expect_clean();
}

// -- what clients wrote before marud was started ----------------------------------------------------------------------

class PoolPoisonScribbled : public ::testing::Test {
 protected:
  void set_word(uint32_t page, PageWord word) { pool_.region.block(page).word.store_release(word.bits); }
  // A head that is being filled, or any other word, and behind it one more page.
  void scribble_run(uint32_t page, PageWord head, PageWord tail) {
    pool_.region.block(page).shape.store_relaxed(2);
    set_word(page, head);
    set_word(page + 1, tail);
  }
  uint32_t tails() const { return pool_.count(PageState::kTail); }

  PoolUnderTest pool_{32u << 20, 1024};
  std::unique_ptr<InProcessClient> client_ = pool_.attach();
};

TEST_F(PoolPoisonScribbled, AnyNumberOfHeadsThatAreNoLongerFilledGoesInTurns) {
  PoolUnderTest large(256u << 20, 4096);
  const auto client = large.attach();
  const auto runs = uint32_t(large.region.pages() / 2);
  for (uint32_t i = 0; i < runs; ++i) {
    large.region.block(2 * i).shape.store_relaxed(2);
    large.region.block(2 * i).word.store_release(PageWord::reserved(0, client->lane.id).bits);
    large.region.block(2 * i + 1).word.store_release(PageWord::poisoned(0).bits);
  }
  ASSERT_TRUE(large.restart());
  for (uint32_t i = 0; i < runs; ++i) large.region.block(2 * i).word.store_release(PageWord::ready(0, 0).bits);
  large.pool->turn(large.now_ms);
  const uint32_t after_one = large.count(PageState::kReady);
  EXPECT_GT(after_one, runs / 2) << "a turn has an end";
  EXPECT_LT(after_one, runs);
  for (int turns = 0; turns < 1000 && large.count(PageState::kReady) > 0; ++turns) large.pool->turn(large.now_ms);
  EXPECT_EQ(large.count(PageState::kPoisoned), 2 * runs);
}

TEST_F(PoolPoisonScribbled, WhatManyPoisonedPagesHoldIsLetGoInTurns) {
  pool_.pool->detach(client_->grant.lane);
  constexpr uint32_t kRuns = 3000;
  ASSERT_GE(pool_.region.pages(), 2 * kRuns);
  for (uint32_t i = 0; i < kRuns; ++i) scribble_run(2 * i, PageWord::poisoned(0), PageWord::tail(0, 1));
  ASSERT_TRUE(pool_.restart());
  ASSERT_EQ(tails(), kRuns);
  for (int turns = 0; turns < 1000 && tails() == kRuns; ++turns) pool_.pool->turn(pool_.now_ms);
  EXPECT_GT(tails(), 0u) << "not all in one turn";
  EXPECT_LT(tails(), kRuns);
  pool_.settle();
  EXPECT_EQ(tails(), 0u);
  EXPECT_EQ(pool_.count(PageState::kPoisoned), kRuns);
}

TEST_F(PoolPoisonScribbled, PagesBehindABadOneWaitForTheClientsOfThatTimeAlone) {
  scribble_run(0, PageWord::poisoned(0), PageWord::tail(0, 1));
  ASSERT_TRUE(pool_.restart());
  const auto later = pool_.attach();
  pool_.settle();
  EXPECT_EQ(tails(), 1u) << "the first client may still write there";
  pool_.pool->client_died(client_->grant.lane);
  for (int i = 0; i < 20; ++i) {
    pool_.now_ms += 6000;
    pool_.pool->turn(pool_.now_ms);
  }
  EXPECT_EQ(tails(), 0u);
}

}  // namespace
}  // namespace maru::daemon
