// A client that writes random values into random words of the control region, everywhere: marud neither crashes nor hangs,
// and another pool of the same marud does not notice.
#include "tests/process/baseline.h"
#include "tests/process/board.h"
#include "tests/process/roles.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <gtest/gtest.h>
#include <string>

namespace maru::test {
namespace {

constexpr const char* kSectionNames[] = {"hosts",   "regions",   "lane identities", "policy",   "tenants",  "blocks",
                                         "details", "key bytes", "key extents",     "registry", "overflow", "lanes"};
static_assert(std::size(kSectionNames) == format::kSectionCount);

class Scribbler : public ::testing::Test {
 protected:
  static PoolWish pool(const char* name, bool in_file) {
    PoolWish wish;
    wish.name = name;
    wish.bytes = 4u << 20;
    wish.region_bytes = 256u << 10;
    wish.in_file = in_file;
    return wish;
  }

  // What a client that means well gets from the damaged pool does not matter, as long as it gets an answer. Asking marud for
  // everything that makes it look at the region does.
  void work_in_the_damaged_pool(TestClient& client, Random& random) {
    const std::string key = "k" + std::to_string(random.below(500));
    maru_buffer buffer;
    const int result = maru_alloc(client, 1 + random.below(9000), &buffer);
    EXPECT_NE(result, -ETIMEDOUT) << "marud does not answer";
    if (result == 0) maru_abort(client, &buffer);
    (void)client.remove_tree(key);
    for (const char* command : {"status", "regions", "map", "blocks", "pins", "check", "clients"}) {
      const auto reply = marud_.ask({{"command", command}, {"pool", "damaged"}, {"limit", 50}});
      EXPECT_TRUE(reply.is_object());
    }
    if (random.one_in(4)) (void)marud_.ask({{"command", "evict"}, {"pool", "damaged"}, {"pages", 20}});
    if (random.one_in(16)) (void)marud_.ask({{"command", "clear"}, {"pool", "damaged"}});
  }
  void expect_sound_pool_untouched() {
    TestClient client(marud_.socket_path(), "sound");
    for (int i = 0; i < 100; ++i) EXPECT_EQ(client.text("sound " + std::to_string(i)), "text " + std::to_string(i));
    EXPECT_EQ(client.store("another", "text"), 0);
    EXPECT_EQ(client.remove("another"), 0);
    const auto check = marud_.ask({{"command", "check"}, {"pool", "sound"}, {"quiesce", true}});
    const auto violations = check.value("violations", nlohmann::json());
    EXPECT_TRUE((violations.is_array() && violations.empty()) || violations == 0) << check.dump(1).substr(0, 2000);
  }

  MarudProcess marud_{{pool("damaged", true), pool("sound", false)}};
};

TEST_F(Scribbler, DamageStaysInItsPoolAndMarudGoesOn) {
  const uint64_t seed = fresh_seed();
  const uint64_t steps = number_from_environment("MARU_SCRIBBLES", 6);
  std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  TestClient sound(marud_.socket_path(), "sound");
  for (int i = 0; i < 100; ++i) ASSERT_EQ(sound.store("sound " + std::to_string(i), "text " + std::to_string(i)), 0);
  {
    TestClient victim(marud_.socket_path(), "damaged");
    for (int i = 0; i < 400; ++i) {
      const std::string key = "k" + std::to_string(i);
      ASSERT_EQ(victim.store(key, "text", i % 5 ? "k" + std::to_string(i - 1) : ""), 0);
    }
    // One section after the other, then all of them.
    for (uint32_t section = 0; section <= format::kSectionCount && !HasFailure(); ++section) {
      Board board;
      ChildProcess scribbler({own_program(), "--role", "scribbler", marud_.socket_path(), std::to_string(random.next()),
                              std::to_string(board.fd()), std::to_string(section)},
                             "", {board.fd()});
      const char* where = section < format::kSectionCount ? kSectionNames[section] : "everywhere";
      EXPECT_TRUE(wait_until([&] { return board->worker[0].operations.load() > 0 || !scribbler.is_running(); }));
      for (uint64_t step = 0; step < steps && !HasFailure(); ++step) {
        const uint64_t before = board->worker[0].operations.load();
        work_in_the_damaged_pool(victim, random);
        EXPECT_TRUE(wait_until([&] { return board->worker[0].operations.load() > before; })) << "the scribbler ended";
      }
      ASSERT_TRUE(marud_.is_running()) << "marud did not survive damage in " << where;
      scribbler.kill();
      expect_sound_pool_untouched();
    }
  }
  // marud stops in order, too (the fixture's end), and starts on the damaged file: served or refused, not crashed.
  marud_.stop();
  try {
    marud_.start();
  } catch (const std::exception& refused) {
    EXPECT_NE(std::string(refused.what()).find("marud stops: "), std::string::npos) << refused.what();
  }
}

}  // namespace

// --role scribbler SOCKET SEED BOARD_FD SECTION. The board's operations count hundreds of words.
int run_scribbler(int argument_count, char** arguments) {
  if (argument_count != 4) return 2;
  const ControlMap map(arguments[0], "damaged");
  Random random(std::strtoull(arguments[1], nullptr, 10));
  Board board(std::atoi(arguments[2]));
  const auto chosen = uint32_t(std::atoi(arguments[3]));
  const shm::Layout& layout = map.region().layout();
  while (true) {
    for (int i = 0; i < 100; ++i) {
      const uint64_t section = chosen < format::kSectionCount ? chosen : random.below(format::kSectionCount);
      const format::SectionRecord& where = layout.sections[section];
      if (where.bytes < 8) break;
      auto* word = reinterpret_cast<AtomicU64*>(map.bytes().data() + where.offset + random.below(where.bytes / 8) * 8);
      const uint64_t old = word->load_relaxed();
      switch (random.below(6)) {
        case 0: word->store_relaxed(random.next()); break;
        case 1: word->store_relaxed(old ^ 1ull << random.below(64)); break;
        case 2: word->store_relaxed(0); break;
        case 3: word->store_relaxed(~0ull); break;
        case 4: word->store_relaxed(old + (random.one_in(2) ? 1 : (1ull << 32))); break;
        // A word of the same section: links and references that are valid somewhere else.
        case 5:
          word->store_relaxed(
              reinterpret_cast<AtomicU64*>(map.bytes().data() + where.offset + random.below(where.bytes / 8) * 8)
                  ->load_relaxed());
          break;
      }
    }
    board->worker[0].operations.fetch_add(1);
  }
}

}  // namespace maru::test
