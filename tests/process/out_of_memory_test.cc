// A process that has no memory left, at each allocation of the library in turn: the call says so, nothing is lost, and the
// process lives. The program's own operator new and delete are the means, which also show what is used after it was freed.
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <malloc.h>
#include <new>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace {

constexpr int64_t kNever = -1;
thread_local int64_t fails_after = kNever;  // allocations of this thread that still succeed
thread_local bool fails_for_good = false;   // and not once
thread_local bool is_first_thread = false;
std::atomic<bool> others_fail{false};  // every allocation of the other threads
std::atomic<uint64_t> failures{0}, deletes{0};

// What is deleted meanwhile is kept, and looked at in the end.
constexpr size_t kKeptMax = 4096;
constexpr int kDeleted = 0xDD;
std::atomic<bool> keeps{false};
std::array<std::atomic<void*>, kKeptMax> kept;
std::atomic<size_t> kept_count{0};

void* allocate(size_t bytes) {
  if (fails_after == 0 || (others_fail.load() && !is_first_thread)) {
    if (fails_after == 0 && !fails_for_good) fails_after = kNever;
    failures.fetch_add(1);
    throw std::bad_alloc();
  }
  if (fails_after > 0) --fails_after;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

void free_or_keep(void* memory) {
  if (memory == nullptr) return;
  deletes.fetch_add(1);
  if (!keeps.load()) return std::free(memory);
  std::memset(memory, kDeleted, ::malloc_usable_size(memory));
  if (const size_t place = kept_count.fetch_add(1); place < kKeptMax) kept[place].store(memory);
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { free_or_keep(memory); }
void operator delete[](void* memory) noexcept { free_or_keep(memory); }
void operator delete(void* memory, size_t) noexcept { free_or_keep(memory); }
void operator delete[](void* memory, size_t) noexcept { free_or_keep(memory); }

namespace maru::test {
namespace {

using shm::PageState;

constexpr uint64_t kPageBytes = 4096;
const std::string kPool = "default";

class OutOfMemory : public ::testing::Test {
 protected:
  OutOfMemory() { is_first_thread = true; }

  // Runs `call` with the first, the second ... allocation of this thread failing, once and for good, until it needs no more of
  // them. `call` returns the result of the library; `look(result)` is for afterwards.
  template <typename Call, typename Look>
  static void at_each_allocation(Call&& call, Look&& look) {
    constexpr int64_t kAllocationsMax = 1000;
    for (const bool for_good : {false, true}) {
      int64_t n = 0;
      for (bool ran_out = true; ran_out && !HasFailure() && n < kAllocationsMax; ++n) {
        SCOPED_TRACE("allocation " + std::to_string(n) + (for_good ? " and all after it" : ""));
        const uint64_t before = failures.load();
        fails_for_good = for_good;
        fails_after = n;
        const int result = call();
        fails_after = kNever;
        ran_out = failures.load() != before;
        look(ran_out, result);
      }
      EXPECT_LT(n, kAllocationsMax);
    }
  }
};

bool nobody_is_attached(const MarudProcess& marud) { return marud.pool_status().at("lanes").at("live") == 0; }

TEST_F(OutOfMemory, AnAttachThatFailsLeavesNothingBehind) {
  MarudProcess marud;
  const maru_attach_options options = attach_options(marud.socket_path(), kPool);
  maru_client* client = nullptr;
  sigset_t before, after;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  at_each_allocation([&] { return maru_attach(&options, &client); },
                     [&](bool ran_out, int result) {
                       EXPECT_EQ(result, ran_out ? -ENOMEM : 0);
                       ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
                       for (int number = 1; number < 32; ++number)
                         EXPECT_EQ(sigismember(&after, number), sigismember(&before, number)) << "signal " << number;
                       if (result == 0) maru_detach(client);
                       EXPECT_TRUE(wait_until([&] { return nobody_is_attached(marud); }));
                     });
}

TEST_F(OutOfMemory, WhoDetachesIsGoneForMarud) {
  MarudProcess marud;
  const maru_attach_options options = attach_options(marud.socket_path(), kPool);
  maru_client* client = nullptr;
  maru_buffer buffer;
  const auto attach = [&] {
    ASSERT_EQ(maru_attach(&options, &client), 0);
    ASSERT_EQ(maru_alloc(client, 3 * kPageBytes, &buffer), 0);
  };
  attach();
  at_each_allocation(
      [&] {
        maru_detach(client);
        return 0;
      },
      [&](bool, int) {
        EXPECT_TRUE(wait_until([&] { return nobody_is_attached(marud); }));
        attach();
      });
  maru_detach(client);
}

TEST_F(OutOfMemory, TheFirstRequestOfAClientFailsLikeAnyOther) {
  MarudProcess marud;
  const ControlMap map(marud.socket_path());
  const maru_attach_options options = attach_options(marud.socket_path(), kPool);
  maru_client* client = nullptr;
  maru_buffer buffer;
  ASSERT_EQ(maru_attach(&options, &client), 0);
  at_each_allocation([&] { return maru_alloc(client, kPageBytes, &buffer); },
                     [&](bool ran_out, int result) {
                       EXPECT_TRUE(result == 0 || (ran_out && result == -ENOMEM)) << result;
                       EXPECT_EQ(maru_alloc(client, kPageBytes, &buffer), 0) << "there is memory again";
                       maru_detach(client);
                       EXPECT_TRUE(wait_until([&] { return map.count_pages()[PageState::kReserved] == 0; }));
                       ASSERT_EQ(maru_attach(&options, &client), 0);
                     });
  maru_detach(client);
}

// It rents one region, which is full, so each request takes pages that another's blocks had; a run is of two pages, so what is
// left over of one is known as well.
TEST_F(OutOfMemory, NoPageIsLost) {
  PoolWish pool;
  pool.bytes = 2 * (256u << 10) + (1u << 20);
  pool.region_bytes = 256u << 10;
  pool.pins = 64;
  pool.max_regions_per_instance = 1;
  pool.in_file = true;
  MarudProcess marud({pool});
  const ControlMap map(marud.socket_path());
  TestClient others(marud.socket_path());
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD, 1);
  const uint64_t region_pages = map.region().region_pages();
  std::vector<maru_buffer> mine(region_pages);
  ASSERT_EQ(maru_alloc_batch(client, kPageBytes, mine.size(), mine.data()), 0);
  for (uint64_t i = 0; map.count_pages()[PageState::kReady] < region_pages / 2; ++i)
    ASSERT_EQ(others.store("o" + std::to_string(i), "another's"), 0);
  for (const uint64_t pages : {1, 2}) {
    std::array<maru_buffer, 8> more;
    at_each_allocation([&] { return maru_alloc_batch(client, pages * kPageBytes, more.size(), more.data()); },
                       [&](bool ran_out, int result) {
                         EXPECT_TRUE(result == 0 || (ran_out && result == -ENOMEM)) << result;
                         if (result == 0) {
                           EXPECT_EQ(maru_abort_batch(client, more.data(), more.size()), 0);
                         }
                         EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
                         EXPECT_EQ(map.count_pages()[PageState::kReserved],
                                   mine.size() + client.statistics().pages_cached + others.statistics().pages_cached);
                       });
  }
  // What it may rent it knows how to use, too.
  EXPECT_EQ(maru_abort_batch(client, mine.data(), mine.size()), 0);
  EXPECT_EQ(maru_alloc_batch(client, kPageBytes, mine.size(), mine.data()), 0);
  EXPECT_EQ(maru_abort_batch(client, mine.data(), mine.size()), 0);
}

// Pages that lie apart, in two regions: each that comes back is an extent of its own in what the client knows.
TEST_F(OutOfMemory, PagesThatWereForgottenAreFoundAgainInEveryRegion) {
  PoolWish pool;
  pool.region_bytes = 256u << 10;
  pool.bytes = 4 * pool.region_bytes + (1u << 20);
  pool.max_regions_per_instance = 2;
  MarudProcess marud({pool});
  const ControlMap map(marud.socket_path());
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD, 1);
  const uint64_t region_pages = map.region().region_pages();
  std::vector<maru_buffer> all(2 * region_pages);
  ASSERT_EQ(maru_alloc_batch(client, kPageBytes, all.size(), all.data()), 0);
  std::array<maru_buffer, 16> apart;
  for (size_t i = 0; i < apart.size(); ++i) apart[i] = all[i * all.size() / apart.size()];
  marud.kill();  // which would hand out what the client has forgotten
  at_each_allocation(
      [&] {
        EXPECT_EQ(maru_abort_batch(client, apart.data(), apart.size()), 0);
        return maru_alloc_batch(client, kPageBytes, apart.size(), apart.data());
      },
      [&](bool ran_out, int result) {
        EXPECT_TRUE(result == 0 || ran_out) << result;
        if (result != 0) {
          ASSERT_EQ(maru_alloc_batch(client, kPageBytes, apart.size(), apart.data()), 0)
              << "its own pages: nobody is asked";
        }
      });
}

// The first block of a tenant with a limit always needs credit from marud, so each call is of another tenant.
TEST_F(OutOfMemory, AStoreThatAsksForCreditLosesNoPageAndNoPin) {
  MarudProcess marud;
  const ControlMap map(marud.socket_path());
  TestClient client(marud.socket_path());
  int tenants = 0;
  uint64_t tenant = 0;
  const auto next_tenant = [&] {
    const std::string name = "tenant " + std::to_string(++tenants);
    ASSERT_TRUE(
        marud.ask({{"command", "quota.set"}, {"tenant", name}, {"hard", 4 * kPageBytes}}).contains("hard_bytes"));
    ASSERT_EQ(maru_tenant(client, name.data(), name.size(), &tenant), 0);
  };
  next_tenant();
  for (const bool is_pinned : {false, true}) {
    int asked_without_memory = 0;
    maru_buffer buffer;
    maru_view view;
    const auto store = [&] {
      const maru_key key = key_of("k", tenant);
      if (!is_pinned) return maru_store_copy(client, &key, "text", 4, nullptr, nullptr);
      const int result = maru_store_pinned(client, &key, &buffer, nullptr, &view);
      asked_without_memory += result == -ENOMEM;
      return result;
    };
    ASSERT_EQ(maru_alloc(client, kPageBytes, &buffer), 0);
    at_each_allocation(store, [&](bool ran_out, int result) {
      ASSERT_TRUE(result == 0 || (ran_out && result == -ENOMEM)) << result;
      if (is_pinned && result == 0) {
        EXPECT_EQ(maru_release(client, &view), 0);
        ASSERT_EQ(maru_alloc(client, kPageBytes, &buffer), 0);
      }
      EXPECT_EQ(client.statistics().pins, 0u);
      const maru_key key = key_of("k", tenant);
      EXPECT_EQ(maru_delete(client, &key), result == 0 ? 0 : -ENOENT);
      EXPECT_EQ(map.count_pages()[PageState::kReserved], 1 + client.statistics().pages_cached);
      next_tenant();
    });
    EXPECT_TRUE(!is_pinned || asked_without_memory > 0);
    EXPECT_EQ(maru_abort(client, &buffer), 0);
  }
}

// Two sizes and two tenants, so that marud is asked several times, and one of the tenants needs credit.
TEST_F(OutOfMemory, ABatchSaysWhatBecameOfEachBlockAndLosesNoPage) {
  PoolWish pool;
  pool.more = "tenants_max = 1024\n";
  MarudProcess marud({pool});
  const ControlMap map(marud.socket_path());
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD, 1);
  constexpr size_t kBlocks = 40;
  const std::string text(2 * kPageBytes, 'x');
  std::array<std::string, kBlocks> names;
  std::array<maru_key, kBlocks> keys;
  std::array<const void*, kBlocks> data;
  std::array<uint64_t, kBlocks> bytes;
  std::array<int32_t, kBlocks> results;
  int tenants = 0;
  const auto begin = [&] {
    uint64_t tenant = 0;
    const std::string name = "tenant " + std::to_string(++tenants);
    ASSERT_TRUE(
        marud.ask({{"command", "quota.set"}, {"tenant", name}, {"hard", 100 * kPageBytes}}).contains("hard_bytes"));
    ASSERT_EQ(maru_tenant(client, name.data(), name.size(), &tenant), 0);
    for (size_t i = 0; i < kBlocks; ++i) {
      names[i] = std::to_string(i);
      keys[i] = key_of(names[i], i % 2 ? tenant : 0);
      data[i] = text.data();
      bytes[i] = i % 3 ? kPageBytes : 2 * kPageBytes;
    }
  };
  begin();
  at_each_allocation(
      [&] {
        return maru_store_copy_batch(client, keys.data(), data.data(), bytes.data(), kBlocks, nullptr, nullptr,
                                     results.data());
      },
      [&](bool ran_out, int result) {
        ASSERT_TRUE(result == int(kBlocks) || ran_out) << result;
        if (result >= 0) {
          EXPECT_EQ(std::count(results.begin(), results.end(), 0), result);
          for (const int32_t one : results)  // -ENOTCONN: what was answered was lost, and the client has yet to say so
            EXPECT_TRUE(one == 0 || one == -ENOMEM || one == -ENOTCONN) << one;
        } else {
          EXPECT_EQ(result, -ENOMEM);
        }
        EXPECT_EQ(maru_delete_batch(client, keys.data(), kBlocks, nullptr), std::max(result, 0));
        EXPECT_EQ(client.statistics().pins, 0u);
        EXPECT_TRUE(wait_until([&] { return maru_reattach(client) == 0; }));
        EXPECT_EQ(map.count_pages()[PageState::kReserved], client.statistics().pages_cached);
        begin();
      });
}

TEST_F(OutOfMemory, TheSessionThreadWaitsUntilThereIsSome) {
  PoolWish pool;
  pool.in_file = true;
  MarudProcess marud({pool});
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  const uint64_t before = failures.load();
  others_fail = true;
  marud.kill();
  marud.start();
  EXPECT_TRUE(wait_until([&] { return failures.load() > before + 2; }));
  EXPECT_FALSE(nobody_is_attached(marud)) << "its process lives";
  others_fail = false;
  EXPECT_TRUE(marud.has_logged("is back on lane"));
  EXPECT_EQ(client.text("k"), "text");
}

// -- what must not be freed, or not be used after it was --------------------------------------------------------------

TEST_F(OutOfMemory, AChildOfForkFreesNothingThatItsParentsThreadsMayHaveBeenChanging) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    deletes = 0;
    maru_detach(client);
    ::_exit(deletes.load() <= 1 ? 0 : 1);  // the handle
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Calls the library when its thread has ended for everybody else.
struct LastOfThread {
  ~LastOfThread() {
    const std::array<maru_key, 2> keys = {key_of("k"), key_of("l")};
    uint8_t present[2];
#ifdef __SANITIZE_ADDRESS__
    const __lsan::ScopedDisabler left_behind;  // nothing of the thread ends after this
#endif
    *result = maru_exists_batch(client, keys.data(), keys.size(), present);
  }
  maru_client* client;
  int* result;
};

TEST_F(OutOfMemory, WhatAThreadLeavesIsNotUsedByItsLastCalls) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "text"), 0);
  int first = 0, last = 0;
  keeps = true;
  std::thread([&] {
    thread_local LastOfThread last_of_thread{client, &last};  // made first, so that it goes last
    const std::array<maru_key, 2> keys = {key_of("k"), key_of("l")};
    uint8_t present[2];
    first = maru_exists_batch(last_of_thread.client, keys.data(), keys.size(), present);
  }).join();
  keeps = false;
  EXPECT_EQ(first, 1);
  EXPECT_EQ(last, 1);
  ASSERT_LT(kept_count.load(), kKeptMax);
  for (size_t i = 0; i < kept_count.load(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(kept[i].load());
    for (size_t k = 0; k < ::malloc_usable_size(kept[i].load()); ++k)
      ASSERT_EQ(bytes[k], kDeleted) << "written after it was deleted, byte " << k;
  }
}

}  // namespace
}  // namespace maru::test
