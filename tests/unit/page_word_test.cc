#include "libmaru/shm/region/page_word.h"

#include <gtest/gtest.h>

namespace maru::shm {
namespace {

using format::kRecountFlag;

TEST(PageWord, KeepsStateGenerationAndLow) {
  for (uint32_t state = 0; state < 16; ++state)
    for (const uint32_t generation : {0u, 1u, 0x8000'0000u, 0xFFFF'FFFFu})
      for (const uint32_t low : {0u, 1u, 0xABC'DEF0u, 0xFFF'FFFFu}) {
        const PageWord word = PageWord::of(PageState(state), generation, low);
        EXPECT_EQ(uint32_t(word.state()), state);
        EXPECT_EQ(word.generation(), generation);
        EXPECT_EQ(word.low(), low);
      }
}

TEST(PageWord, AGenerationThatWrapsDoesNotReachTheState) {
  EXPECT_EQ(PageWord::free(0xFFFF'FFFFu + 1).bits, PageWord::free(0).bits);
}

TEST(PageWord, NamesLanes) {
  const LaneId lane{4095, 65535};
  EXPECT_EQ(PageWord::reserved(3, lane).lane(), lane);
  EXPECT_EQ(PageWord::sealed(3, lane).lane(), lane);
  EXPECT_EQ(PageWord::retired(3, lane).lane(), lane);
  EXPECT_TRUE(PageWord::retired(3, lane).names_lane());
  EXPECT_FALSE(PageWord::ready(3, 5).names_lane());
  EXPECT_FALSE(PageWord::retiring(3, 0, 1).names_lane()) << "an evictor is no owner";
  EXPECT_EQ(LaneId::from_low(lane.low()), lane);
}

TEST(PageWord, CountsChildrenBesideTheRecountFlag) {
  const PageWord word = PageWord::ready(9, limits::kChildCountMax, true);
  EXPECT_EQ(word.children(), limits::kChildCountMax);
  EXPECT_TRUE(word.recount());
  EXPECT_FALSE(PageWord::ready(9, limits::kChildCountMax).recount());
  EXPECT_EQ(PageWord::ready(9, 3, true).bits ^ PageWord::ready(9, 3).bits, uint64_t(kRecountFlag));
}

TEST(PageWord, AttemptsOfOneEvictorAreDifferent) {
  EXPECT_NE(PageWord::retiring(1, 0, 1).bits, PageWord::retiring(1, 0, 2).bits);
  EXPECT_NE(PageWord::retiring(1, 0, 1).bits, PageWord::retiring(1, 1, 1).bits);
  EXPECT_EQ(PageWord::retiring(1, 4095, 65535).generation(), 1u);
}

TEST(PageWord, ZeroIsOutOfGenerationZero) { EXPECT_EQ(PageWord::out(0).bits, 0u); }

TEST(PageRef, NoneIsZeroAndNoPage) {
  EXPECT_TRUE(PageRef::none().is_none());
  EXPECT_FALSE(PageRef::of(0, 0).is_none());
  EXPECT_TRUE(PageRef::from_bits(7).is_none()) << "a generation without a page";
  const PageRef last = PageRef::of(0xFFFF'FFFD, 0xFFFF'FFFF);
  EXPECT_EQ(last.page(), 0xFFFF'FFFDu);
  EXPECT_EQ(last.generation(), 0xFFFF'FFFFu);
}

}  // namespace
}  // namespace maru::shm
