// What a client does with memory that the machine has lost: as much of it is replaced as the mapping allows, and known as bad.
#include "libmaru/client/memory_errors.h"

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "maru/maru.h"
#include "tests/support/memory_error.h"
#include "tests/support/sanitizers.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace maru::client {
namespace {

constexpr uint64_t kUnit = 2u << 20, kPageBytes = 64u << 10;
constexpr uint64_t kUnits = 4;

// Four huge pages, the first page of the pool in the middle of the first one.
class BadPagesTest : public ::testing::Test {
 protected:
  BadPagesTest() {
    constexpr size_t kReserved = (kUnits + 1) * kUnit;
    void* address = ::mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(address, MAP_FAILED);
    reserved_ = Mapping(static_cast<std::byte*>(address), kReserved);
    const auto place = reinterpret_cast<uintptr_t>(address);
    mapped_ = {reserved_.data() + (kUnit - place % kUnit) % kUnit, kUnits * kUnit};
    std::memset(mapped_.data(), 'x', mapped_.size());
  }

  std::byte* page(uint64_t index) const { return mapped_.data() + kUnit / 2 + index * kPageBytes; }
  BadPages make(uint64_t unit) const {
    return BadPages(page(0), (kUnits * kUnit - kUnit / 2) / kPageBytes, kPageBytes, mapped_, unit, no_thread_);
  }
  // The bytes that are zero now: from where on, and how many.
  std::pair<uint64_t, uint64_t> replaced() const {
    const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
    const auto first = std::find_if(mapped_.begin(), mapped_.end(), is_zero);
    return {uint64_t(first - mapped_.begin()), uint64_t(std::count_if(first, mapped_.end(), is_zero))};
  }

  const Wake no_thread_;
  Mapping reserved_;
  std::span<std::byte> mapped_;
};

uintptr_t address_of(const std::byte* byte) { return reinterpret_cast<uintptr_t>(byte); }

TEST_F(BadPagesTest, WhereTheKernelDoesNotSayHowMuchIsLostItIsAHugePage) {
  const unsigned nonsense[] = {0, 1, 11, 31, 63, 0xFFFF};
  for (uint64_t i = 0; i < std::size(nonsense); ++i) {
    BadPages bad = make(kUnit);
    std::memset(mapped_.data(), 'x', mapped_.size());
    const std::byte* in_third = mapped_.data() + 2 * kUnit + 5 * kPageBytes + 123;
    ASSERT_TRUE(bad.replace(address_of(in_third), nonsense[i])) << nonsense[i];
    EXPECT_EQ(replaced(), std::pair(2 * kUnit, kUnit)) << nonsense[i];
    const auto first = uint32_t((2 * kUnit - kUnit / 2) / kPageBytes);
    EXPECT_FALSE(bad.has(first - 1));
    EXPECT_TRUE(bad.has(first));
    EXPECT_TRUE(bad.has(first + uint32_t(kUnit / kPageBytes) - 1));
    EXPECT_FALSE(bad.has(first + uint32_t(kUnit / kPageBytes)));
  }
}

TEST_F(BadPagesTest, LessThanAHugePageCannotBeReplacedInOne) {
  BadPages bad = make(kUnit);
  ASSERT_TRUE(bad.replace(address_of(page(0)), 12));
  EXPECT_EQ(replaced(), std::pair(uint64_t{0}, kUnit)) << "also what lies before page 0";
  EXPECT_TRUE(bad.has(0));
  EXPECT_TRUE(bad.has(uint32_t(kUnit / 2 / kPageBytes) - 1));
  EXPECT_FALSE(bad.has(uint32_t(kUnit / 2 / kPageBytes)));
}

TEST_F(BadPagesTest, OfOrdinaryMemoryAPageOfTheKernelGoesOrWhatItSays) {
  BadPages bad = make(4096);
  ASSERT_TRUE(bad.replace(address_of(page(40) + 5000), 0));
  EXPECT_EQ(replaced(), std::pair(uint64_t(page(40) + 4096 - mapped_.data()), uint64_t{4096}));
  EXPECT_TRUE(bad.has(40));
  EXPECT_FALSE(bad.has(41));
  ASSERT_TRUE(bad.replace(address_of(page(40)), 30));
  EXPECT_EQ(replaced(), std::pair(uint64_t{0}, kUnits * kUnit)) << "all that is mapped, and nothing else";
  EXPECT_TRUE(bad.has(0));
}

TEST_F(BadPagesTest, MarudIsToldOfAllThatIsLostAtOnceAndForgetsNothingBeforeItAnswers) {
  BadPages bad = make(kUnit);
  const uintptr_t start = address_of(mapped_.data());
  EXPECT_FALSE(bad.covers({start, start + kUnit / 2})) << "what lies before page 0";
  ASSERT_TRUE(bad.covers({start, start + kUnit}));
  bad.note({start, start + kUnit});
  std::vector<uint32_t> said;
  for (uint32_t page = 0, again = 0; bad.next_unsaid(&page); bad.was_said(page)) {
    ASSERT_TRUE(bad.next_unsaid(&again));
    ASSERT_EQ(page, again) << "nobody has said it yet";
    said.push_back(page);
  }
  std::sort(said.begin(), said.end());
  ASSERT_EQ(said.size(), kUnit / 2 / kPageBytes);
  EXPECT_EQ(said.front(), 0u);
  EXPECT_EQ(said.back(), kUnit / 2 / kPageBytes - 1);
}

// The handler, which stays.
class GuardedTest : public BadPagesTest {
 protected:
  void SetUp() override {
    if (test::kHasThreadSanitizer)
      GTEST_SKIP() << "the thread sanitizer runs handlers later, and loses track of one that is left by a jump";
    ASSERT_EQ(handle_memory_errors(0), 0);
  }
  // What a copy from or to page 20 says when the kernel reports an error at `address` meanwhile.
  bool copy(const std::byte* address, unsigned size_bits, BadRange* ret_bad) {
    return guarded(
        page(20), kPageBytes, [&] { (void)test::raise_memory_error(address, BUS_MCEERR_AR, size_bits); }, ret_bad);
  }
};

TEST_F(GuardedTest, AnErrorThatIsNamedByTheStartOfItsHugePageIsTheCopys) {
  const std::byte* huge_page = mapped_.data() + (page(20) - mapped_.data()) / kUnit * kUnit;
  ASSERT_LT(huge_page, page(20));
  BadRange bad;
  ASSERT_FALSE(copy(huge_page, 21, &bad));
  EXPECT_EQ(bad.start, address_of(page(20))) << "what the copy has of it";
  EXPECT_EQ(bad.end, address_of(page(21)));
  ASSERT_FALSE(copy(page(20) + 8192, 12, &bad));
  EXPECT_EQ(bad.start, address_of(page(20) + 8192));
  EXPECT_EQ(bad.end, address_of(page(20) + 12288));
}

// A file that was cut off, or whose file system is full when a page is first written.
TEST_F(GuardedTest, MemoryThatIsNotThereIsNotTakenForBad) {
  const FileDescriptor file(::memfd_create("test", MFD_CLOEXEC));
  const auto mapped = Mapping::map_shared(file.get(), 0, 4096, PROT_READ | PROT_WRITE);
  ASSERT_TRUE(mapped);
  BadRange bad;
  EXPECT_FALSE(
      guarded(mapped->data(), 4096, [&] { *static_cast<volatile std::byte*>(mapped->data()) = std::byte{1}; }, &bad));
  EXPECT_TRUE(bad.is_absent);
  ASSERT_FALSE(copy(page(20), 12, &bad));
  EXPECT_FALSE(bad.is_absent);
}

// As many as there may be, of one process: none goes without.
TEST_F(GuardedTest, EveryClientOfAProcessIsLookedAfter) {
  constexpr size_t kClients = 1200, kBytes = 4096;
  ASSERT_LE(kClients * kBytes, mapped_.size());
  ASSERT_EQ(handle_memory_errors(MARU_MEMORY_ERRORS_VIEWS), 0);
  std::vector<std::unique_ptr<BadPages>> clients;
  const auto attach = [&](size_t i) {
    const std::span<std::byte> memory = mapped_.subspan(i * kBytes, kBytes);
    clients.push_back(std::make_unique<BadPages>(memory.data(), 1, kBytes, memory, kBytes, no_thread_));
    EXPECT_EQ(clients.back()->unplaced_because(), 0);
  };
  for (size_t i = 0; i < kClients; ++i) attach(i);
  for (size_t i : {size_t{0}, size_t{63}, size_t{64}, size_t{499}, size_t{500}, kClients - 1}) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(test::raise_memory_error(&mapped_[i * kBytes], BUS_MCEERR_AR));
    EXPECT_EQ(mapped_[i * kBytes], std::byte{0});
    EXPECT_TRUE(clients[i]->has(0));
    EXPECT_FALSE(clients[i + 1 < kClients ? i + 1 : i - 1]->has(0));
  }
  // Places that were left are taken again.
  clients.clear();
  for (size_t i = 2; i < kClients; ++i) attach(i);
  ASSERT_TRUE(test::raise_memory_error(&mapped_[700 * kBytes], BUS_MCEERR_AR));
  EXPECT_EQ(mapped_[700 * kBytes], std::byte{0});
}

struct sigaction the_librarys;
void programs_own(int number, siginfo_t* info, void* context) { the_librarys.sa_sigaction(number, info, context); }

// It runs with the signal blocked, and others, as a handler does that asks for nothing special.
TEST_F(GuardedTest, AHandlerOfTheProgramThatCallsOursFindsItsSignalsAsTheyWere) {
  struct sigaction action = {};
  action.sa_sigaction = programs_own;
  action.sa_flags = SA_SIGINFO;
  sigfillset(&action.sa_mask);
  ASSERT_EQ(::sigaction(SIGBUS, &action, &the_librarys), 0);
  BadRange bad;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(copy(page(20), 12, &bad)) << "time " << i;
  sigset_t blocked;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked), 0);
  EXPECT_EQ(sigismember(&blocked, SIGBUS), 0);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
  ASSERT_EQ(::sigaction(SIGBUS, &the_librarys, nullptr), 0);
}

void notice_and_end() {
  int elsewhere = 0;
  ::signal(SIGBUS, SIG_IGN);
  const bool is_sent = handle_memory_errors(0) == 0 && test::raise_memory_error(&elsewhere, BUS_MCEERR_AO);
  ::_exit(is_sent && ::raise(SIGBUS) == 0 ? 0 : 1);
}

TEST(GuardedDeathTest, AProgramThatIgnoresTheSignalGoesOnIgnoringWhatIsNoAccess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the handler is installed once in a process
  EXPECT_EXIT(notice_and_end(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace maru::client
