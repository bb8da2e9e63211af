// Taking pages and giving them back.
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/suite.h"

#include <algorithm>

namespace maru::bench {

namespace {

constexpr uint64_t kPages = 64 << 10;
constexpr uint32_t kCachePages = 256;
constexpr size_t kList = 100;

double take_and_return(maru_client* client, uint64_t count) {
  maru_buffer buffer{};
  return typical_ns(count, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      must(maru_alloc(client, 1, &buffer), "alloc");
      must(maru_abort(client, &buffer), "abort");
    }
  });
}

// Each take is timed by itself and again with the return, which is the row's further number.
class TakeMany {
 public:
  TakeMany(maru_client* client, uint64_t bytes, size_t list) : client_(client), bytes_(bytes), buffers_(list) {}

  double sample(uint64_t count) {
    Stopwatch taking;
    for (uint64_t i = 0; i < count; ++i) {
      both_.start();
      taking.start();
      must(buffers_.size() == 1 ? maru_alloc(client_, bytes_, buffers_.data())
                                : maru_alloc_batch(client_, bytes_, buffers_.size(), buffers_.data()),
           "alloc");
      taking.stop();
      must(maru_abort_batch(client_, buffers_.data(), buffers_.size()), "abort");
      both_.stop();
    }
    taken_ += count;
    return taking.per(count);
  }
  double and_back() const { return both_.per(taken_); }

 private:
  maru_client* client_;
  uint64_t bytes_;
  std::vector<maru_buffer> buffers_;
  Stopwatch both_;
  uint64_t taken_ = 0;
};

// Takes most of the pool page by page and gives back clusters of 100 to 355 pages with 64 to 191 taken ones between
// them.
std::vector<maru_buffer> occupy_in_clusters(maru_client* client, uint64_t page_bytes) {
  std::vector<maru_buffer> taken(kPages / 2);
  must(maru_alloc_batch(client, page_bytes, taken.size(), taken.data()), "alloc");
  std::sort(taken.begin(), taken.end(), [](const maru_buffer& a, const maru_buffer& b) { return a.data < b.data; });
  std::vector<maru_buffer> kept, returned;
  Random random(11);
  for (size_t i = 0; i < taken.size();) {
    for (uint64_t n = 64 + random.below(128); n > 0 && i < taken.size(); --n) kept.push_back(taken[i++]);
    for (uint64_t n = 100 + random.below(256); n > 0 && i < taken.size(); --n) returned.push_back(taken[i++]);
  }
  must(maru_abort_batch(client, returned.data(), returned.size()), "abort");
  return kept;
}

}  // namespace

void allocation_rows(Suite& suite) {
  PoolShape shape;
  shape.pages = kPages;
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), kCachePages);
  const maru_geometry geometry = client.geometry();
  const uint64_t singles = suite.operations(1'000'000), many = suite.operations(20'000);

  if (suite.wants("alloc_1")) {
    suite.measure("alloc_1",
                  {{"value", [&] { return take_and_return(client, singles); }},
                   {"floor", [&] { return exchange_floor(singles); }}},
                  facts_of(geometry, 0));
  }
  if (suite.wants("alloc_list_100")) {
    TakeMany list(client, 1, kList);
    Facts facts = facts_of(geometry, 0);
    facts.extra.push_back({"and_back", [&] { return list.and_back(); }});
    suite.measure(
        "alloc_list_100",
        {{"value", [&] { return list.sample(many); }}, {"floor", [&] { return line_read_floor(many, kList); }}}, facts);
  }
  if (suite.wants("alloc_run_100")) {
    const std::vector<maru_buffer> kept = occupy_in_clusters(client, geometry.page_bytes);
    TakeMany run(client, kList * geometry.page_bytes, 1);
    Facts facts = facts_of(geometry, 0);
    facts.extra.push_back({"and_back", [&] { return run.and_back(); }});
    suite.measure("alloc_run_100",
                  {{"value", [&] { return run.sample(many / 4); }},
                   {"floor", [&] { return line_update_floor(many / 4, kList); }}},
                  facts);
    must(maru_abort_batch(client, kept.data(), kept.size()), "abort");
  }
}

}  // namespace maru::bench
