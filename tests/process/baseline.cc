#include "tests/process/baseline.h"

#include "libmaru/shm/blocks/block_store.h"
#include "tests/support/block_content.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <gtest/gtest.h>

namespace maru::test {

using format::PageState;

namespace {

bool is_at_rest(const ControlMap& map) {
  const auto counts = map.count_pages();
  return map.count_pins() == 0 && counts[PageState::kReserved] == 0 && counts[PageState::kSealed] == 0 &&
         counts[PageState::kRetired] == 0 && counts[PageState::kRetiring] == 0;
}

// The blocks' own pages and their tails, by their lengths.
uint64_t pages_of_blocks(const ControlMap& map) {
  uint64_t pages = 0;
  const shm::ControlRegion& region = map.region();
  for (uint32_t page = 0; page < region.pages(); ++page)
    if (shm::PageWord{region.block(page).word.load_acquire()}.is(PageState::kReady)) pages += region.run_pages(page);
  return pages;
}

}  // namespace

void expect_baseline(const MarudProcess& marud, const ControlMap& map, const std::string& pool) {
  EXPECT_TRUE(wait_until([&] { return is_at_rest(map); }))
      << "not reclaimed: " << map.count_pins() << " pins, " << map.count_pages().text();
  const auto counts = map.count_pages();
  EXPECT_EQ(counts.unknown(), 0u);
  EXPECT_EQ(counts[PageState::kPoisoned], 0u);
  EXPECT_EQ(counts[PageState::kReady] + counts[PageState::kTail], pages_of_blocks(map)) << counts.text();
  EXPECT_EQ(counts[PageState::kOut] + counts[PageState::kFree] + pages_of_blocks(map), map.region().pages())
      << counts.text();

  const nlohmann::json check = marud.ask({{"command", "check"}, {"quiesce", true}, {"pool", pool}});
  EXPECT_FALSE(check.contains("refused")) << check.dump();
  const nlohmann::json violations = check.value("violations", nlohmann::json());
  EXPECT_TRUE((violations.is_array() && violations.empty()) || violations == 0) << check.dump(1).substr(0, 4000);

  // The same invariants as the test sees them itself, with its own lane the only one that lives. A recount of a parent may
  // still be on its way: at rest means once it is done.
  shm::LaneSet live;
  live.add(map.attached().lane);
  std::vector<std::string> findings;
  EXPECT_TRUE(wait_until([&] {
    findings = map.audit(shm::AuditMode::kExact, live);
    return findings.empty();
  })) << findings.size()
      << " findings, the first: " << (findings.empty() ? "" : findings.front());
}

uint64_t expect_intact_blocks(const MarudProcess& marud, const ControlMap& map, const std::string& pool) {
  TestClient reader(marud.socket_path(), pool);
  const shm::ControlRegion& region = map.region();
  uint64_t intact = 0;
  for (uint32_t page = 0; page < region.pages(); ++page) {
    const shm::PageWord word{region.block(page).word.load_acquire()};
    if (!word.is(PageState::kReady)) continue;
    static shm::KeyBytes bytes;
    if (!shm::read_key(region, shm::PageRef::of(page, word.generation()), &bytes)) {
      ADD_FAILURE() << "page " << page << " is READY and has no key";
      continue;
    }
    const std::string key(reinterpret_cast<const char*>(bytes.data), bytes.size);
    maru_view view;
    const int result = reader.retrieve(key, &view);
    if (result == -ENOENT && region.block(page).expires_ms.load_acquire() != 0) continue;  // its time is over
    EXPECT_EQ(result, 0) << "\"" << key << "\" on page " << page << " is READY and cannot be read";
    if (result != 0) continue;
    const char* problem = BlockContent::problem(view.data, view.bytes, key);
    EXPECT_EQ(problem, nullptr) << "\"" << key << "\": " << problem;
    EXPECT_EQ(reader.release(view), 0);
    ++intact;
  }
  return intact;
}

}  // namespace maru::test
