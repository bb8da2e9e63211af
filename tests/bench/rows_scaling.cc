// Do two processes that ask get in each other's way?
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/suite.h"

#include <array>
#include <memory>

namespace maru::bench {

namespace {

using Pair = std::array<std::unique_ptr<Child>, 2>;

// The work of both at once over the work of one, which is the mean of each alone.
double two_over_one(const Pair& pair, const std::string& go) {
  double alone = 0, together = 0;
  for (const auto& child : pair) {
    child->send_line(go);
    alone += std::stod(child->read_line());
  }
  for (const auto& child : pair) child->send_line(go);
  for (const auto& child : pair) together += std::stod(child->read_line());
  return together / (alone / 2);
}

Pair start_pair(const std::vector<std::string>& role) {
  Pair pair;
  for (unsigned i = 0; i < pair.size(); ++i) {
    pair[i] = start_role(role);
    run_on_cpu(i, pair[i]->pid());
  }
  return pair;
}

}  // namespace

void scaling_rows(Suite& suite) {
  if (cpu_count() < 2) {
    suite.lacks("a second CPU (exists_two_processes means nothing here)");
  }
  const uint64_t keys = whole_chains(200'000);
  PoolShape shape;
  shape.pages = keys + 4096;
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), 16);
  store_chains(client, keys);
  const Pair asking = start_pair({"asking", marud.socket_path(), std::to_string(keys)});
  const Pair spinning = start_pair({"spinning"});
  const std::string go = suite.quick() ? "go 50" : "go 200";
  suite.measure(
      "exists_two_processes",
      {{"value", [&] { return two_over_one(asking, go); }}, {"floor", [&] { return two_over_one(spinning, go); }}},
      facts_of(client.geometry(), keys));
}

}  // namespace maru::bench
