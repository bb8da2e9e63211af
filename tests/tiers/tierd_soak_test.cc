// maru-tierd at length, over a disk that is filled and freed and a Redis that goes and comes, while marud and maru-tierd are
// killed. Every byte that is read is verified, and at the end the usage is what a fresh start finds in the log.
//
// The disk is a tmpfs of the test's own, in a mount namespace of its own, so nothing of it outlives the test. Where the kernel
// refuses that, the test says so and does without. MARU_TIER_SECONDS says how long it takes.
#include "libmaru/prefetch/message.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/redis_process.h"
#include "tests/tiers/tierd_engine.h"

#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace maru::test {
namespace {

constexpr uint64_t kDiskBytes = 40u << 20;

// A file system that can be full.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path), filler_(path + "/filler") {
    const uid_t user = ::getuid();
    const gid_t group = ::getgid();
    if (::unshare(CLONE_NEWNS) != 0) {
      if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return;
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/uid_map") << user << ' ' << user << " 1";
      std::ofstream("/proc/self/gid_map") << group << ' ' << group << " 1";
    }
    const std::string size = "size=" + std::to_string(kDiskBytes);
    is_there_ = ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                ::mount("tmpfs", path.c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  ~SmallDisk() {
    if (is_there_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool is_there() const { return is_there_; }
  void fill() {
    const int file = ::open(filler_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    struct statvfs room = {};
    if (::statvfs(path_.c_str(), &room) == 0 && ::posix_fallocate(file, 0, off_t(room.f_bavail * room.f_frsize)) == 0)
      ++fillings;
    ::close(file);
  }
  void free() { ::unlink(filler_.c_str()); }

  uint64_t fillings = 0;

 private:
  const std::string path_, filler_;
  bool is_there_ = false;
};

struct Usage {
  uint64_t entries, entry_bytes;
  bool operator==(const Usage&) const = default;
  friend void PrintTo(const Usage& usage, std::ostream* to) {
    *to << usage.entries << " entries of " << usage.entry_bytes << " bytes";
  }
};

class TierdSoak : public testing::Test {
 protected:
  TierdSoak() { std::printf("MARU_SEED=%llu\n", static_cast<unsigned long long>(seed_)); }

  Usage usage() {
    const nlohmann::json tier = tierd_->tier();
    return {tier["entries"], tier["entry_bytes"]};
  }
  // Starts maru-tierd, and returns the usage that it then finds on its disk, as its log says.
  Usage recovered() {
    const size_t begin = tierd_->log().size();
    tierd_->start();
    const std::string words = "the tier disk (file) has ";
    std::string log;
    size_t at = 0;
    const bool is_said = wait_until([&] {  // another thread writes the log
      log = tierd_->log();
      at = log.find(words, begin);
      return at != std::string::npos && log.find('\n', at) != std::string::npos;
    });
    if (!is_said) return {0, 0};
    char* behind = nullptr;
    const uint64_t entries = std::strtoull(log.c_str() + at + words.size(), &behind, 10);
    return {entries, std::strtoull(behind + std::strlen(" entries of "), nullptr, 10)};
  }
  uint64_t metric(const std::string& name) { return tierd_->metric(name); }
  // All that was stored is written, and nothing moves any more.
  void settle() {
    ASSERT_TRUE(wait_until([&] {
      const nlohmann::json all = tierd_->list();
      return all.is_object() && all["queued"] == 0 && all["tiers"][0]["in_flight"] == 0;
    })) << tierd_->list().dump();
  }

  const uint64_t seed_ = fresh_seed();
  TemporaryDirectory disk_directory_, redis_directory_;
  MarudProcess marud_;
  std::unique_ptr<TierdProcess> tierd_;
};

TEST_F(TierdSoak, FullDisksAndServersThatGoHarmNobody) {
  SmallDisk disk(disk_directory_.path());
  if (!disk.is_there()) std::printf("no file system of the test's own here: the disk is never full\n");
  std::unique_ptr<RedisProcess> redis;
  if (RedisProcess::is_installed()) redis = std::make_unique<RedisProcess>(redis_directory_.path());
  std::string tiers = "[[tier]]\nname = \"disk\"\nkind = \"file\"\n[tier.options]\npath = \"" + disk_directory_.path() +
                      "\"\ncapacity = \"256MiB\"\nregion_bytes = \"1MiB\"\n";
  if (redis)
    tiers += "[[tier]]\nname = \"redis\"\nkind = \"resp\"\nload_timeout_ms = 500\n[tier.options]\nsocket = \"" +
             redis->socket_path() + "\"\ntimeout_ms = 500\nconnect_timeout_ms = 200\n";
  tierd_ = std::make_unique<TierdProcess>(marud_, tiers, "[store]\nforget_deleted = false\n");
  tierd_->start();
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::seconds(number_from_environment("MARU_TIER_SECONDS", 5));
  Random random(seed_);
  uint64_t loaded = 0, killed = 0, stopped = 0, full_stores = 0;
  bool has_redis = bool(redis), is_full = false;
  {
    Engine engine(marud_, random.next());
    const auto is_over = [&] {
      return std::chrono::steady_clock::now() >= until && killed > 0 && (!redis || stopped > 0) &&
             (!disk.is_there() || full_stores > 0);
    };
    const uint64_t rounds_max = 100'000;
    for (uint64_t round = 0; round < rounds_max && !is_over() && !HasFailure(); ++round) {
      for (uint64_t steps = 1 + random.below(40); steps > 0; --steps) engine.step(*tierd_);
      switch (random.below(8)) {
        case 0:
          full_stores += metric("maru_tier_operations_total{tier=\"disk\",kind=\"store\",result=\"failed\"}");
          tierd_->kill();
          tierd_->start();
          ++killed;
          break;
        case 1:
          marud_.kill();
          marud_.start();
          break;
        case 2:
        case 3:
          if (!disk.is_there()) break;
          is_full ? disk.free() : disk.fill();
          is_full = !is_full;
          break;
        case 4:
        case 5:
          if (!redis) break;
          has_redis ? redis->kill() : redis->start();
          stopped += has_redis;
          has_redis = !has_redis;
          break;
        default: break;
      }
    }
    loaded = engine.loaded;
    // Since the last start entries have also gone, or the usage at the end would only be a sum.
    uint64_t more = 0;
    if (disk.is_there()) {
      disk.fill();
      EXPECT_TRUE(wait_until([&] {
        for (int i = 0; i < 20; ++i, ++more)
          (void)engine.client().store("more " + std::to_string(more), std::string(40'000, 'm'));
        return tierd_->tier()["evicted"] > 0u;
      })) << tierd_->list().dump();
    }
    disk.free();
    if (redis && !has_redis) redis->start();
    // The disk is tried again some seconds after it was full, and the breaker of a server closes by itself.
    ASSERT_TRUE(wait_until([&] {
      engine.step(*tierd_);
      const nlohmann::json all = tierd_->list();
      return all.is_object() && std::all_of(all["tiers"].begin(), all["tiers"].end(),
                                            [](const nlohmann::json& tier) { return tier["breaker"] == "closed"; });
    })) << tierd_->list().dump();
    EXPECT_GT(engine.reads, 0u);
    EXPECT_TRUE(tierd_->is_running()) << tierd_->log();
    // A start would also write what the pool has and a full disk had refused.
    engine.empty_pool();
    for (uint64_t i = 0; i < more; ++i) (void)engine.client().remove("more " + std::to_string(i));
  }
  settle();
  const Usage before = usage();
  EXPECT_GT(before.entries, 0u);
  tierd_->stop();
  EXPECT_EQ(recovered(), before) << "after an end in order";
  tierd_->kill();
  EXPECT_EQ(recovered(), before) << "after a kill";
  EXPECT_EQ(metric("maru_tier_unproven_total"), 0u);
  tierd_->stop();
  EXPECT_TRUE(wait_until([&] { return marud_.ask({{"command", "pins"}}).at("pins").empty(); }));
  const auto reply = marud_.ask({{"command", "check"}, {"quiesce", true}});
  ASSERT_TRUE(reply.contains("violations")) << reply.dump();
  EXPECT_TRUE(reply["violations"].empty()) << reply.dump();
  std::printf(
      "tiers: disk filled %llu times, %llu stores failed, redis stopped %llu times, maru-tierd killed %llu times, "
      "%llu blocks loaded, usage %s\n",
      static_cast<unsigned long long>(disk.fillings), static_cast<unsigned long long>(full_stores),
      static_cast<unsigned long long>(stopped), static_cast<unsigned long long>(killed),
      static_cast<unsigned long long>(loaded), HasFailure() ? "wrong" : "right");
}

}  // namespace
}  // namespace maru::test
