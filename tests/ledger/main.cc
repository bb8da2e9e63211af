// The ledger of cache lines: the loads, writes, modifications and flushes of each hot operation in shared memory, counted and
// not timed.
//
//   ledger                    prints the table that docs/performance.md holds
//   ledger --compare FILE     compares with the table in this file; status 1 when a row differs
//
// A client of a real marud does each operation on 256 fresh keys; the table has the mean, rounded to a tenth. Flushes happen in
// pools alone that several hosts share or that outlive the power, and eviction is marud's: these two come from the algorithms
// themselves, on a byte array.
#include "libmaru/shm/blocks/hash.h"
#include "libmaru/shm/recovery/evict.h"
#include "maru/format/control_region.h"
#include "tests/ledger/access_count.h"
#include "tests/support/marud_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_client.h"
#include "tests/unit/small_pool.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <unistd.h>

namespace maru::ledger {
namespace {

constexpr size_t kRounds = 64;  // of operations on one key
constexpr size_t kBatch = 256;  // keys
constexpr char kHeading[] =
    "| operation | lines loaded | lines written | of the own lane | read-modify-writes | flushes |";

struct Row {
  std::string name;
  Count sum;
  size_t times;  // operations, or keys of one operation
};

std::string text_of(const Row& row) {
  std::ostringstream text;
  text << "| " << row.name << " |";
  for (const uint64_t n : {row.sum.loaded, row.sum.written, row.sum.own_written, row.sum.modified, row.sum.flushed}) {
    char number[32];
    std::snprintf(number, sizeof number, " %.1f |", double(n) / double(row.times));
    text << number;
  }
  return text.str();
}

void add(Count& sum, const Count& one) {
  sum.loaded += one.loaded;
  sum.written += one.written;
  sum.own_written += one.own_written;
  sum.modified += one.modified;
  sum.flushed += one.flushed;
}

[[noreturn]] void stop(const std::string& text) {
  std::fprintf(stderr, "ledger: %s\n", text.c_str());
  std::exit(2);
}

void must(bool is_good, const char* what) {
  if (!is_good) stop(std::string(what) + " went otherwise than the ledger needs");
}

// The control region among the mappings of this process.
std::span<std::byte> control_region() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 || std::strcmp(rights, "rw-s") != 0)
      continue;
    auto* const bytes = reinterpret_cast<std::byte*>(begin);
    uint64_t magic = 0;
    std::memcpy(&magic, bytes, sizeof magic);
    if (magic == format::kMagic) return {bytes, end - begin};
  }
  stop("no control region is mapped");
}

// The library notes one use of a page in each tick of the kernel's coarse clock, so each operation gets a tick of its own.
void wait_for_next_tick() {
  const auto tick = [] {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  };
  for (const auto before = tick(); tick() == before;) ::usleep(500);
}

class Table {
 public:
  explicit Table(test::TestClient& client) : client_(client) {
    const std::span<std::byte> memory = control_region();
    if (const char* wrong = shm::ControlRegion::attach(memory, uint64_t{1} << 40, &region)) stop(wrong);
    maru_geometry shape{};
    shape.size = sizeof shape;
    must(maru_get_geometry(client_, &shape) == 0, "maru_get_geometry");
    const auto* const lane = reinterpret_cast<const std::byte*>(&region.lane_header(shape.lane));
    watch(memory, {lane, region.layout().lane_bytes});
  }

  // `prepare` runs uncounted before each operation.
  void measure(const std::string& name, const std::function<void(size_t)>& operation,
               const std::function<void(size_t)>& prepare = {}, const std::function<void(size_t)>& after = {}) {
    Row row{name, {}, kRounds};
    for (size_t i = 0; i < kRounds; ++i) {
      if (prepare) prepare(i);
      wait_for_next_tick();
      begin();
      operation(i);
      add(row.sum, end());
      if (after) after(i);
    }
    rows.push_back(row);
  }
  // One call for all keys.
  void measure_batch(const std::string& name, const std::function<void()>& operation, size_t keys) {
    wait_for_next_tick();
    begin();
    operation();
    rows.push_back({name, end(), keys});
  }

  shm::ControlRegion region;
  std::vector<Row> rows;

 private:
  test::TestClient& client_;
};

// Keys whose home buckets no other key of the ledger has.
class Keys {
 public:
  explicit Keys(const shm::ControlRegion& region, std::set<uint64_t>& buckets) {
    static uint64_t next = 0;
    for (size_t i = 0; i < kBatch;) {
      digests_[i] = {++next, 0};
      const auto digest = shm::digest_of_128(region.secret(), next, 0, 0);
      if (buckets.insert(shm::home_bucket(region, digest)).second) {
        keys[i] = {digests_[i].data(), 16, MARU_KEY_DIGEST128, 0};
        ++i;
      }
    }
  }
  maru_key keys[kBatch];

 private:
  std::array<uint64_t, 2> digests_[kBatch];
};

constexpr char kPayload[64] = "a small payload";

void store_all(test::TestClient& client, Keys& keys, bool as_chain) {
  maru_store_options options{};
  options.size = sizeof options;
  for (size_t i = 0; i < kBatch; ++i) {
    maru_block block = 0;
    must(maru_store_copy(client, &keys.keys[i], kPayload, sizeof kPayload, &options, &block) == 0, "storing");
    if (as_chain) options.parent = block;
  }
}

void measure_client(Table& table, test::TestClient& client) {
  std::set<uint64_t> buckets;
  Keys present(table.region, buckets), chain(table.region, buckets), absent(table.region, buckets);
  Keys fresh(table.region, buckets), children(table.region, buckets), described(table.region, buckets);
  store_all(client, present, false);
  store_all(client, chain, true);
  uint8_t answers[kBatch];
  maru_view view{}, views[kBatch]{};
  maru_match match{};
  maru_buffer buffer{}, buffers[kBatch]{};

  table.measure("exists, a hit", [&](size_t i) { must(maru_exists(client, &present.keys[i]) == 1, "exists"); });
  table.measure("exists, a miss", [&](size_t i) { must(maru_exists(client, &absent.keys[i]) == 0, "exists"); });
  table.measure_batch(
      "exists_batch of 256, a key",
      [&] { must(maru_exists_batch(client, present.keys, kBatch, answers) == int(kBatch), "exists_batch"); }, kBatch);
  table.measure("retrieve and release", [&](size_t i) {
    must(maru_retrieve(client, &present.keys[i], &view) == 0 && maru_release(client, &view) == 0, "retrieve");
  });
  table.measure_batch(
      "retrieve_batch and release_batch of 256, a key",
      [&] {
        must(maru_retrieve_batch(client, present.keys, kBatch, views) == int(kBatch) &&
                 maru_release_batch(client, views, kBatch) == 0,
             "retrieve_batch");
      },
      kBatch);
  maru_view held{};
  table.measure(
      "pin and unpin of a held block",
      [&](size_t) { must(maru_pin_block(client, held.block, &view) == 0 && maru_unpin(client, &view) == 0, "pin"); },
      [&](size_t i) { must(maru_retrieve(client, &present.keys[i], &held) == 0, "retrieve"); },
      [&](size_t) { must(maru_release(client, &held) == 0, "release"); });
  table.measure_batch(
      "match_prefix of 256, all present",
      [&] { must(maru_match_prefix(client, chain.keys, kBatch, &match) == 0 && match.blocks == kBatch, "match"); }, 1);
  table.measure_batch(
      "resolve of 256, a key", [&] { must(maru_resolve(client, &match, chain.keys, kBatch, views) == 0, "resolve"); },
      kBatch);
  must(maru_release_match(client, &match) == 0, "release_match");

  maru_store_options under_parent{};
  under_parent.size = sizeof under_parent;
  must(maru_retrieve(client, &chain.keys[kBatch - 1], &held) == 0, "retrieve");
  under_parent.parent = held.block;
  table.measure("alloc and abort", [&](size_t) {
    must(maru_alloc(client, sizeof kPayload, &buffer) == 0 && maru_abort(client, &buffer) == 0, "alloc");
  });
  table.measure_batch(
      "alloc, of 256 in a row",
      [&] {
        for (maru_buffer& one : buffers) must(maru_alloc(client, sizeof kPayload, &one) == 0, "alloc");
      },
      kBatch);
  size_t next = 0;
  table.measure("store, as a root", [&](size_t i) {
    must(maru_store(client, &fresh.keys[i], &buffers[next++], nullptr, nullptr) == 0, "store");
  });
  table.measure("store, under a parent", [&](size_t i) {
    must(maru_store(client, &children.keys[i], &buffers[next++], &under_parent, nullptr) == 0, "store");
  });
  must(maru_release(client, &held) == 0, "release");
  // The same, since the length of the metadata is in the payload's word.
  static constexpr char kText[1024] = "what the payload is";
  const maru_metadata metadata = {kText, sizeof kText, 0};
  maru_store_options with_metadata{};
  with_metadata.size = sizeof with_metadata;
  with_metadata.metadata = &metadata;
  table.measure("store, as a root, with 1 KiB of metadata", [&](size_t i) {
    must(maru_store(client, &described.keys[i], &buffers[next++], &with_metadata, nullptr) == 0, "store");
  });
  table.measure("retrieve and release, with metadata that is read", [&](size_t i) {
    maru_metadata found{};
    must(maru_retrieve(client, &described.keys[i], &view) == 0 && maru_view_metadata(client, &view, &found) == 0 &&
             found.bytes == sizeof kText && maru_release(client, &view) == 0,
         "retrieve");
  });
  table.measure(
      "get_block_info of a held block, with its key",
      [&](size_t) {
        maru_block_info info{};
        maru_key_copy key;
        info.size = sizeof info;
        must(maru_get_block_info(client, held.block, &info, &key) == 0, "get_block_info");
      },
      [&](size_t i) { must(maru_retrieve(client, &described.keys[i], &held) == 0, "retrieve"); },
      [&](size_t) { must(maru_release(client, &held) == 0, "release"); });
  table.measure("delete, a root", [&](size_t i) { must(maru_delete(client, &fresh.keys[i]) == 0, "delete"); });
  table.measure("delete, a child", [&](size_t i) { must(maru_delete(client, &children.keys[i]) == 0, "delete"); });
}

// What marud and pools with flushes do, on a byte array: one batch of 64 pages, per page.
void measure_algorithms(Table& table) {
  constexpr size_t kPages = 64;
  for (const bool is_shared : {false, true}) {
    shm::SmallPool pool({.pages = 1024, .region_pages = 256, .lanes = 8, .hosts = is_shared ? 2u : 1u});
    const auto own_lane = [&](uint32_t lane) {
      watch(pool.memory(),
            {reinterpret_cast<const std::byte*>(&pool.region.lane_header(lane)), pool.region.layout().lane_bytes});
    };
    own_lane(1);
    const std::string where = is_shared ? " (shared by hosts)" : "";
    std::vector<shm::PageRef> own;
    for (size_t i = 0; i < 2 * kPages; ++i) own.push_back(pool.take(1));
    std::vector<uint32_t> pages;
    if (is_shared) {
      const auto publish = [&](const std::string& name, size_t first, shm::PageRef parent) {
        Row row{name + where, {}, kPages};
        for (size_t i = first; i < first + kPages; ++i) {
          const std::string key = "key " + std::to_string(i);
          const shm::NewBlock block = pool.block(key, parent);
          begin();
          const auto result = shm::publish(pool.lane(1), own[i], block);
          add(row.sum, end());
          must(result.status == shm::PublishStatus::kStored, "publish");
        }
        table.rows.push_back(row);
      };
      publish("publish, as a root", 0, shm::PageRef::none());
      publish("publish, under a parent", kPages, pool.store(1, "parent"));
      for (size_t i = 0; i < kPages; ++i) pages.push_back(own[i].page());
    } else {
      for (size_t i = 0; i < kPages; ++i) {
        const std::string key = "key " + std::to_string(i);
        must(shm::publish(pool.lane(1), own[i], pool.block(key)).status == shm::PublishStatus::kStored, "publish");
        pages.push_back(own[i].page());
      }
    }
    own_lane(0);
    uint16_t attempt = 0;
    std::vector<shm::PageRef> retired(shm::kEvictBatchMax);
    begin();
    const size_t count =
        shm::retire_unpinned(pool.lane(0), pool.lanes, pages.data(), pages.size(), &attempt, retired.data());
    for (size_t i = 0; i < count; ++i) shm::free_retired(pool.lane(0), retired[i], nullptr);
    table.rows.push_back({"evict, of 64, a page, 8 lanes" + where, end(), kPages});
    must(count == kPages, "evicting");
  }
}

int compare(const std::vector<std::string>& measured, const char* file) {
  std::ifstream page(file);
  if (!page) stop(std::string("cannot read ") + file);
  std::vector<std::string> written;
  bool is_inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == kHeading) is_inside = true;
    if (is_inside && (line.empty() || line[0] != '|')) is_inside = false;
    if (is_inside && line != kHeading && line.rfind("|---", 0) != 0) written.push_back(line);
  }
  if (written.empty()) stop(std::string(file) + " has no table with the heading " + kHeading);
  int differing = 0;
  for (size_t i = 0; i < std::max(written.size(), measured.size()); ++i) {
    const std::string here = i < measured.size() ? measured[i] : "nothing",
                      there = i < written.size() ? written[i] : "nothing";
    if (here == there) continue;
    ++differing;
    std::printf("measured %s\n written %s\n", here.c_str(), there.c_str());
  }
  if (differing != 0)
    std::printf("%d rows differ from %s. A change that moves a line is made on purpose: change the table, too.\n",
                differing, file);
  return differing == 0 ? 0 : 1;
}

int run(int count, char** arguments) {
  const bool compares = count == 3 && std::strcmp(arguments[1], "--compare") == 0;
  if (count != 1 && !compares) stop("usage: ledger [--compare FILE]");
  std::vector<std::string> lines;
  {
    // Many buckets, so that hardly any two keys share one; one region, so that none is rented meanwhile.
    test::MarudProcess marud({{.bytes = 320u << 20, .region_bytes = 16u << 20}});
    test::TestClient client(marud.socket_path(), "default", test::far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
    Table table(client);
    measure_client(table, client);
    measure_algorithms(table);
    for (const Row& row : table.rows) lines.push_back(text_of(row));
  }
  if (compares) return compare(lines, arguments[2]);
  std::printf("%s\n|---|---|---|---|---|---|\n", kHeading);
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  return 0;
}

}  // namespace
}  // namespace maru::ledger

int main(int count, char** arguments) {
  if (maru::test::kHasThreadSanitizer) {
    std::puts(
        "skipped: for a thread sanitizer the library orders its pins by other accesses (libmaru/shm/blocks/pin.cc)");
    return 77;
  }
  return maru::ledger::run(count, arguments);
}
