#include "daemon/tools/policy_sim/plot.h"
#include "tests/policy_sim/workloads.h"

#include <gtest/gtest.h>

namespace maru::policy_sim {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string plot_of(std::vector<std::string> policies, std::vector<PoolSize> sizes,
                    const std::string& path = "t.jsonl") {
  Options options;
  options.trace_path = path;
  options.policies = std::move(policies);
  options.sizes = std::move(sizes);
  const Workload workload(conversation(500));
  const Result<Evaluation> evaluation = evaluate(options, workload);
  EXPECT_TRUE(evaluation);
  return draw_plot(options, workload, *evaluation);
}

TEST(Plot, HasALineForEachPolicyAndOneForBelady) {
  const std::string svg = plot_of({"lru", "odds"}, {{1, 0}, {10, 0}});
  EXPECT_EQ(count(svg, "<polyline"), 3u);
  for (const char* name : {">lru<", ">odds<", ">Belady"}) EXPECT_EQ(count(svg, name), 1u) << name;
}

TEST(Plot, PoliciesThatFoundTheSameShareALine) {
  const std::string svg = plot_of({"lru", "priority"}, {{1, 0}, {10, 0}});
  EXPECT_EQ(count(svg, "<polyline"), 2u);
  EXPECT_EQ(count(svg, ">priority<"), 1u);
}

TEST(Plot, IsWholeWithOneSizeAndWithOddNames) {
  const std::string svg = plot_of({"lru"}, {{0, 100}}, "a<b>&c.jsonl");
  EXPECT_EQ(count(svg, "<svg"), count(svg, "</svg>"));
  EXPECT_EQ(count(svg, "a&lt;b&gt;&amp;c.jsonl"), 1u);
  for (const char* bad : {"nan", "inf", "a<b"}) EXPECT_EQ(count(svg, bad), 0u) << bad;
}

}  // namespace
}  // namespace maru::policy_sim
