#include "libmaru/shm/region/format_claim.h"
#include "libmaru/shm/region/pool_sizing.h"
#include "small_pool.h"

#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace maru::shm {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB, kTiB = 1024 * kGiB;

// The smallest pool that can be had: one page, two lanes.
FormatWishes smallest() {
  FormatWishes wishes;
  wishes.pool_bytes = 128 * kKiB;
  wishes.page_bytes = 4096;
  wishes.region_bytes = 4096;
  wishes.lanes = 2;
  wishes.tenants = 1;
  wishes.pins_max = 8;
  wishes.touch_entries = 8;
  wishes.key_inline_bytes = 32;
  wishes.key_extents = 1;
  return wishes;
}

void expect_sections_in_order(const Layout& layout, const Parameters& p) {
  uint64_t end = sizeof(Header);
  for (const format::SectionRecord& section : layout.sections) {
    EXPECT_GE(section.offset, end);
    EXPECT_EQ(section.offset % p.section_align, 0u);
    EXPECT_GT(section.bytes, 0u);
    end = section.offset + section.bytes;
  }
  EXPECT_GE(layout.control_bytes, end);
  EXPECT_EQ(layout.control_bytes % p.page_bytes, 0u);
  EXPECT_LE(layout.control_bytes + p.pages * p.page_bytes, p.pool_bytes);
}

TEST(ControlRegion, PlansFromKilobytesTo64TiB) {
  Parameters p;
  Layout layout;
  ASSERT_EQ(choose_parameters(smallest(), &p), nullptr);
  ASSERT_EQ(plan_layout(p, &layout), nullptr);
  expect_sections_in_order(layout, p);
  for (uint64_t bytes = 256 * kMiB; bytes <= 64 * kTiB; bytes *= 2) {
    FormatWishes wishes;
    wishes.pool_bytes = bytes;
    ASSERT_EQ(choose_parameters(wishes, &p), nullptr) << bytes;
    ASSERT_EQ(plan_layout(p, &layout), nullptr) << bytes;
    expect_sections_in_order(layout, p);
    // One region more would not have fitted.
    Parameters more = p;
    more.pages += p.region_pages;
    more.key_extents = std::max(p.key_extents, std::min<uint64_t>(more.pages * p.page_bytes / 64 / 4096, more.pages));
    EXPECT_NE(plan_layout(more, &layout), nullptr) << bytes;
  }
  EXPECT_GT(p.pages * p.page_bytes, 63 * kTiB);
}

// Whatever the size of pages, a pool full of blocks with long keys has had a place for each; with the smallest pages
// a long key is one of more than 128 bytes, and key_inline_bytes is there for those who have them.
TEST(ControlRegion, HasAPlaceForALongKeyOfEachPage) {
  for (uint64_t page_bytes = limits::kPageBytesMin; page_bytes <= limits::kPageBytesMax; page_bytes *= 2) {
    FormatWishes wishes;
    wishes.pool_bytes = 8 * kGiB;
    wishes.page_bytes = page_bytes;
    Parameters p;
    ASSERT_EQ(choose_parameters(wishes, &p), nullptr) << page_bytes;
    const uint64_t longest = p.key_extents >= p.pages ? limits::kKeyBytesMax : p.key_inline_bytes;
    EXPECT_GE(longest, page_bytes >= 256 * kKiB  ? 4096u
                       : page_bytes >= 64 * kKiB ? 1024u
                       : page_bytes >= 16 * kKiB ? 256u
                                                 : 128u)
        << page_bytes;
    EXPECT_LE(p.pages * p.key_inline_bytes + p.key_extents * limits::kKeyExtentBytes, p.pages * p.page_bytes / 21)
        << page_bytes << ": a twentieth of the pages' bytes";
  }
}

TEST(ControlRegion, TakesASmallShareOfASmallPool) {
  for (uint64_t bytes = 256 * kKiB; bytes <= 64 * kGiB; bytes += bytes / 4 / 4096 * 4096) {
    FormatWishes wishes;
    wishes.pool_bytes = bytes;
    Parameters p;
    Layout layout;
    ASSERT_EQ(choose_parameters(wishes, &p), nullptr) << bytes;
    ASSERT_EQ(plan_layout(p, &layout), nullptr) << bytes;
    EXPECT_GE(p.lanes, 16u) << bytes;
    EXPECT_LE(p.lanes, 256u) << bytes;
    EXPECT_GE(p.pins_max, std::min<uint64_t>(1024, p.pages / 2)) << bytes;
    EXPECT_LE(p.pins_max, 16384u) << bytes;
    if (bytes >= 4 * kMiB) {
      EXPECT_LT(layout.control_bytes * 8, bytes);
    }
    if (bytes >= 2 * kGiB) {
      EXPECT_EQ(p.lanes * p.pins_max, 256u * 16384) << bytes;
    }
  }
}

TEST(ControlRegion, WhatIsWishedForIsTakenAsItIs) {
  FormatWishes wishes;
  wishes.pool_bytes = 128 * kMiB;
  Parameters defaults, p;
  Layout layout;
  ASSERT_EQ(choose_parameters(wishes, &defaults), nullptr);
  wishes.lanes = 256;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  EXPECT_EQ(p.lanes, 256u);
  EXPECT_EQ(p.pins_max, 1024u) << "the fewest of a pool with so many pages";
  wishes.pins_max = 16384;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  ASSERT_EQ(plan_layout(p, &layout), nullptr);
  EXPECT_EQ(p.lanes * p.pins_max, 256u * 16384);
  EXPECT_GT(layout.control_bytes, 80 * kMiB);
  wishes.lanes = 0;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  EXPECT_EQ(p.pins_max, 16384u);
  EXPECT_LT(p.lanes, defaults.lanes);
  // Hosts have lanes each.
  wishes.pins_max = 0;
  wishes.hosts = 64;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  EXPECT_GE(p.lanes / p.hosts, 2u);
}

TEST(ControlRegion, APoolIsDividedInWholeUnitsThatHoldIt) {
  for (const uint64_t unit : {4 * kKiB, 2 * kMiB, 1024 * kMiB})
    for (const uint64_t label : {uint64_t{0}, 2 * kMiB})
      for (uint64_t bytes = 3 * 1024 * kMiB + 4096; bytes <= 64 * kTiB - 1024 * kMiB; bytes *= 3) {
        FormatWishes wishes;
        wishes.pool_bytes = bytes;
        wishes.page_bytes = 2 * kMiB;  // or they follow from how much is tried
        wishes.region_bytes = 256 * kMiB;
        Pieces pieces;
        ASSERT_EQ(divide_pool(wishes, unit, label, &pieces), nullptr) << bytes << " in " << unit;
        EXPECT_EQ(pieces.control_room % unit, 0u);
        const uint64_t all = pieces.control_room + pieces.pages_room + label;
        EXPECT_EQ(all, (bytes + unit - 1) / unit * unit);
        wishes.pool_bytes = all;
        Parameters p;
        Layout layout;
        ASSERT_EQ(choose_parameters_in_two(wishes, pieces, &p, &layout), nullptr);
        EXPECT_EQ(p.pool_bytes, all);
        EXPECT_LE(layout.control_bytes, pieces.control_room);
        EXPECT_LE(p.pages * p.page_bytes, pieces.pages_room);
        EXPECT_GT(p.pages * p.page_bytes + 2 * p.region_pages * p.page_bytes, pieces.pages_room) << "little is wasted";
      }
}

// From the first size on that a pool in two pieces can have, it can have every larger one, and pages as large as they are
// documented.
TEST(ControlRegion, EverySizeCanBeDivided) {
  for (const uint64_t unit : {4 * kKiB, 2 * kMiB}) {
    bool was_divided = false;
    for (uint64_t bytes = 2 * kMiB; bytes <= 8 * kGiB;
         bytes += std::max<uint64_t>(64 * kKiB, bytes / 500 / 4096 * 4096)) {
      FormatWishes wishes;
      wishes.pool_bytes = bytes;
      Pieces pieces;
      const char* problem = divide_pool(wishes, unit, 2 * kMiB, &pieces);
      ASSERT_FALSE(was_divided && problem) << bytes << " in " << unit << ": " << problem;
      if (problem) continue;
      was_divided = true;
      wishes.pool_bytes = (bytes + unit - 1) / unit * unit;
      Parameters p;
      Layout layout;
      ASSERT_EQ(choose_parameters_in_two(wishes, pieces, &p, &layout), nullptr) << bytes;
      EXPECT_EQ(p.page_bytes, wishes.pool_bytes < 4 * kGiB ? 64 * kKiB : 2 * kMiB) << bytes;
    }
    EXPECT_TRUE(was_divided);
  }
}

// Two devices are as large as they are. Whatever is chosen for them, no other number of regions has more pages and fits.
TEST(ControlRegion, OfUnequalPiecesAsManyPagesAreUsedAsTheControlRegionHasRoomFor) {
  const uint64_t sizes[] = {2 * kMiB, 8 * kMiB, 30 * kMiB, 100 * kMiB, 510 * kMiB, 1 * kGiB,
                            3 * kGiB, 4 * kGiB, 7 * kGiB,  64 * kGiB,  700 * kGiB, 2 * kTiB};
  for (const uint64_t page_bytes : {uint64_t{0}, 4 * kKiB, 64 * kKiB, 2 * kMiB})
    for (const uint64_t region_bytes : {uint64_t{0}, 2 * kMiB, 256 * kMiB})
      for (const uint64_t control : sizes)
        for (const uint64_t pages : sizes) {
          FormatWishes wishes;
          wishes.pool_bytes = control + pages + 2 * kMiB;
          wishes.page_bytes = page_bytes;
          wishes.region_bytes = region_bytes;
          const std::string which = std::to_string(control / kMiB) + " and " + std::to_string(pages / kMiB) +
                                    " MiB in pages of " + std::to_string(page_bytes) + ", regions of " +
                                    std::to_string(region_bytes);
          Parameters p;
          Layout layout;
          const char* problem = choose_parameters_in_two(wishes, {control, pages}, &p, &layout);
          if (problem) {
            const uint64_t region_pages = region_bytes == 0 ? 1 : region_bytes / (page_bytes ? page_bytes : 64 * kKiB);
            // A 64th of its bytes for long keys in cells, and as much for those beside their blocks.
            const uint64_t region_control = region_pages * 256 + region_bytes / 32 + 2 * kMiB;
            EXPECT_TRUE(region_bytes > pages || region_control > control) << which << ": " << problem;
            continue;
          }
          EXPECT_EQ(p.pool_bytes, wishes.pool_bytes);
          EXPECT_LE(layout.control_bytes, control) << which;
          EXPECT_LE(p.pages * p.page_bytes, pages) << which;
          const uint64_t page_default = wishes.pool_bytes < 4 * kGiB ? 64 * kKiB : 2 * kMiB;
          EXPECT_EQ(p.page_bytes, page_bytes ? page_bytes : page_default) << which;
          Parameters more = p;
          bool is_control_full = false;
          for (int i = 0; i < 50; ++i) {
            more.pages += p.region_pages;
            more.key_extents =
                std::clamp<uint64_t>(more.pages * p.page_bytes / 64 / 4096, 8, std::max<uint64_t>(8, more.pages));
            if (more.pages * p.page_bytes > pages) break;
            Layout larger;
            const char* refusal = plan_layout(more, &larger);
            is_control_full = refusal != nullptr || larger.control_bytes > control;
            EXPECT_TRUE(is_control_full) << which << ": " << i + 1 << " regions more fit";
          }
          if (is_control_full || region_bytes != 0) continue;
          EXPECT_GE(p.pages * p.page_bytes, pages - pages / 8) << which << ": what is cut into regions is the pages";
        }
}

TEST(ControlRegion, LanesThatNobodyWishedForGiveWayToThePagesOfAnotherPiece) {
  FormatWishes wishes;
  wishes.pool_bytes = 3 * kGiB + 256 * kMiB;
  wishes.page_bytes = 4 * kKiB;
  const Pieces pieces = {256 * kMiB, 3 * kGiB};
  Parameters p;
  Layout layout;
  ASSERT_EQ(choose_parameters_in_two(wishes, pieces, &p, &layout), nullptr);
  EXPECT_GT(p.pages * p.page_bytes, pieces.pages_room / 4 * 3);
  EXPECT_GE(p.lanes, 64u);
  wishes.lanes = 256;
  wishes.pins_max = 16384;
  wishes.touch_entries = 4096;
  ASSERT_EQ(choose_parameters_in_two(wishes, pieces, &p, &layout), nullptr);
  EXPECT_EQ(p.lanes * p.pins_max, 256u * 16384) << "a wish is kept";
  EXPECT_LT(p.pages * p.page_bytes, pieces.pages_room / 5 * 3);
}

// A size is refused only if every smaller one is, so that the least one can be told.
TEST(ControlRegion, WhatFitsInASmallPoolFitsInALargerOne) {
  for (const uint32_t hosts : {1u, 2u, 7u, 16u, 64u})
    for (const uint64_t page_bytes : {uint64_t{0}, 4 * kKiB, 64 * kKiB, 2 * kMiB, 4 * kMiB})
      for (const bool in_two : {false, true}) {
        uint64_t least = 0, beyond = 0;
        for (uint64_t bytes = 64 * kKiB; bytes < 40 * kMiB && beyond < 300; bytes += 4 * kKiB) {
          FormatWishes wishes;
          wishes.pool_bytes = bytes;
          wishes.page_bytes = page_bytes;
          wishes.hosts = hosts;
          Parameters p;
          Pieces pieces;
          const char* problem =
              in_two ? divide_pool(wishes, 4 * kKiB, 2 * kMiB, &pieces) : choose_parameters(wishes, &p);
          if (!problem && in_two) {
            Layout layout;
            EXPECT_EQ(choose_parameters_in_two(wishes, pieces, &p, &layout), nullptr) << bytes;
          }
          if (!problem && least == 0) least = bytes;
          if (least != 0) ++beyond;
          EXPECT_FALSE(problem && least != 0) << hosts << " hosts, pages of " << page_bytes << ": " << least
                                              << " bytes do and " << bytes << " do not: " << problem;
          if (bytes > 8 * kMiB) bytes += 60 * kKiB;
        }
        EXPECT_NE(least, 0u) << hosts << " hosts, pages of " << page_bytes;
      }
  // Nor are there steps at the sizes where a default becomes larger.
  for (const uint32_t hosts : {1u, 64u})
    for (uint64_t bytes = 8 * kMiB; bytes <= 64 * kTiB; bytes *= 2)
      for (const uint64_t near : {bytes - 4 * kKiB, bytes}) {
        FormatWishes wishes;
        wishes.pool_bytes = near;
        wishes.hosts = hosts;
        Parameters p;
        EXPECT_EQ(choose_parameters(wishes, &p), nullptr) << near;
      }
}

TEST(ControlRegion, RefusesToDivideWhatIsTooSmall) {
  FormatWishes wishes;
  wishes.pool_bytes = 4 * kMiB;
  wishes.lanes = 8;
  wishes.pins_max = 64;
  Pieces pieces;
  EXPECT_EQ(divide_pool(wishes, 4 * kKiB, 0, &pieces), nullptr);
  EXPECT_EQ(divide_pool(wishes, 2 * kMiB, 0, &pieces), nullptr);
  EXPECT_NE(divide_pool(wishes, 4 * kMiB, 0, &pieces), nullptr) << "a unit for each piece";
  EXPECT_NE(divide_pool(wishes, 2 * kMiB, 2 * kMiB, &pieces), nullptr) << "the label takes all that is for pages";
}

TEST(ControlRegion, RefusesMorePagesThanReferencesCanName) {
  FormatWishes wishes;
  wishes.pool_bytes = 64 * kTiB;
  wishes.page_bytes = 16 * kKiB;
  Parameters p;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  EXPECT_LE(p.pages, limits::kPagesMax);
  p.pages = (uint64_t{1} << 32);
  Layout layout;
  EXPECT_NE(plan_layout(p, &layout), nullptr);
  wishes.pool_bytes = 64 * kTiB + 1;
  EXPECT_NE(choose_parameters(wishes, &p), nullptr);
}

// All that is given to a pool is used, or it is refused.
TEST(ControlRegion, RefusesPagesTooSmallForTheSize) {
  FormatWishes wishes;
  wishes.pool_bytes = 64 * kTiB;
  for (const uint64_t page_bytes : {4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB}) {
    wishes.page_bytes = page_bytes;
    Parameters p;
    const char* problem = choose_parameters(wishes, &p);
    Pieces pieces;
    Layout layout;
    const char* in_two = divide_pool(wishes, 2 * kMiB, 2 * kMiB, &pieces);
    if (page_bytes >= 16 * kKiB) {
      EXPECT_EQ(problem, nullptr) << page_bytes;
      EXPECT_EQ(in_two, nullptr) << page_bytes;
    } else {
      ASSERT_NE(problem, nullptr) << page_bytes << ": " << p.pages;
      EXPECT_EQ(std::string_view(problem).substr(0, 24), "page_bytes is too small ");
      ASSERT_NE(in_two, nullptr) << page_bytes;
      EXPECT_STREQ(in_two, problem);
      const char* on_devices = choose_parameters_in_two(wishes, {16 * kTiB, 48 * kTiB}, &p, &layout);
      ASSERT_NE(on_devices, nullptr) << page_bytes;
      EXPECT_STREQ(on_devices, problem);
    }
  }
  // The last size that is used to its end: the region of which it would have too little more is the first that cannot be.
  wishes.page_bytes = 4 * kKiB;
  wishes.region_bytes = 64 * kMiB;
  Parameters p;
  uint64_t good = 16 * kTiB, bad = 32 * kTiB;
  while (bad - good > 4 * kKiB) {
    wishes.pool_bytes = (good + bad) / 2 / (4 * kKiB) * (4 * kKiB);
    (choose_parameters(wishes, &p) == nullptr ? good : bad) = wishes.pool_bytes;
  }
  wishes.pool_bytes = good;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  EXPECT_EQ(p.pages, limits::kPagesMax / p.region_pages * p.region_pages);
  Layout layout;
  ASSERT_EQ(plan_layout(p, &layout), nullptr);
  EXPECT_LT(good - layout.control_bytes - p.pages * p.page_bytes, 2 * wishes.region_bytes);
}

TEST(ControlRegion, RefusesImpossibleParameters) {
  Parameters good;
  Layout layout;
  ASSERT_EQ(choose_parameters(smallest(), &good), nullptr);
  const auto refuse = [&](auto change) {
    Parameters p = good;
    change(p);
    EXPECT_NE(plan_layout(p, &layout), nullptr);
  };
  refuse([](Parameters& p) { p.page_bytes = 2048; });
  refuse([](Parameters& p) { p.page_bytes = 12288; });
  refuse([](Parameters& p) { p.page_bytes = 8 * kMiB; });
  refuse([](Parameters& p) { p.pages = 0; });
  refuse([](Parameters& p) { p.pages = 1000; });
  refuse([](Parameters& p) { p.region_pages = 0; });
  refuse([](Parameters& p) { p.region_pages = 3; });
  refuse([](Parameters& p) { p.region_pages = 2, p.pages = 1; });
  refuse([](Parameters& p) { p.region_pages = uint64_t{1} << 40; });
  refuse([](Parameters& p) { p.lanes = 1; });
  refuse([](Parameters& p) { p.lanes = 4097; });
  refuse([](Parameters& p) { p.hosts = 0; });
  refuse([](Parameters& p) { p.hosts = 65; });
  refuse([](Parameters& p) { p.tenants = 0; });
  refuse([](Parameters& p) { p.tenants = 65537; });
  refuse([](Parameters& p) { p.pins_max = 4; });
  refuse([](Parameters& p) { p.pins_max = 9; });
  refuse([](Parameters& p) { p.pins_max = 1u << 21; });
  refuse([](Parameters& p) { p.touch_entries = 0; });
  refuse([](Parameters& p) { p.touch_entries = 24; });
  refuse([](Parameters& p) { p.key_inline_bytes = 24; });
  refuse([](Parameters& p) { p.key_inline_bytes = 36; });
  refuse([](Parameters& p) { p.key_inline_bytes = 8192; });
  refuse([](Parameters& p) { p.key_extents = 0; });
  refuse([](Parameters& p) { p.key_extents = ~uint64_t{0}; });
  refuse([](Parameters& p) { p.section_align = 64; });
  refuse([](Parameters& p) { p.section_align = 5000; });
  refuse([](Parameters& p) { p.pool_bytes = 4096; });
  refuse([](Parameters& p) { p.pool_bytes = ~uint64_t{0}; });
  EXPECT_EQ(plan_layout(good, &layout), nullptr);
}

TEST(ControlRegion, RandomParametersNeverPlanOutsideThePool) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int planned = 0;
  for (int i = 0; i < 20'000; ++i) {
    Parameters p{};
    const auto power = [&](uint32_t low, uint32_t high) { return uint64_t{1} << (low + random() % (high - low + 1)); };
    p.pool_bytes = power(14, 46) + random() % 1000;
    p.page_bytes = power(11, 23);
    p.region_pages = power(0, 30);
    p.pages = p.region_pages * (random() % 5000);
    p.lanes = uint32_t(random() % 5000);
    p.hosts = 1 + uint32_t(random() % 70);
    p.tenants = 1 + uint32_t(random() % 70'000);
    p.pins_max = uint32_t(power(2, 21));
    p.touch_entries = uint32_t(power(2, 21));
    p.key_inline_bytes = uint32_t(random() % 600) * 8;
    p.key_extents = power(0, 33);
    p.section_align = power(11, 31);
    Layout layout;
    if (plan_layout(p, &layout) != nullptr) continue;
    ++planned;
    expect_sections_in_order(layout, p);
  }
  EXPECT_GT(planned, 0);
}

TEST(ControlRegion, AttachSeesWhatFormatWrote) {
  SmallPool pool;
  ControlRegion attached;
  ASSERT_EQ(ControlRegion::attach(pool.memory(), uint64_t{1} << 40, &attached), nullptr);
  EXPECT_EQ(std::memcmp(&attached.header(), &pool.region.header(), sizeof(Header)), 0);
  EXPECT_EQ(&attached.block(63), &pool.region.block(63));
  EXPECT_EQ(attached.header().secret[3], fixed_identity().secret[3]);
}

// The header is copied: what a client scribbles later does not move anything.
TEST(ControlRegion, LaterChangesOfTheHeaderHaveNoEffect) {
  SmallPool pool;
  const auto* block = &pool.region.block(5);
  std::memset(pool.memory().data(), 0xff, sizeof(Header));
  EXPECT_EQ(&pool.region.block(5), block);
  EXPECT_EQ(pool.region.pages(), 64u);
  ControlRegion attached;
  EXPECT_NE(ControlRegion::attach(pool.memory(), uint64_t{1} << 40, &attached), nullptr);
}

TEST(ControlRegion, AnyFlippedBitOfTheHeaderIsRefused) {
  SmallPool pool;
  ControlRegion attached;
  for (size_t bit = 0; bit < sizeof(Header) * 8; bit += bit < 1024 * 8 ? 1 : 61) {
    pool.memory()[bit / 8] ^= std::byte(1u << bit % 8);
    EXPECT_NE(ControlRegion::attach(pool.memory(), uint64_t{1} << 40, &attached), nullptr) << "bit " << bit;
    pool.memory()[bit / 8] ^= std::byte(1u << bit % 8);
  }
  EXPECT_EQ(ControlRegion::attach(pool.memory(), uint64_t{1} << 40, &attached), nullptr);
}

// A header that somebody forged has the right checksum; every field is still compared with the plan.
TEST(ControlRegion, EveryForgedFieldIsRefused) {
  SmallPool pool;
  const Header good = pool.region.header();
  Layout layout;
  ASSERT_EQ(ControlRegion::check_header(good, uint64_t{1} << 40, &layout), nullptr);
  const auto refuse = [&](const char* what, auto change) {
    Header header = good;
    change(header);
    header.checksum = header_checksum(header);
    EXPECT_NE(ControlRegion::check_header(header, uint64_t{1} << 40, &layout), nullptr) << what;
  };
  refuse("magic", [](Header& h) { h.magic ^= 1; });
  refuse("major version", [](Header& h) { ++h.version_major; });
  refuse("header size", [](Header& h) { h.header_bytes = 8192; });
  refuse("incompatible flag", [](Header& h) { h.incompat_flags |= 16; });
  refuse("hash", [](Header& h) { ++h.hash_algorithm; });
  refuse("control bytes", [](Header& h) { h.control_bytes += 4096; });
  refuse("buckets", [](Header& h) { ++h.buckets; });
  refuse("overflow buckets", [](Header& h) { --h.overflow_buckets; });
  for (uint32_t i = 0; i < format::kSectionCount; ++i) {
    refuse("section offset", [&](Header& h) { h.sections[i].offset += 4096; });
    refuse("section size", [&](Header& h) { h.sections[i].bytes -= 8; });
  }
  refuse("pool bytes", [](Header& h) { h.parameters.pool_bytes *= 2; });
  refuse("page bytes", [](Header& h) { h.parameters.page_bytes = uint64_t{1} << 23; });
  refuse("region pages", [](Header& h) { h.parameters.region_pages *= 2; });
  refuse("pages", [](Header& h) { h.parameters.pages += 16; });
  refuse("lanes", [](Header& h) { ++h.parameters.lanes; });
  refuse("hosts", [](Header& h) { ++h.parameters.hosts; });
  refuse("tenants", [](Header& h) { ++h.parameters.tenants; });
  refuse("pins_max", [](Header& h) { h.parameters.pins_max *= 2; });
  refuse("touch_entries", [](Header& h) { h.parameters.touch_entries *= 2; });
  refuse("key_inline_bytes", [](Header& h) { h.parameters.key_inline_bytes += 8; });
  refuse("key_extents", [](Header& h) { h.parameters.key_extents += 1; });
  refuse("section_align", [](Header& h) { h.parameters.section_align *= 2; });

  // What a newer minor version, or a flag that may be ignored, does not change.
  Header newer = good;
  newer.version_minor = 5;
  newer.compat_flags |= uint64_t{1} << 40;
  newer.checksum = header_checksum(newer);
  EXPECT_EQ(ControlRegion::check_header(newer, uint64_t{1} << 40, &layout), nullptr);
}

TEST(ControlRegion, RefusesMemoryOrDevicesThatAreTooSmall) {
  SmallPool pool;
  ControlRegion attached;
  EXPECT_NE(ControlRegion::attach(pool.memory(), (uint64_t{1} << 40) - 1, &attached), nullptr);
  EXPECT_NE(ControlRegion::attach(pool.memory().first(4095), uint64_t{1} << 40, &attached), nullptr);
  EXPECT_NE(ControlRegion::attach(pool.memory().first(pool.memory().size() - 1), uint64_t{1} << 40, &attached),
            nullptr);
  EXPECT_NE(
      ControlRegion::format(pool.memory().first(4096), pool.region.parameters(), fixed_identity(), false, &attached),
      nullptr);
}

TEST(ControlRegion, OneOfTwoHostsFormats) {
  SmallPool pool;
  std::memset(pool.memory().data(), 0, pool.memory().size());
  FormatClaim found;
  EXPECT_TRUE(claim_format(pool.memory(), 7, &found));
  EXPECT_TRUE(claim_format(pool.memory(), 7, &found)) << "it died, and begins again";
  EXPECT_FALSE(claim_format(pool.memory(), 8, &found));
  EXPECT_TRUE(found.is_one() && found.machine() == 7);
  ControlRegion region;
  EXPECT_NE(ControlRegion::attach(pool.memory(), uint64_t{1} << 40, &region), nullptr);
  ASSERT_EQ(ControlRegion::format(pool.memory(), pool.region.parameters(), fixed_identity(), false, &region), nullptr);
  ControlRegion attached;
  EXPECT_EQ(ControlRegion::attach(pool.memory(), uint64_t{1} << 40, &attached), nullptr);
  EXPECT_FALSE(claim_format(pool.memory(), 7, &found)) << "a pool is no blank memory";
  EXPECT_FALSE(found.is_one());
}

TEST(ControlRegion, RunLengthsFromSharedMemoryStayInTheirRegion) {
  SmallPool pool;
  pool.region.block(30).shape.store_relaxed(~uint64_t{0});
  EXPECT_EQ(pool.region.run_pages(30), 2u);
  pool.region.block(30).shape.store_relaxed(0);
  EXPECT_EQ(pool.region.run_pages(30), 1u);
}

TEST(ControlRegion, EveryPartLiesInItsSectionAndOverlapsNothing) {
  SmallPool pool;
  const ControlRegion& r = pool.region;
  std::byte* base = pool.memory().data();
  const auto inside = [&](format::Section section, const void* first, size_t bytes) {
    const auto offset = uint64_t(static_cast<const std::byte*>(first) - base);
    const format::SectionRecord& record = r.layout().sections[section];
    EXPECT_GE(offset, record.offset);
    EXPECT_LE(offset + bytes, record.offset + record.bytes);
  };
  inside(format::kSectionKeyBytes, r.key_cell(63).data(), r.key_cell(63).size_bytes());
  inside(format::kSectionKeyExtents, r.key_extent(3).data(), r.key_extent(3).size_bytes());
  EXPECT_GT(static_cast<void*>(r.key_extent(0).data()), static_cast<void*>(&r.key_extent_owner(3)));
  inside(format::kSectionRegistry, &r.bucket(r.buckets() - 1), sizeof(format::Bucket));
  inside(format::kSectionOverflow, &r.overflow(r.overflow_buckets() - 1), sizeof(format::Bucket));
  inside(format::kSectionLaneIdentities, &r.identity(r.lanes() - 1), sizeof(format::LaneIdentity));
  for (uint32_t lane = 0; lane < r.lanes(); ++lane) {
    const LaneView view = r.lane(lane);
    inside(format::kSectionLanes, view.header, sizeof(format::LaneHeader));
    inside(format::kSectionLanes, view.touches.data(), view.touches.size_bytes());
    EXPECT_EQ(view.pins.data() + view.pins.size(), view.pin_overflow.data());
    EXPECT_EQ(view.pin_overflow.data() + view.pin_overflow.size(), view.touches.data());
  }
}

// The control region of the largest pool, on a file without content: only what is touched takes memory.
TEST(ControlRegion, FormatsTerabytesOnASparseFile) {
  FormatWishes wishes;
  wishes.pool_bytes = 64 * kTiB;
  Parameters p;
  Layout layout;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  ASSERT_EQ(plan_layout(p, &layout), nullptr);
  const int fd = ::memfd_create("sparse", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, off_t(p.pool_bytes)) != 0) {
    if (fd >= 0) ::close(fd);
    GTEST_SKIP() << "this machine has no sparse files of 64 TiB";
  }
  void* memory = ::mmap(nullptr, layout.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) {
    ::close(fd);
    GTEST_SKIP() << "no address space for " << layout.control_bytes << " bytes";
  }
  const std::span<std::byte> span(static_cast<std::byte*>(memory), layout.control_bytes);
  ControlRegion region, attached;
  ASSERT_EQ(ControlRegion::format(span, p, fixed_identity(), true, &region), nullptr);
  ASSERT_EQ(ControlRegion::attach(span, p.pool_bytes, &attached), nullptr);
  const uint32_t last = uint32_t(p.pages - 1);
  attached.block(last).word.store_relaxed(PageWord::free(1).bits);
  std::vector<AtomicU32> counts(PinTable::counts_needed(layout));
  PinTable pins(attached, 1, counts);
  LaneContext lane;
  lane.region = &attached;
  lane.id = {1, 1};
  lane.pins = &pins;
  const PageRef own = take_page(attached, lane.id, last);
  NewBlock block{};
  block.key = bytes_of("the last page");
  block.digest = digest_of_bytes(attached.secret(), block.key, 0);
  ASSERT_EQ(publish(lane, own, block).status, PublishStatus::kStored);
  EXPECT_EQ(find_and_pin(lane, block.digest, 0).ref, own);
  EXPECT_LE(attached.page_offset(last) + p.page_bytes, p.pool_bytes);
  ::munmap(memory, layout.control_bytes);
  ::close(fd);
}

}  // namespace
}  // namespace maru::shm
